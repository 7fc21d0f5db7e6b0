"""`Watchdog`: detects a hang of the engine thread, in a step or between two, from a thread of its own.

The engine thread enters the watchdog as a context manager around each iteration, and again around each step
within it; entering and leaving restart the timeout. The watchdog thread sleeps until the timeout could pass.
Under a lock, either the engine thread leaves in time or the watchdog declares it abandoned; then leaving
raises `StepAbandoned`, and the engine thread must not deliver messages any more.
"""

import threading
from collections.abc import Callable
from time import monotonic
from types import TracebackType

LONGEST_SLEEP = 3600.0
"""Seconds; `Event.wait` raises OverflowError for very large timeouts."""


class StepAbandoned(BaseException):
    """Raised on the engine thread when a step returns after the watchdog has failed all requests."""


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
        """A hang was declared; the engine thread may never return."""
        return self._abandoned

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the watchdog thread; idempotent."""
        self._stopped = True
        self._stop_event.set()

    def join(self) -> None:
        """Waits for the watchdog thread to end, unless called on it."""
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
        """Seconds until the earliest possible timeout, also of a step that begins later."""
        with self._lock:
            waited = 0.0 if self._entered_at is None else monotonic() - self._entered_at
        return min(max(self._timeout - waited, 0.001), LONGEST_SLEEP)

    def _abandon_if_overdue(self) -> bool:
        with self._lock:
            self._abandoned = self._entered_at is not None and monotonic() - self._entered_at > self._timeout
            return self._abandoned
