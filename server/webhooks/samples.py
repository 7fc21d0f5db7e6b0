"""`Samples`: events of no response, sent at once so that a receiver can be tried. A few at a time."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

from server.errors import InvalidRequest
from server.limits.shared_limit import SharedLimit
from server.protocol.ids import new_uuid
from server.store.webhooks.endpoints import StoredEndpoint
from server.store.webhooks.outbox import Claimed
from server.webhooks.door import Door

MAX_SAMPLES = 2
"""Under way in one process, of different tenants."""


class Samples:
    """Any thread; a sample blocks for as long as an attempt may take."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self._limit = SharedLimit("samples of webhooks being sent", total=MAX_SAMPLES, per_tenant=1)

    def send(self, endpoint: StoredEndpoint, sealed: list[str], event_type: str) -> int:
        """Sends a sample; returns the HTTP status of the answer. `sealed` are the endpoint's secrets.

        Raises InvalidRequest without an answer; TooManyRequests while the tenant's last one is sent, or
        Overloaded.
        """
        with self._limit.hold(endpoint.tenant):
            answer = self.door.attempt(_sample(endpoint, sealed, event_type))
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
