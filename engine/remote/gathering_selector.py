"""`GatheringSelector`: bytes of many streams gather for a moment, so that the event loop turns once for all.

Servers write the tokens of one step to one connection after the other. A loop that looks at once finds one or
two of them in each turn, and for each turn it takes the GIL from another thread.
"""

import select
import selectors
from collections.abc import Callable
from typing import Any

GATHER_MS = 3


class GatheringSelector(selectors.DefaultSelector):
    """For an event loop. Another thread's call wakes the loop at once."""

    def __init__(self, may_gather: Callable[[], bool]) -> None:
        """`may_gather` is asked on the loop's thread, whenever there is something to read."""
        super().__init__()
        self._may_gather = may_gather
        self._wakeup: select.poll | None = None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        if self._wakeup is None:  # the first that a loop registers is its own, for calls of other threads
            self._wakeup = select.poll()
            self._wakeup.register(key.fd, select.POLLIN)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        # With a timeout of 0 the loop has something to do meanwhile.
        if not ready or timeout == 0 or self._wakeup is None or not self._may_gather():
            return ready
        self._wakeup.poll(GATHER_MS)
        return super().select(0)
