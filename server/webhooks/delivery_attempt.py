"""`WebhookClient`: makes one attempt to send an event, or a sample: opens secrets, signs, posts through the
SSRF guard.
"""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from server.configuration.settings import Config
from server.errors import ConfigError, InvalidRequest
from server.limits.shared_limit import SharedLimit
from server.outbound_http.allowed_addresses import AllowedAddresses, Refused, read_allowed
from server.outbound_http.guarded_http import Lookup, Unreachable, look_up, post
from server.protocol.ids import new_uuid
from server.sealing.cipher import Seal
from server.store.webhooks.endpoints import StoredEndpoint
from server.store.webhooks.outbox import Claimed
from server.webhooks.retries import ReceiverAnswer
from server.webhooks.signed_message import event_body, message_headers

NOTHING = "none"
"""The value of `webhook_hosts` by which nothing is sent."""
MAX_SAMPLES = 2
"""Under way in one process, of different tenants."""
_UNSIGNED = "The endpoint's secret cannot be opened with this server's seal keys; rotate it."


def allowed_receivers(config: Config) -> AllowedAddresses:
    """The hosts of `webhook_hosts`. Raises ConfigError."""
    if config.webhook_hosts == NOTHING:
        return AllowedAddresses()
    try:
        return read_allowed(config.webhook_hosts)
    except ValueError as error:
        raise ConfigError(f"webhook-hosts: {error}.") from error


@dataclass(frozen=True, slots=True)
class WebhookClient:
    """Any thread; an attempt blocks for at most `seconds`."""

    seal: Seal
    allowed: AllowedAddresses
    seconds: float
    lookup: Lookup = look_up
    _samples: SharedLimit = field(
        default_factory=lambda: SharedLimit("samples of webhooks being sent", total=MAX_SAMPLES, per_tenant=1)
    )

    def attempt(self, delivery: Claimed) -> ReceiverAnswer:
        """Sends the event once. What goes wrong is in the answer, as a sentence without the URL's path."""
        sealed = [secret for secret in (delivery.secret, delivery.old_secret) if secret is not None]
        opened = [self.seal.open("webhook", delivery.tenant, secret) for secret in sealed]
        signing = [secret for secret in opened if secret is not None]
        if not signing:
            return ReceiverAnswer(None, error=_UNSIGNED)
        ended_at = int(delivery.created_at.timestamp())
        body = event_body(delivery.event_id, delivery.type, ended_at, delivery.response_id)
        headers = message_headers(delivery.id, int(time.time()), body, signing)
        try:
            result = post(delivery.url, headers, body, self.allowed, self.seconds, self.lookup)
        except (Refused, Unreachable) as error:
            return ReceiverAnswer(None, error=str(error))
        return ReceiverAnswer(result.status, result.retry_after)

    def send_sample(self, endpoint: StoredEndpoint, sealed: list[str], event_type: str) -> int:
        """Sends an event of no response, signed with the `sealed` secrets; returns the answer's HTTP status.

        Raises InvalidRequest without an answer; TooManyRequests while the tenant's last is sent, or
        Overloaded.
        """
        with self._samples.hold(endpoint.tenant):
            answer = self.attempt(_sample(endpoint, sealed, event_type))
        if answer.status is None:
            raise InvalidRequest(f"The sample was not answered. {answer.error}", code="webhook_not_answered")
        return answer.status


def _sample(endpoint: StoredEndpoint, sealed: list[str], event_type: str) -> Claimed:
    """A delivery that is in no outbox, of a response that does not exist."""
    secret, *older = sealed
    old_secret = older[0] if older else None
    key = (endpoint.tenant, uuid4(), endpoint.id, uuid4(), new_uuid())
    return Claimed(*key, event_type, datetime.now(UTC), 1, endpoint.properties.url, secret, old_secret)
