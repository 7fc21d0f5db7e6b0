"""`LocalEngine`: computes requests on a thread of this process; `load` starts it with a model.

Steps run on the engine thread (`core.engine_core`). torch is imported by `load` only, so that the scripted
engine, the same class with another executor, starts without it.
"""

from collections.abc import Callable
from dataclasses import replace

from engine.config import EngineConfig, SchedulerLimits
from engine.core.engine_core import EngineCore
from engine.core.engine_metrics import EngineMetrics
from engine.core.supervisor import Supervisor
from engine.executor import Executor
from engine.front.engine_front import EngineFront
from engine.front.request_registry import RequestRegistry
from engine.request import Deliver, ImageText, OnEngineDeath, RequestRefused
from engine.statistics import Stats


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
        self._executor = executor
        self._metrics = EngineMetrics(
            limits.kv_blocks, limits.max_running, limits.block_size, executor.model_info.context_length
        )
        self._supervisor = Supervisor(
            lambda watchdog: EngineCore(
                executor, limits, registry, self._beam_requests.deliver, self._metrics, watchdog
            ),
            registry,
            self._metrics,
            on_dead,
            limits.hang_seconds,
        )
        self._supervisor.start()

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
        self._supervisor.wait_until_ended()
        self._executor.close()


def load(
    config: EngineConfig,
    deliver: Deliver,
    progress: Callable[[str], None] = lambda _line: None,
    on_dead: OnEngineDeath = lambda _why: None,
) -> LocalEngine:
    """Loads the model (seconds to minutes; `progress` gets a line for each stage) and starts the engine.

    Raises `config.ModelRefused` for a model that is not supported or cannot be loaded.
    """
    from engine.runner.model_runner import ModelRunner  # imports torch

    executor, limits = ModelRunner.load(config, progress)
    return LocalEngine(executor, limits, deliver, on_dead)
