"""One attempt to send a webhook: OpenAI's event with Standard Webhooks' headers and signatures."""

import base64
import hmac
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import get_args
from uuid import UUID, uuid4

import msgspec

from server.configuration.settings import Config
from server.errors import ConfigError, InvalidRequest
from server.limits.shared_limit import SharedLimit
from server.outbound_http.allowed_addresses import AllowedAddresses, Refused, read_allowed
from server.outbound_http.guarded_http import Lookup, Unreachable, look_up
from server.outbound_http.guarded_post import post
from server.protocol.ids import event_id, new_uuid, response_id, webhook_id
from server.protocol.webhooks import EventType
from server.sealing.cipher import Seal
from server.store.webhooks.endpoints import StoredEndpoint
from server.store.webhooks.outbox import Claimed
from server.version import VERSION
from server.webhooks.retries import Answer

EVENT_TYPES: tuple[EventType, ...] = get_args(EventType)
SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix
SECRET_BYTES = 32
"""Standard Webhooks has 24 to 64."""
NOTHING = "none"
"""The value of `webhook_hosts` by which nothing is sent."""
_UNSIGNED = "The endpoint's secret cannot be opened with this server's seal keys; rotate it."
MAX_SAMPLES = 2
"""Under way in one process, of different tenants."""


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
    """Opens secrets, signs, posts through the SSRF guard. Any thread; an attempt takes `seconds` at most."""

    seal: Seal
    allowed: AllowedAddresses
    seconds: float
    lookup: Lookup = look_up

    def attempt(self, delivery: Claimed) -> Answer:
        """Sends the event once. What goes wrong is in the answer, as a sentence without the URL's path."""
        sealed = [secret for secret in (delivery.secret, delivery.old_secret) if secret is not None]
        opened = [self.seal.open("webhook", delivery.tenant, secret) for secret in sealed]
        signing = [secret for secret in opened if secret is not None]
        if not signing:
            return Answer(None, error=_UNSIGNED)
        ended_at = int(delivery.created_at.timestamp())
        body = event_body(delivery.event_id, delivery.type, ended_at, delivery.response_id)
        headers = message_headers(delivery.id, int(time.time()), body, signing)
        try:
            result = post(delivery.url, headers, body, self.allowed, self.seconds, self.lookup)
        except (Refused, Unreachable) as error:
            return Answer(None, error=str(error))
        return Answer(result.status, result.retry_after)


class Samples:
    """Sends events of no response, so that a receiver can be tried: a few at a time.

    Any thread; a sample blocks for as long as an attempt may take.
    """

    def __init__(self, client: WebhookClient) -> None:
        self.client = client
        self._limit = SharedLimit("samples of webhooks being sent", total=MAX_SAMPLES, per_tenant=1)

    def send(self, endpoint: StoredEndpoint, sealed: list[str], event_type: str) -> int:
        """Sends a sample; returns the HTTP status of the answer. `sealed` are the endpoint's secrets.

        Raises InvalidRequest without an answer; TooManyRequests while the tenant's last one is sent, or
        Overloaded.
        """
        with self._limit.hold(endpoint.tenant):
            answer = self.client.attempt(_sample(endpoint, sealed, event_type))
        if answer.status is None:
            raise InvalidRequest(f"The sample was not answered. {answer.error}", code="webhook_not_answered")
        return answer.status


def _sample(endpoint: StoredEndpoint, sealed: list[str], event_type: str) -> Claimed:
    """A delivery that is in no outbox, of a response that does not exist."""
    response: UUID = new_uuid()
    secret, *older = sealed
    old_secret = older[0] if older else None
    key = (endpoint.tenant, uuid4(), endpoint.id, uuid4(), response)
    return Claimed(*key, event_type, datetime.now(UTC), 1, endpoint.properties.url, secret, old_secret)


def make_secret() -> str:
    """A random secret, in the form in which receivers are given it."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def event_body(event: UUID, event_type: str, created_at: int, response: UUID) -> bytes:
    """The JSON of an event. `created_at` is the Unix time of the response's end."""
    return msgspec.json.encode(
        {
            "id": event_id(event),
            "object": "event",
            "created_at": created_at,
            "type": event_type,
            "data": {"id": response_id(response)},
        }
    )


def message_headers(delivery: UUID, sent_at: int, body: bytes, signing: Sequence[str]) -> dict[str, str]:
    """The headers of an attempt at the Unix time `sent_at`, signed with each of the secrets.

    `webhook-id` is the same in every attempt, so that receivers can tell repetitions.
    """
    message_id = webhook_id(delivery)
    return {
        "content-type": "application/json",
        "user-agent": f"Holdfast/{VERSION} (webhooks)",
        "webhook-id": message_id,
        "webhook-timestamp": str(sent_at),
        "webhook-signature": " ".join(sign(secret, message_id, sent_at, body) for secret in signing),
    }


def sign(secret: str, message_id: str, sent_at: int, body: bytes) -> str:
    """The signature of a message, `v1,` and base64 of HMAC-SHA256."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.digest(key, f"{message_id}.{sent_at}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"
