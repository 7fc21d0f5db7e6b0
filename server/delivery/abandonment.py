"""Cancels foreground responses that lost their last reader, unless another replica has readers of them.

With each heartbeat a replica publishes which responses it reads that run elsewhere. So before a response is
cancelled, this waits for as long as such a heartbeat may take, and looks it up.
"""

import threading
from collections.abc import Callable, Collection
from time import monotonic
from uuid import UUID

GRACE_SECONDS = 2.5
"""Readers on other replicas are published with their heartbeat, once a second; after this time at least two
heartbeats have arrived."""


class Abandonment:
    """Responses that run here and have lost their last reader here."""

    def __init__(self, *, is_unread: Callable[[UUID], bool], cancel: Callable[[UUID], None]) -> None:
        """`is_unread` returns whether a response runs here without a reader here; `cancel` ends one."""
        self._is_unread = is_unread
        self._cancel = cancel
        self._lock = threading.Lock()
        self._cancel_at: dict[UUID, float] = {}

    def add(self, response: UUID) -> None:
        """The response has had no reader here for its grace period. Any thread; never waits."""
        with self._lock:
            self._cancel_at.setdefault(response, monotonic() + GRACE_SECONDS)

    def pending(self) -> list[UUID]:
        """The responses whose readers on other replicas have to be looked up."""
        with self._lock:
            return list(self._cancel_at)

    def settle(self, read_elsewhere: Collection[UUID], *, alone: bool = False) -> None:
        """Cancels what is due and not read elsewhere; everything at once if this is the only replica."""
        now = monotonic()
        with self._lock:
            for response in read_elsewhere:
                self._cancel_at[response] = now + GRACE_SECONDS
            self._cancel_at = {one: at for one, at in self._cancel_at.items() if self._is_unread(one)}
            due = [one for one, at in self._cancel_at.items() if at <= now or alone]
            for response in due:
                del self._cancel_at[response]
        for response in due:
            self._cancel(response)
