"""The unstored responses that one WebSocket retains, and the input of the one that runs; their limits."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from server.errors import Overloaded, TooManyRequests
from server.limits.shared_limit import SharedLimit
from server.protocol.responses.items import Item

MAX_RETAINED_RESPONSES = 16
"""The most retained responses of one connection; the oldest is dropped first."""


@dataclass(frozen=True, slots=True)
class RetainedResponse:
    """A response that a message may continue: all items up to its end, or the input of one that runs."""

    items: Sequence[Item]
    message_bytes: int
    """Of the messages that its items came in."""
    item_bytes: int
    """Of its items: messages, outputs, and stored items that were read, as they count decoded.

    Items that it shares with the response that it went on from count for both.
    """
    reserved: int
    """Bytes that count among the tenant's: those of its items, and the rest of its last event."""


class RetainedResponses:
    """What one connection retains. Thread-safe; each response counts until it is dropped."""

    def __init__(self, limit: SharedLimit, tenant: str, most: int) -> None:
        """`limit` counts the bytes of all connections; `most` is for the bytes of this one's responses.

        One response alone may have more than `most`.
        """
        self._limit = limit
        self._tenant = tenant
        self._most = most
        self._lock = threading.Lock()
        self._retained: dict[str, RetainedResponse] = {}
        self._running: RetainedResponse | None = None
        self._reserved = 0
        self._closed = False

    def get(self, response: str) -> RetainedResponse | None:
        with self._lock:
            return self._retained.get(response)

    def hold_input(self, items: Sequence[Item], message_bytes: int, item_bytes: int) -> None:
        """Keep the input of the response that runs, until `retain` or `drop_input`.

        Older responses are dropped to make room. Where there is none even so, nothing is kept, and the
        response is not retained at its end.
        """
        with self._lock:
            self._drop_input()
            if not self._closed and self._reserve(item_bytes):
                self._running = RetainedResponse(items, message_bytes, item_bytes, item_bytes)

    def retain(self, response: str, output: Sequence[Item], output_bytes: int, last_bytes: int) -> None:
        """Retain the response that ran, whose output is part of a last event of `last_bytes`."""
        with self._lock:
            before = self._running
            if before is None:
                return
            while len(self._retained) >= MAX_RETAINED_RESPONSES:
                self._drop_oldest()
            if not self._reserve(last_bytes):
                self._drop_input()
                return
            self._running = None
            self._retained[response] = RetainedResponse(
                [*before.items, *output],
                before.message_bytes,
                before.item_bytes + output_bytes,
                before.reserved + last_bytes,
            )

    def drop_input(self) -> None:
        """The response that ran is not retained."""
        with self._lock:
            self._drop_input()

    def drop(self, response: str) -> None:
        with self._lock:
            self._release(self._retained.pop(response, None))

    def close(self) -> None:
        """Drop everything, and retain nothing any more."""
        with self._lock:
            self._closed = True
            self._drop_input()
            while self._retained:
                self._drop_oldest()

    def _reserve(self, size: int) -> bool:
        """Whether the bytes are counted now; older responses are dropped for them."""
        while self._retained and self._reserved + size > self._most:
            self._drop_oldest()
        while True:
            try:
                self._limit.acquire(self._tenant, size)
            except (TooManyRequests, Overloaded):
                if not self._retained:
                    return False
                self._drop_oldest()
            else:
                self._reserved += size
                return True

    def _drop_oldest(self) -> None:
        self._release(self._retained.pop(next(iter(self._retained))))

    def _drop_input(self) -> None:
        dropped, self._running = self._running, None
        self._release(dropped)

    def _release(self, dropped: RetainedResponse | None) -> None:
        if dropped is not None:
            self._limit.release(self._tenant, dropped.reserved)
            self._reserved -= dropped.reserved
