"""Measures how long no thread of this process could run Python: the stalls of its interpreter.

A call into native code that keeps the interpreter's lock stops every thread at once, the heartbeat's and the
health check's too. A thread that only wants to run ten times a second sees each stall as a wake-up that came
late; a process that was suspended looks the same.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.stalls")

TICK_SECONDS = 0.1
COUNTED_SECONDS = 0.1
"""Lateness from which on a wake-up counts as a stall."""
LOGGED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Stalls:
    """Since the process started."""

    count: int = 0
    total_seconds: float = 0.0
    longest_seconds: float = 0.0

    def with_one(self, seconds: float) -> "Stalls":
        return Stalls(self.count + 1, self.total_seconds + seconds, max(self.longest_seconds, seconds))


class StallWatch:
    """The thread that measures; `stalls` may be read by any thread."""

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
        self.woke(self._clock() - began)

    def woke(self, seconds: float) -> None:
        """A wait of a tick took so long."""
        late = seconds - TICK_SECONDS
        if late < COUNTED_SECONDS:
            return
        self.stalls = self.stalls.with_one(late)
        if late >= LOGGED_SECONDS:
            log.warning("the interpreter stood still for %.1f s; no thread could run", late)
