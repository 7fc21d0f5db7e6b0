"""Measures stalls of the Python interpreter: times in which no thread of this process could run.

Native code that keeps the GIL stops every thread at once, also the heartbeat and the health check. A thread
that wakes up ten times a second sees each stall as a late wake-up. A suspended process looks the same.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.stalls")

TICK_SECONDS = 0.1
COUNTED_SECONDS = 0.1
"""The delay from which a late wake-up counts as a stall."""
LOGGED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Stalls:
    """The stalls since the process started."""

    count: int = 0
    total_seconds: float = 0.0
    longest_seconds: float = 0.0

    def plus(self, seconds: float) -> "Stalls":
        return Stalls(self.count + 1, self.total_seconds + seconds, max(self.longest_seconds, seconds))


class StallWatch:
    """The measuring thread. Any thread may read `stalls`."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.stalls = Stalls()
        self._clock = clock
        self.thread = SupervisedThread("stall watch", self._turn, retry=Retry(max_failures=None))

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.thread.stop()

    def _turn(self) -> None:
        began = self._clock()
        self.thread.wait(TICK_SECONDS)
        self.add_wait(self._clock() - began)

    def add_wait(self, seconds: float) -> None:
        """Counts a wait of one tick that took so many seconds."""
        late = seconds - TICK_SECONDS
        if late < COUNTED_SECONDS:
            return
        self.stalls = self.stalls.plus(late)
        if late >= LOGGED_SECONDS:
            log.warning("the interpreter stood still for %.1f s; no thread could run", late)
