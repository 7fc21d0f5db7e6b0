"""`Supervisor` starts the engine thread, restarts it after a death; `Watchdog` detects a hang of it.

The thread runs an `EngineCore`, which ends when it is closed or dies of an error that no single request has
caused. A death fails every unfinished request at once. After a first death a new `EngineCore` continues with
the same executor and an empty cache. A death is final, and is reported to the owner, when

- it follows another one within `RECOVERY_SECONDS`,
- the executor raises `EngineFault` (the device has failed), or
- a step hangs, or the host's work between two steps, delivery included: the executor cannot be used by a new
  thread while the hanging one uses it.

    running --closed--> ended
      |  ^--(restart)--|
      +----dies--------+--(final)--> dead
"""

import logging
import sys
import threading
from collections.abc import Callable
from math import inf
from time import monotonic

from engine.core.engine_core import EngineCore
from engine.core.engine_metrics import EngineMetrics
from engine.executor import EngineFault, StepAbandoned
from engine.front.request_registry import RequestRegistry
from engine.request import OnEngineDeath, describe

log = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.0005
"""Seconds; see `sys.setswitchinterval`. The engine thread releases the GIL at every torch operation; with
Python's default of 5 ms, steps beside a busy Python thread take up to three times as long."""

RECOVERY_SECONDS = 60.0
"""A second death within this time is taken for permanent."""

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
        left = self._timeout
        while not self._stopping.wait(min(max(left, 0.001), LONGEST_SLEEP)):
            with self._lock:
                entered_at, now = self._entered_at, monotonic()
                self.abandoned = entered_at is not None and now - entered_at > self._timeout
            if self.abandoned:
                self._on_hang()
                return
            # Until the earliest possible timeout, also of a step that begins later.
            left = self._timeout if entered_at is None else entered_at + self._timeout - now


class Supervisor:
    def __init__(
        self,
        make_core: Callable[[Watchdog], EngineCore],
        registry: RequestRegistry,
        metrics: EngineMetrics,
        on_dead: OnEngineDeath,
        hang_seconds: float,
    ) -> None:
        self._make_core = make_core
        self._registry = registry
        self._metrics = metrics
        self._on_dead = on_dead
        self._hang_message = f"A step took longer than {hang_seconds} seconds."
        self._watchdog = Watchdog(hang_seconds, self._handle_hang)
        self._died_at = -inf
        self._ended = threading.Event()
        self.core = make_core(self._watchdog)
        # A daemon, so that a program that exits without `close` does not wait for running requests.
        self._thread = threading.Thread(target=self._run, name="holdfast-engine", daemon=True)

    def start(self) -> None:
        self._watchdog.start()
        self._thread.start()

    def wait_until_ended(self) -> None:
        """Joins both threads, except the calling one and a hanging engine thread."""
        if threading.current_thread() is self._thread:
            return
        self._ended.wait()
        self._watchdog.join()
        if not self._watchdog.abandoned:
            self._thread.join()

    def _run(self) -> None:
        sys.setswitchinterval(min(SWITCH_INTERVAL, sys.getswitchinterval()))
        cause = self.core.run()
        while cause is not None and not isinstance(cause, StepAbandoned) and self._handle_death(cause):
            # Its traceback refers to frames of the failed step, and so to its tensors.
            cause = None
            self.core = self._make_core(self._watchdog)
            cause = self.core.run(after_death=True)
        if not isinstance(cause, StepAbandoned):
            self._mark_ended()

    def _mark_ended(self) -> None:
        self._metrics.mark_ended()
        self._watchdog.stop()
        self._ended.set()

    def _handle_death(self, cause: BaseException, *, owner_notified: bool = False) -> bool:
        """Fails all requests; returns whether a restart follows."""
        now = monotonic()
        closing = self._registry.closed
        final = isinstance(cause, EngineFault) or now - self._died_at < RECOVERY_SECONDS
        self._died_at = now
        self._metrics.mark_ended(deaths=1)
        if final:
            self._registry.close("The engine died.")
        self.core.fail_all(cause)
        if final and not closing and not owner_notified:
            self._notify_owner(cause)
        return not final and not closing

    def _handle_hang(self) -> None:
        """Called on the watchdog thread. The engine thread, should its step return, ends without messages."""
        log.error("%s", self._hang_message)
        fault = EngineFault(self._hang_message)
        if self.core.delivering:
            # The deliver callback itself hangs, so that calling it with failures may block: notify first.
            self._mark_ended()
            self._notify_owner(fault)
            self._handle_death(fault, owner_notified=True)
        else:
            self._handle_death(fault)
            self._mark_ended()

    def _notify_owner(self, cause: BaseException) -> None:
        try:
            self._on_dead(describe(cause))
        except Exception:
            log.exception("the on_dead callback failed")
