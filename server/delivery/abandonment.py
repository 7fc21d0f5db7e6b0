"""Foreground responses that nobody reads here any more: they end, unless another replica has readers.

Every replica tells with its heartbeat what is read through it and runs elsewhere. So whoever is to end a
response for want of readers waits for as long as such a heartbeat may take, and asks.
"""

import threading
from collections.abc import Callable, Collection
from time import monotonic
from uuid import UUID

SETTLED_SECONDS = 2.5
"""After which a reader elsewhere has been told of: two heartbeats and some."""


class Abandonment:
    """What runs here and has lost its last reader here."""

    def __init__(self, *, is_unread: Callable[[UUID], bool], cancel: Callable[[UUID], None]) -> None:
        """`is_unread` tells whether a response runs here without a reader here; `cancel` ends one."""
        self._is_unread = is_unread
        self._cancel = cancel
        self._lock = threading.Lock()
        self._left: dict[UUID, float] = {}
        """When each is to end."""

    def left(self, response: UUID) -> None:
        """Its readers have been away for too long. Any thread; never waits."""
        with self._lock:
            self._left.setdefault(response, monotonic() + SETTLED_SECONDS)

    def waiting(self) -> list[UUID]:
        """Those of which it must be known whether they are read elsewhere."""
        with self._lock:
            return list(self._left)

    def settle(self, read: Collection[UUID], *, alone: bool = False) -> None:
        """Ends what had its time and is not among those that are `read` elsewhere.

        At once where this replica is `alone`, so that nobody can read through another.
        """
        now = monotonic()
        with self._lock:
            for response in read:
                self._left[response] = now + SETTLED_SECONDS
            self._left = {one: end for one, end in self._left.items() if self._is_unread(one)}
            due = [one for one, end in self._left.items() if end <= now or alone]
            for response in due:
                del self._left[response]
        for response in due:
            self._cancel(response)
