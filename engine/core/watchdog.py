"""Tells from outside when a step of the engine thread hangs, or what it does between steps.

The engine thread enters and leaves the watchdog around each turn, and around each step within it, which has
the whole time for itself, as what is left of the turn has; a thread of its own sleeps until that would be
overdue. Both agree, under a lock, on whether a step ended in time: once it is declared lost, the
engine thread learns so when it comes back, and must not say a word any more. Ignorant of requests.
"""

import threading
from collections.abc import Callable
from time import monotonic
from types import TracebackType

LONGEST_SLEEP = 3600.0
"""Seconds; threading cannot wait for ever by a number."""


class StepAbandoned(BaseException):
    """The step that the engine thread comes back from was declared lost; all was said without it."""


class Watchdog:
    """Calls `on_hang` once, on a thread of its own, when a step takes longer than `timeout` seconds."""

    def __init__(self, timeout: float, on_hang: Callable[[], None]) -> None:
        self._timeout = timeout
        self._on_hang = on_hang
        self._lock = threading.Lock()
        self._entered_at: float | None = None
        self._depth = 0
        self._abandoned = False
        self._stopped = False
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="holdfast-watchdog", daemon=True)

    @property
    def abandoned(self) -> bool:
        """A step was declared lost, and the engine thread with it."""
        return self._abandoned

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Lets the thread end; idempotent."""
        self._stopped = True
        self._stop_event.set()

    def join(self) -> None:
        """Waits for the thread's end, unless it is the one that calls."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            self._entered_at = monotonic()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._depth -= 1
            self._entered_at = monotonic() if self._depth else None
            if self._abandoned:
                raise StepAbandoned

    def _watch(self) -> None:
        while not self._stopped:
            if self._stop_event.wait(self._sleep_seconds()):
                self._stop_event.clear()
            elif self._abandon_if_overdue():
                self._on_hang()
                return

    def _sleep_seconds(self) -> float:
        """A step that begins after this was asked cannot be overdue before the sleep ends."""
        with self._lock:
            waited = 0.0 if self._entered_at is None else monotonic() - self._entered_at
        return min(max(self._timeout - waited, 0.001), LONGEST_SLEEP)

    def _abandon_if_overdue(self) -> bool:
        with self._lock:
            self._abandoned = self._entered_at is not None and monotonic() - self._entered_at > self._timeout
            return self._abandoned
