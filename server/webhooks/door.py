"""`Door`: makes one attempt to send an event: opens secrets, signs, posts through the SSRF guard."""

import time
from dataclasses import dataclass

from server.configuration.settings import Config
from server.errors import ConfigError
from server.outbound_http.allowed_addresses import AllowedAddresses, Refused, read_allowed
from server.outbound_http.guarded_http import Lookup, Unreachable, look_up, post
from server.sealing.cipher import Seal
from server.store.webhooks.outbox import Claimed
from server.webhooks.messages import event_body, message_headers
from server.webhooks.retries import Answer

NOTHING = "none"
"""The value of `webhook_hosts` by which nothing is sent."""
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
class Door:
    """Any thread; an attempt blocks for at most `seconds`."""

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
