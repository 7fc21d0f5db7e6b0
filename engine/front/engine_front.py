"""`EngineFront`: checks, accepts and cancels requests on any thread, for the engine thread behind it."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial

from engine.front.beam_search import BeamRequests
from engine.front.request_registry import AcceptedRequest, Close, Inbound, RequestRegistry
from engine.front.validation import clamped, refuse_bad_images, refuse_bad_request
from engine.grammar.compiler import CompiledGrammar, GrammarCompiler, check_grammar
from engine.request import (
    Cancel,
    CancelReason,
    CheckedRequest,
    Deliver,
    EngineRequest,
    ImageText,
    ModelInfo,
    RequestRefused,
)
from engine.scheduling.block_pool import extend_chain
from engine.stats_snapshot import Stats


class EngineFront(ABC):
    """Implements `request.Engine`. A subclass runs the thread that reads the registry's inbox."""

    def __init__(
        self,
        model_info: ModelInfo,
        registry: RequestRegistry,
        deliver: Deliver,
        block_size: int,
        grammars: GrammarCompiler | None,
        cache_tokens: int | None = None,
    ) -> None:
        """The thread delivers to `_beam_requests.deliver`. `grammars` is None without a tokenizer.

        `cache_tokens` is the number of tokens that the KV cache can hold; None if it is not known here.
        """
        self._cache_tokens = cache_tokens
        self.model_info = model_info
        self._registry = registry
        self._grammars = grammars
        self._block_size = block_size
        self._beam_requests = BeamRequests(
            registry, partial(self._accept, has_place=True), self._cancel, deliver, block_size
        )

    def check(self, request: EngineRequest) -> CheckedRequest:
        """Compiles a new grammar, so not on the engine's thread."""
        refuse_bad_request(request, self.model_info)
        self._refuse_unsupported(request)
        refuse_bad_images(request, self.model_info, self.image_text)
        grammar = None if request.grammar is None else check_grammar(request, self._grammars)
        return CheckedRequest(clamped(request), grammar)

    def _refuse_unsupported(self, request: EngineRequest) -> None:
        """Raises `RequestRefused` for a valid request that this engine can never run."""
        total, room = len(request.prompt) + request.max_tokens, self._cache_tokens
        if room is not None and total > room:
            raise RequestRefused("too_long", f"{total} tokens are more than the KV cache can hold, {room}.")

    def image_text(self, data: bytes, cache_salt: str = "") -> ImageText:
        return self._image_text(data, hashlib.sha256(data).digest(), cache_salt)

    @abstractmethod
    def _image_text(self, data: bytes, digest: bytes, cache_salt: str) -> ImageText:
        """`digest` is the SHA-256 of `data`."""

    def submit(self, request: EngineRequest | CheckedRequest) -> None:
        """Hashes the prompt's blocks on the caller's thread. Raises `RequestRefused`: `overloaded` if as many
        requests are unfinished as may run and wait, `share_full` if as many of this fairness key as may be.
        """
        checked = request if isinstance(request, CheckedRequest) else self.check(request)
        request = checked.request
        if request.beams is not None:
            self._beam_requests.submit(request)
            return
        self._registry.check(request)  # before its blocks are hashed
        self._accept(request, self._digests(request), checked.grammar)

    def _digests(self, request: EngineRequest) -> list[bytes]:
        chain: list[bytes] = []
        blocks = len(request.prompt) // self._block_size
        try:
            extend_chain(chain, request, request.prompt, blocks, self._block_size)
        except (AttributeError, TypeError):
            return []  # malformed; the engine thread runs into the same error and fails the request
        return chain

    def _accept(
        self,
        request: EngineRequest,
        digests: list[bytes],
        grammar: CompiledGrammar | None = None,
        *,
        has_place: bool = False,
    ) -> None:
        self._registry.accept(AcceptedRequest(request, digests, grammar, has_place))
        self._wake()

    def cancel(self, request_id: str, reason: CancelReason = "cancelled") -> None:
        if not self._beam_requests.cancel(request_id):
            self._cancel(request_id, reason)

    def _cancel(self, request_id: str, reason: CancelReason = "cancelled") -> None:
        self._send(Cancel(request_id, reason))

    def set_paused(self, paused: bool) -> None:
        self._registry.paused = paused
        self._send(None)

    def stats(self) -> Stats:
        snapshot = self._snapshot()
        waiting = max(0, len(self._registry) - snapshot.running)
        return replace(snapshot, waiting=waiting, paused=self._registry.paused)

    @abstractmethod
    def _snapshot(self) -> Stats:
        """The thread's own figures, without `waiting` and `paused`."""

    def close(self, *, drain: bool) -> None:
        """Ends the engine thread: after the accepted requests (`drain`), or after cancelling them.

        Idempotent; a call without `drain` ends a drain in progress. Returns when the thread has ended, unless
        called on that thread by `deliver`.
        """
        self._registry.close("The engine is closed.")
        self._send(Close(drain))
        self._wait_until_ended()

    @abstractmethod
    def _wait_until_ended(self) -> None:
        """Joins the thread and releases resources; not on that thread itself."""

    def _send(self, message: Inbound) -> None:
        self._registry.inbox.put(message)
        self._wake()

    def _wake(self) -> None:  # noqa: B027  # most threads wait for messages in their inbox
        """Has the thread read its inbox, where it does not wait for messages there anyway."""
