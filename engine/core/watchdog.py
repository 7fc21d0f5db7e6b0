"""`Watchdog`: detects that a step of the engine thread hangs, on a thread of its own."""

import threading
from collections.abc import Callable
from time import monotonic

from engine.executor import StepAbandoned

LONGEST_SLEEP = 3600.0
"""Seconds; `Event.wait` raises OverflowError for very large timeouts."""


class Watchdog:
    """Calls `on_hang` once, on a thread of its own, when a step takes longer than `timeout` seconds.

    The engine thread enters the watchdog as a context manager around each iteration, and again around each
    step and each delivery within it; entering and leaving restart the timeout. Under a lock, either the
    engine thread enters or leaves in time or the watchdog declares it abandoned; then both raise
    `StepAbandoned`, and the engine thread must not deliver messages any more.
    """

    def __init__(self, timeout: float, on_hang: Callable[[], None]) -> None:
        self._timeout = timeout
        self._on_hang = on_hang
        self._lock = threading.Lock()
        self._entered_at: float | None = None
        self._depth = 0
        self.abandoned = False
        """A hang was declared; the engine thread may never return."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="holdfast-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def join(self) -> None:
        """Waits for the watchdog thread to end, unless called on it."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> None:
        with self._lock:
            if self.abandoned:
                raise StepAbandoned
            self._depth += 1
            self._entered_at = monotonic()

    def __exit__(self, *_raised: object) -> None:
        with self._lock:
            self._depth -= 1
            self._entered_at = monotonic() if self._depth else None
            if self.abandoned:
                raise StepAbandoned

    def _watch(self) -> None:
        seconds = self._timeout
        while not self._stopping.wait(min(max(seconds, 0.001), LONGEST_SLEEP)):
            with self._lock:
                entered_at, now = self._entered_at, monotonic()
                self.abandoned = entered_at is not None and now - entered_at > self._timeout
            if self.abandoned:
                self._on_hang()
                return
            # Until the earliest possible timeout, also of a step that begins later.
            seconds = self._timeout if entered_at is None else entered_at + self._timeout - now
