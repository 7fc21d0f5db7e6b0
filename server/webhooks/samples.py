"""`Samples`: events of no response, sent at once so that a receiver can be tried. A few at a time."""

import threading
from datetime import UTC, datetime
from uuid import UUID, uuid4

from server.errors import InvalidRequest, TooManyRequests
from server.protocol.ids import new_uuid
from server.store.webhooks.endpoints import StoredEndpoint
from server.store.webhooks.outbox import Claimed
from server.webhooks.door import Door

MAX_SAMPLES = 2
"""Under way in one process."""


class Samples:
    """Any thread; a sample blocks for as long as an attempt may take."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self._free = threading.BoundedSemaphore(MAX_SAMPLES)

    def send(self, endpoint: StoredEndpoint, sealed: list[str], event_type: str) -> int:
        """Sends a sample; returns the HTTP status of the answer. `sealed` are the endpoint's secrets.

        Raises InvalidRequest without an answer, or TooManyRequests.
        """
        if not self._free.acquire(blocking=False):
            raise TooManyRequests(
                f"{MAX_SAMPLES} samples of webhooks are being sent; try again in a few seconds.",
                limit="webhook samples",
            )
        try:
            answer = self.door.attempt(_sample(endpoint, sealed, event_type))
        finally:
            self._free.release()
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
