"""Background threads that outlive an unexpected exception, and that tell what they are doing.

Every thread that the server starts for itself repeats one turn until it is stopped. An exception that a
turn does not handle is logged and counted, and the turn is repeated after a pause that doubles. After too
many failures in a row, or at an exception that the worker calls fatal, `on_fatal` is called, which ends the
process so that a supervisor starts it anew. A thread that has died, that fails again and again, or whose turn
lasts too long, has a `trouble`, which /health/ready answers with.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

log = logging.getLogger("holdfast.threads")

MAX_TURN_SECONDS = 60.0
"""Several times what a turn may take: its statements end after 6 s, and it has a few of them."""
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 30.0
MAX_FAILURES = 20
"""In a row; with the pauses between them they take about six minutes."""
UNHEALTHY_FAILURES = 5
"""Failures in a row after which a thread counts as one that does not do its work."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a turn is repeated that fails, and after what pauses."""

    max_failures: int | None = MAX_FAILURES
    """In a row; the next one is fatal. None: the turn is repeated for ever, and that is no trouble."""
    max_pause: float = MAX_PAUSE_SECONDS

    def pause(self, failures: int) -> float | None:
        """Seconds until the next try after so many failures in a row; None if there is to be none."""
        if self.max_failures is not None and failures > self.max_failures:
            return None
        return min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 32), self.max_pause)


class Activity:
    """What a thread is doing and since when. Pure: every time is given, in seconds of a monotonic clock.

    One thread writes, any thread reads: each change is one assignment of a tuple.
    """

    def __init__(self, name: str, max_turn: float, *, must_succeed: bool = True) -> None:
        """`must_succeed`: failures in a row are a trouble, too."""
        self._must_succeed = must_succeed
        self._name = name
        self._max_turn = max_turn
        self._now: tuple[bool, float] = (True, 0.0)
        """Whether it is idle, and since when."""
        self.turns = 0
        """Turns that ended without an unexpected exception."""
        self.failures = 0
        """Turns that did not."""
        self.consecutive_failures = 0

    def works(self, now: float) -> None:
        """A turn begins, or makes progress: the bound on its length counts from here."""
        self._now = (False, now)

    def waits(self, now: float) -> None:
        """There is nothing to do until something happens."""
        self._now = (True, now)

    def succeeded(self) -> None:
        self.turns += 1
        self.consecutive_failures = 0

    def failed(self) -> int:
        """Failures in a row, with this one."""
        self.failures += 1
        self.consecutive_failures += 1
        return self.consecutive_failures

    def trouble(self, now: float) -> str | None:
        """Why the thread is not doing its work; None if it is."""
        if self._must_succeed and self.consecutive_failures >= UNHEALTHY_FAILURES:
            return f"the {self._name} thread has failed {self.consecutive_failures} times in a row"
        idle, since = self._now
        if idle or now - since <= self._max_turn:
            return None
        return f"the {self._name} thread has been at one turn for {now - since:.0f} s"


def _nothing() -> None:
    pass


class SupervisedThread:
    """A daemon thread that repeats `turn` until `stop`.

    The worker waits within its turn: with `wait`, or in a block of `idle` where it waits for something else.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], None],
        *,
        on_fatal: Callable[[], None] = _nothing,
        fatal: tuple[type[BaseException], ...] = (),
        retry: Retry = Retry(),
        max_turn: float = MAX_TURN_SECONDS,
        on_end: Callable[[], None] = _nothing,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`fatal` are the exceptions after which the worker cannot go on; the turn has logged them.

        `on_fatal` is called once, on the thread, when it ends without having been stopped. `on_end` is called
        on the thread as its last act, however it ends. `max_turn` is in seconds; time spent waiting does
        not count.
        """
        self.name = name
        self.activity = Activity(name, max_turn, must_succeed=retry.max_failures is not None)
        self._turn = turn
        self._on_fatal = on_fatal
        self._fatal = fatal
        self._retry = retry
        self._on_end = on_end
        self._clock = clock
        self._stop_requested = False
        self._wakeup = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False

    def start(self) -> None:
        self.activity.works(self._clock())
        self._started = True
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether the thread is to end with this turn. Any thread."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Has the thread end with the turn that it is at; does not wait. Any thread, repeatedly."""
        self._stop_requested = True
        self._wakeup.set()

    def stop(self) -> None:
        """`request_stop` and `join`."""
        self.request_stop()
        self.join()

    def join(self) -> None:
        """Waits for the thread's end, if it was started; returns at once on the thread itself."""
        if self._started and threading.current_thread() is not self._thread:
            self._thread.join()

    def wake(self) -> None:
        """Ends the `wait` that the thread is in, or else the next one. Any thread; never waits."""
        self._wakeup.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Idle until `wake` or `stop`, or so long; whether the thread is to stop. On the thread itself."""
        with self.idle():
            self._wakeup.wait(seconds)
        if not self._stop_requested:
            self._wakeup.clear()
        return self._stop_requested

    @contextmanager
    def idle(self) -> Iterator[None]:
        """The thread waits for something to do; no bound applies. On the thread itself."""
        self.activity.waits(self._clock())
        try:
            yield
        finally:
            self.activity.works(self._clock())

    def progress(self) -> None:
        """A turn of many parts, or without an end, has finished one of them. On the thread itself."""
        self.activity.consecutive_failures = 0
        self.activity.works(self._clock())

    def trouble(self) -> str | None:
        """Why the thread does not do its work, for /health/ready; None if it does. Any thread."""
        if not self._started or self._stop_requested:
            return None
        if not self._thread.is_alive():
            return f"the {self.name} thread has died"
        return self.activity.trouble(self._clock())

    def _run(self) -> None:
        try:
            while not self._stop_requested:
                if not self._take_turn():
                    break
        finally:
            try:
                if not self._stop_requested:
                    self._on_fatal()
            finally:
                self._on_end()

    def _take_turn(self) -> bool:
        """Whether the thread goes on."""
        self.activity.works(self._clock())
        try:
            self._turn()
        except self._fatal:
            return False
        except Exception:
            failures = self.activity.failed()
            pause = self._retry.pause(failures)
            if pause is None:
                log.critical("the %s thread failed and cannot go on (%d)", self.name, failures, exc_info=True)
                return False
            log.exception("the %s thread failed (%d in a row), again in %.1f s", self.name, failures, pause)
        else:
            self.activity.succeeded()
            return True
        self.wait(pause)
        return True
