"""The lives and deaths of the engine thread.

One thread runs an `EngineCore`, which ends when it is closed or when something breaks that is not one
request's fault. Every death is told to every request at once. After a first death a new loop goes on with
the same executor, its cache emptied. It is final, and the owner is told so, when

- it follows another one within `RECOVERY_SECONDS`,
- the executor says that nothing can be computed any more (`EngineFault`: the device failed), or
- a step hangs, or what the host does between two, the delivery included: the executor cannot be used from
  another thread while it is in use.

    living --closed--> ended
      |  ^--(again)--|
      +----dies------+--(final)--> dead
"""

import logging
import sys
import threading
from collections.abc import Callable
from math import inf
from time import monotonic

from engine.core.engine_core import EngineCore
from engine.core.metrics import EngineMetrics
from engine.core.request_registry import RequestRegistry
from engine.core.watchdog import StepAbandoned, Watchdog
from engine.executor import EngineFault
from engine.request import OnEngineDeath

log = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.0005
"""Seconds a busy Python thread may keep the GIL from the engine thread, which gives it up at every
torch operation; Python's default of 5 ms makes steps up to three times as long beside such a thread."""

RECOVERY_SECONDS = 60.0
"""Two deaths within this time have a cause that will not go away by itself."""


class Supervisor:
    """Owns the engine thread, which starts with `start`, and the one that watches it."""

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
        """The present one, or the last."""
        # A daemon: a program that ends without `close` must not hang on a running request.
        self._thread = threading.Thread(target=self._run, name="holdfast-engine", daemon=True)

    def start(self) -> None:
        self._watchdog.start()
        self._thread.start()

    def wait_until_ended(self) -> None:
        """Returns at once on the threads that are waited for, and without the one that hangs."""
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
            # Its traceback has the frames of the life that ended, and they have its tensors.
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
        """Tells of a death; whether there may be another life."""
        now = monotonic()
        closing = self._registry.closed
        final = isinstance(cause, EngineFault) or now - self._died_at < RECOVERY_SECONDS
        self._died_at = now
        self._metrics.record_death()
        if final:
            self._registry.close("The engine died.")
        self.core.fail_all(cause)
        if final and not closing and not owner_notified:
            self._notify_owner(cause)
        return not final and not closing

    def _handle_hang(self) -> None:
        """On the watchdog's thread. The engine thread, should it come back from its step, ends silently."""
        log.error("%s", self._hang_message)
        fault = EngineFault(self._hang_message)
        if self.core.delivering:
            # Whoever listens does not come back to hear more, so the owner is told by another way.
            self._notify_owner(fault)
            self._mark_ended()
            self._handle_death(fault, owner_notified=True)
        else:
            self._handle_death(fault)
            self._mark_ended()

    def _notify_owner(self, cause: BaseException) -> None:
        try:
            self._on_dead(f"{type(cause).__name__}: {cause}")
        except Exception:
            log.exception("the owner failed to take note of the engine's death")
