"""`LocalEngine`: computes requests on a thread of this process; `load` starts it with a model.

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

torch is imported by `load` only, so that the scripted engine, the same class with another executor, starts
without it.
"""

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from math import inf
from time import monotonic

from engine.config import EngineConfig, SchedulerLimits
from engine.core.engine_core import EngineCore
from engine.core.step_metrics import EngineMetrics
from engine.core.watchdog import Watchdog
from engine.executor import EngineFault, Executor, StepAbandoned
from engine.front.engine_front import EngineFront
from engine.front.request_registry import RequestRegistry
from engine.request import Deliver, ImageText, OnEngineDeath, RequestRefused, describe
from engine.stats_snapshot import Stats

log = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.0005
"""Seconds; see `sys.setswitchinterval`. The engine thread releases the GIL at every torch operation; with
Python's default of 5 ms, steps beside a busy Python thread take up to three times as long."""

RECOVERY_SECONDS = 60.0
"""A second death within this time is taken for permanent."""


class LocalEngine(EngineFront):
    """Has one engine thread, which starts here and ends with `close`."""

    def __init__(
        self,
        executor: Executor,
        limits: SchedulerLimits,
        deliver: Deliver,
        on_dead: OnEngineDeath = lambda _why: None,
    ) -> None:
        registry = RequestRegistry(limits.max_running + limits.max_waiting, limits.max_per_key)
        super().__init__(
            executor.model_info,
            registry,
            deliver,
            limits.block_size,
            executor.grammars,
            cache_tokens=limits.kv_blocks * limits.block_size,
        )
        self._executor, self._limits, self._on_dead = executor, limits, on_dead
        self._metrics = EngineMetrics(
            limits.kv_blocks, limits.max_running, limits.block_size, executor.model_info.context_length
        )
        self._watchdog = Watchdog(limits.hang_seconds, self._handle_hang)
        self._died_at = -inf
        self._ended = threading.Event()
        self._core = self._make_core()
        # A daemon, so that a program that exits without `close` does not wait for running requests.
        self._thread = threading.Thread(target=self._run, name="holdfast-engine", daemon=True)
        self._watchdog.start()
        self._thread.start()

    def _make_core(self) -> EngineCore:
        deliver = self._beam_requests.deliver
        return EngineCore(
            self._executor, self._limits, self._registry, deliver, self._metrics, self._watchdog
        )

    def _image_text(self, data: bytes, digest: bytes, cache_salt: str) -> ImageText:
        text = self._executor.image_text(data, digest, cache_salt)
        longest = self.model_info.context_length
        if text.tokens >= longest:
            raise RequestRefused(
                "bad_image", f"The picture takes {text.tokens} tokens; the model can hold {longest} in all."
            )
        return text

    def _snapshot(self) -> Stats:
        return replace(self._metrics.stats, requests=self._metrics.requests.stats)

    def _wait_until_ended(self) -> None:
        self._executor.interrupt()
        if threading.current_thread() is not self._thread:
            self._ended.wait()
            self._watchdog.join()
            if not self._watchdog.abandoned:  # else it hangs
                self._thread.join()
        self._executor.close()

    def _run(self) -> None:
        sys.setswitchinterval(min(SWITCH_INTERVAL, sys.getswitchinterval()))
        cause = self._core.run()
        while cause is not None and not isinstance(cause, StepAbandoned) and self._handle_death(cause):
            # Its traceback refers to frames of the failed step, and so to its tensors.
            cause = None
            self._core = self._make_core()
            cause = self._core.run(after_death=True)
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
        self._core.fail_all(cause)
        if final and not closing and not owner_notified:
            self._notify_owner(cause)
        return not final and not closing

    def _handle_hang(self) -> None:
        """Called on the watchdog thread. The engine thread, should its step return, ends without messages."""
        fault = EngineFault(f"A step took longer than {self._limits.hang_seconds} seconds.")
        log.error("%s", fault)
        if self._core.delivering:
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


def load(
    config: EngineConfig,
    deliver: Deliver,
    progress: Callable[[str], None] = lambda _line: None,
    on_dead: OnEngineDeath = lambda _why: None,
) -> LocalEngine:
    """Loads the model (seconds to minutes; `progress` gets a line for each stage) and starts the engine.

    Raises `config.ModelRefused` for a model that is not supported or cannot be loaded.
    """
    from engine.runner.load_runner import load_runner  # imports torch

    executor, limits = load_runner(config, progress)
    return LocalEngine(executor, limits, deliver, on_dead)
