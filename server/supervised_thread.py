"""Background threads that survive unexpected exceptions, their state for /health/ready, and stalls of all.

Every background thread of the server repeats one turn until it is stopped. An exception that a turn does not
handle is logged and counted, and the turn is repeated after a pause that doubles. After too many consecutive
failures, or after an exception that the worker declares fatal, `on_fatal` is called, which ends the process
so that its supervisor restarts it. A thread that has died, fails repeatedly or stays in one turn for too
long has a `trouble`.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

log = logging.getLogger("holdfast.threads")
stall_log = logging.getLogger("holdfast.stalls")

MAX_TURN_SECONDS = 60.0
"""Several times the longest turn: a few statements, each of which ends after 6 s at the latest."""
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 30.0
MAX_FAILURES = 20
"""Consecutive failures; with the pauses between them they take about six minutes."""
UNHEALTHY_FAILURES = 5
"""Consecutive failures from which on a thread has a `trouble`."""
TICK_SECONDS = 0.1
COUNTED_SECONDS = 0.1
"""The delay from which a late wake-up counts as a stall."""
LOGGED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Retry:
    """The number of times that a failed turn is repeated, and the pauses before."""

    max_failures: int | None = MAX_FAILURES
    """Consecutive failures; the next one is fatal. None: repeated for ever, without a `trouble`."""
    max_pause: float = MAX_PAUSE_SECONDS

    def pause(self, failures: int) -> float | None:
        """Seconds until the next try after so many consecutive failures; None if there is none."""
        if self.max_failures is not None and failures > self.max_failures:
            return None
        return min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 32), self.max_pause)


class SupervisedThread:
    """A daemon thread that repeats `turn` until `stop`.

    The turn itself waits for work: with `wait`, or inside `with idle()` for anything else.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], None],
        *,
        on_fatal: Callable[[], None] = lambda: None,
        fatal: tuple[type[BaseException], ...] = (),
        retry: Retry = Retry(),
        max_turn: float = MAX_TURN_SECONDS,
        on_end: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`fatal`: exceptions after which the worker cannot continue; the turn has logged them.

        `on_fatal` is called once, on the thread, when it ends without `stop`. `on_end` is the thread's last
        call, however it ends. `max_turn` is in seconds; idle time does not count.
        """
        self.name = name
        self.failures = 0
        """Turns that ended with an unexpected exception."""
        self.consecutive_failures = 0
        self._busy_since: float | None = None
        """When the current turn began or made progress; None while the thread waits for something to do."""
        self._max_turn = max_turn
        self._turn = turn
        self._on_fatal = on_fatal
        self._fatal = fatal
        self._retry = retry
        self._on_end = on_end
        self._clock = clock
        self._stop_requested = False
        self._wakeup = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._busy_since = self._clock()
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether the thread ends with this turn. Any thread."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Ends the thread after the current turn; does not wait. Any thread, repeatedly."""
        self._stop_requested = True
        self._wakeup.set()

    def stop(self) -> None:
        """`request_stop` and `join`."""
        self.request_stop()
        self.join()

    def join(self, seconds: float | None = None) -> None:
        """Waits for the thread's end, if it was started; returns at once on the thread itself."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def wake(self) -> None:
        """Ends the current `wait`, or the next one. Any thread; never waits."""
        self._wakeup.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Idle until `wake`, `stop` or the time-out; returns `stopping`. On the thread itself."""
        with self.idle():
            self._wakeup.wait(seconds)
        if not self._stop_requested:
            self._wakeup.clear()
        return self._stop_requested

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Marks the thread as idle, without a maximum duration. On the thread itself."""
        self._busy_since = None
        try:
            yield
        finally:
            self._busy_since = self._clock()

    def progress(self) -> None:
        """A long or endless turn has finished one of its parts. On the thread itself."""
        self.consecutive_failures = 0
        self._busy_since = self._clock()

    def trouble(self) -> str | None:
        """Why the thread is not working, for /health/ready; None if it is. Any thread."""
        if self._thread.ident is None or self._stop_requested:  # it was not started, or is to end
            return None
        if not self._thread.is_alive():
            return f"the {self.name} thread has died"
        if self._retry.max_failures is not None and self.consecutive_failures >= UNHEALTHY_FAILURES:
            return f"the {self.name} thread has failed {self.consecutive_failures} times in a row"
        since = self._busy_since
        if since is None or (seconds := self._clock() - since) <= self._max_turn:
            return None
        return f"the {self.name} thread has been at one turn for {seconds:.0f} s"

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
        """Runs one turn; returns whether the thread continues."""
        self._busy_since = self._clock()
        try:
            self._turn()
        except self._fatal:
            return False
        except Exception:
            self.failures += 1
            self.consecutive_failures = failures = self.consecutive_failures + 1
            pause = self._retry.pause(failures)
            if pause is None:
                log.critical("the %s thread failed and cannot go on (%d)", self.name, failures, exc_info=True)
                return False
            log.exception("the %s thread failed (%d in a row), again in %.1f s", self.name, failures, pause)
        else:
            self.consecutive_failures = 0
            return True
        self.wait(pause)
        return True


class Worker:
    """Does its work on a thread of its own, between `start` and `stop`."""

    thread: SupervisedThread

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.thread.stop()


@dataclass(frozen=True, slots=True)
class Stalls:
    """The stalls since the process started."""

    count: int = 0
    total_seconds: float = 0.0
    longest_seconds: float = 0.0


class StallWatch(Worker):
    """The thread that measures stalls: times in which no thread of this process could run.

    Native code that keeps the GIL stops every thread at once, also the heartbeat and the health check. A
    thread that wakes up ten times a second sees each stall as a late wake-up. A suspended process looks the
    same. Any thread may read `stalls`.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.stalls = Stalls()
        self._clock = clock
        self.thread = SupervisedThread("stall watch", self._turn, retry=Retry(max_failures=None))

    def _turn(self) -> None:
        began = self._clock()
        self.thread.wait(TICK_SECONDS)
        self.add_wait(self._clock() - began)

    def add_wait(self, seconds: float) -> None:
        """Counts a wait of one tick that took so many seconds."""
        late = seconds - TICK_SECONDS
        if late < COUNTED_SECONDS:
            return
        stalls = self.stalls
        longest = max(stalls.longest_seconds, late)
        self.stalls = Stalls(stalls.count + 1, stalls.total_seconds + late, longest)
        if late >= LOGGED_SECONDS:
            stall_log.warning("the interpreter stood still for %.1f s; no thread could run", late)
