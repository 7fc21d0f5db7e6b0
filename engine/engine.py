"""`ThreadedEngine`: validates and submits requests to the engine thread; `load` starts it with a model.

Any thread; steps run on the engine thread (`core.engine_core`). torch is imported by `load` only, so that the
scripted engine, the same class with another executor, starts without it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import monotonic

from engine.config import EngineConfig, Limits
from engine.core.beam_search import BeamRequests
from engine.core.engine_core import EngineCore
from engine.core.metrics import EngineMetrics
from engine.core.request_registry import AcceptedRequest, Close, RequestRegistry, Resumed
from engine.core.supervisor import Supervisor
from engine.executor import Executor
from engine.grammar.compiler import CompiledGrammar, check_grammar
from engine.request import (
    Cancel,
    CancelReason,
    CheckedRequest,
    Deliver,
    EngineRequest,
    ImageText,
    ModelInfo,
    OnEngineDeath,
    RequestRefused,
)
from engine.scheduling.block_pool import extend_chain
from engine.statistics import Stats
from engine.validation import clamped, refuse_bad_images, refuse_bad_request


class ThreadedEngine:
    """Implements `request.Engine` with one engine thread, which starts here and ends with `close`."""

    def __init__(
        self,
        executor: Executor,
        limits: Limits,
        deliver: Deliver,
        on_dead: OnEngineDeath = lambda _why: None,
    ) -> None:
        self._executor = executor
        self._limits = limits
        self._registry = RequestRegistry(limits.max_running + limits.max_waiting, limits.max_per_key)
        self._metrics = EngineMetrics(
            limits.kv_blocks, limits.max_running, limits.block_size, executor.model_info.context_length
        )
        self._beam_requests = BeamRequests(
            self._registry, partial(self._accept, has_place=True), self._cancel, deliver, limits.block_size
        )
        self._supervisor = Supervisor(
            lambda watchdog: EngineCore(
                executor, limits, self._registry, self._beam_requests.deliver, self._metrics, watchdog
            ),
            self._registry,
            self._metrics,
            on_dead,
            limits.hang_seconds,
        )
        self._supervisor.start()

    @property
    def model_info(self) -> ModelInfo:
        return self._executor.model_info

    def check(self, request: EngineRequest) -> CheckedRequest:
        """The request for `submit`. Raises `RequestRefused` if it could never run.

        Any thread; compiles a new grammar.
        """
        model_info = self.model_info
        refuse_bad_request(request, model_info)
        total = len(request.prompt) + request.max_tokens
        room = self._limits.kv_blocks * self._limits.block_size
        if total > room:
            raise RequestRefused("too_long", f"{total} tokens are more than the KV cache can hold, {room}.")
        refuse_bad_images(request, model_info, self.image_text)
        grammar = None if request.grammar is None else check_grammar(request, self._executor.grammars)
        return CheckedRequest(clamped(request), grammar)

    def image_text(self, data: bytes, cache_salt: str = "") -> ImageText:
        """How a picture is written in a prompt. Raises `RequestRefused`; any thread, up to 1 s of CPU."""
        text = self._executor.image_text(data, hashlib.sha256(data).digest(), cache_salt)
        longest = self.model_info.context_length
        if text.tokens >= longest:
            raise RequestRefused(
                "bad_image", f"The picture takes {text.tokens} tokens; the model can hold {longest} in all."
            )
        return text

    def submit(self, request: EngineRequest | CheckedRequest) -> None:
        """Queues the request, which is checked first if it was not. Raises `RequestRefused`.

        Any thread; hashes the prompt's blocks on that thread.
        `overloaded` if max_running + max_waiting requests are unfinished, `share_full` if max_per_key
        requests of this fairness key are.
        """
        checked = request if isinstance(request, CheckedRequest) else self.check(request)
        request = checked.request
        if request.beams is not None:
            self._beam_requests.submit(request)
            return
        self._registry.check(request)  # before its blocks are hashed
        self._accept(request, self._digest(request), checked.grammar)

    def _accept(
        self,
        request: EngineRequest,
        digests: list[bytes],
        grammar: CompiledGrammar | None = None,
        *,
        has_place: bool = False,
    ) -> None:
        due = None if request.deadline_seconds is None else monotonic() + request.deadline_seconds
        self._registry.accept(AcceptedRequest(request, digests, due, grammar, has_place))

    def cancel(self, request_id: str, reason: CancelReason = "cancelled") -> None:
        """Ends the request; `stop`: its output is complete. Unknown ids are ignored. Any thread."""
        if not self._beam_requests.cancel(request_id):
            self._cancel(request_id, reason)

    def _cancel(self, request_id: str, reason: CancelReason = "cancelled") -> None:
        self._registry.inbox.put(Cancel(request_id, reason))

    def set_paused(self, paused: bool) -> None:
        """While paused, no step begins. Idempotent; any thread."""
        self._registry.paused = paused
        if not paused:
            self._registry.inbox.put(Resumed())

    def stats(self) -> Stats:
        """A snapshot; `waiting` counts accepted requests that are not running. Any thread."""
        snapshot = self._metrics.stats
        return replace(
            snapshot,
            waiting=max(0, len(self._registry) - snapshot.running),
            paused=self._registry.paused,
            requests=self._metrics.requests.stats,
        )

    def close(self, *, drain: bool) -> None:
        """Ends the engine thread: after the accepted requests (`drain`), or after cancelling them.

        Idempotent; a call without `drain` ends a drain in progress. Returns when the thread has ended, unless
        called on that thread by `deliver`.
        """
        self._registry.close("The engine is closed.")
        self._registry.inbox.put(Close(drain))
        self._executor.interrupt()
        self._supervisor.wait_until_ended()
        self._executor.close()

    def _digest(self, request: EngineRequest) -> list[bytes]:
        size = self._limits.block_size
        chain: list[bytes] = []
        try:
            extend_chain(
                chain,
                request.cache_salt,
                request.prompt,
                len(request.prompt) // size,
                size,
                request.adapter,
                request.images,
            )
        except (AttributeError, TypeError):
            return []  # malformed; the engine thread runs into the same error and fails the request
        return chain


def load(
    config: EngineConfig,
    deliver: Deliver,
    progress: Callable[[str], None] = lambda _line: None,
    on_dead: OnEngineDeath = lambda _why: None,
) -> ThreadedEngine:
    """Loads the model (seconds to minutes; `progress` gets a line for each stage) and starts the engine.

    Raises `config.ModelRefused` for a model that is not supported or cannot be loaded.
    """
    from engine.runner.model_runner import ModelRunner  # imports torch

    executor, limits = ModelRunner.load(config, progress)
    return ThreadedEngine(executor, limits, deliver, on_dead)
