"""`RemoteEngine`: `request.Engine` over engine servers, with one thread that runs an event loop.

Any thread checks, submits and cancels; what happens on the event loop is in `request_loop` and `fleet`.
"""

import asyncio
import hashlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic

from engine.core.beam_search import BeamRequests
from engine.core.request_registry import AcceptedRequest, Close, RequestRegistry
from engine.grammar.compiler import CompiledGrammar, GrammarCompiler, check_grammar
from engine.remote.config import RemoteConfig
from engine.remote.generation import LocalMasks
from engine.remote.interface import EngineFault, EngineProtocol, ImageFile
from engine.remote.model_folder import ModelFolder
from engine.remote.remote_metrics import RemoteMetrics
from engine.remote.request_loop import RequestLoop
from engine.remote.server_images import ServerImages
from engine.remote.servers.fleet import IMAGE_SECONDS, Fleet
from engine.remote.servers.http_client import EngineClient
from engine.request import (
    Cancel,
    CancelReason,
    CheckedRequest,
    Deliver,
    EngineRequest,
    ImageText,
    ModelInfo,
    OnEngineDeath,
    RefusalReason,
    RequestRefused,
    describe,
)
from engine.sampling.token_masks import GrammarMatchers, TokenRules
from engine.scheduling.block_pool import extend_chain
from engine.statistics import Stats
from engine.validation import clamped, refuse_bad_images, refuse_bad_request

log = logging.getLogger(__name__)

BLOCK_SIZE = 16
"""Tokens of a block, whose digest stands for the prefix that ends with it."""
IMAGE_ANSWER_SECONDS = IMAGE_SECONDS + 5.0
"""For the answer to how many tokens a picture has: the server's time, and some of the event loop. A loop that
is about to close drops the question without a word."""


class RemoteEngine:
    """Implements `request.Engine`. The constructor raises ValueError for malformed URLs."""

    def __init__(
        self,
        config: RemoteConfig,
        protocol: EngineProtocol,
        folder: ModelFolder,
        deliver: Deliver,
        on_dead: OnEngineDeath = lambda _why: None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._features = protocol.features
        self._on_dead = on_dead
        self._model_info = folder.model_info
        self._grammars = None
        if folder.vocabulary is not None:
            vocabulary = folder.vocabulary
            if protocol.features.grammars:
                self._model_info = replace(folder.model_info, grammar_token_ids=vocabulary.markup)
                vocabulary = replace(vocabulary, special=vocabulary.special | vocabulary.markup)
            self._grammars = GrammarCompiler(vocabulary)
        vocab_size = folder.model_info.vocab_size
        self._max_running = config.max_running
        self._registry = RequestRegistry(config.max_running + config.max_waiting, config.max_per_key)
        self._beam_requests = BeamRequests(
            self._registry, partial(self._accept, has_place=True), self._cancel, deliver, BLOCK_SIZE
        )
        self._metrics = RemoteMetrics(folder.model_info.context_length)
        if protocol.images is None:
            self._model_info = replace(self._model_info, image_token_id=None, image_placeholder=None)
        self._images = ServerImages(
            self._model_info.image_token_id, self._model_info.image_placeholder, self._image_tokens
        )
        self._client = EngineClient(
            protocol, config.api_key, config.ca_file, config.silence_seconds, config.trace_parent_of
        )
        self._fleet = Fleet(config, protocol, self._client, folder)
        self._requests = RequestLoop(
            self._registry,
            self._fleet,
            self._client,
            protocol.features,
            LocalMasks(GrammarMatchers(self._grammars), TokenRules(vocab_size)),
            vocab_size,
            config.max_running,
            self._beam_requests.deliver,
            self._metrics,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-engine", daemon=True)

    def start(self, say: Callable[[str], None] = lambda _line: None) -> None:
        """Starts the thread and waits until a server can be used.

        Raises `EngineMismatch`, or `EngineFault` if none answers in time.
        """
        self._thread.start()
        try:
            description = self._fleet.wait_for_first(self._config.start_seconds, say)
        except BaseException:
            self.close(drain=False)
            raise
        self._model_info = replace(
            self._model_info,
            context_length=description.context_length,
            adapters=description.adapters,
            weights=description.weights(),
        )

    @property
    def model_info(self) -> ModelInfo:
        return self._model_info

    def check(self, request: EngineRequest) -> CheckedRequest:
        """The request for `submit`. Raises `RequestRefused` if it could never run.

        Any thread but the loop's; compiles a new grammar, and asks a server about new pictures.
        """
        refuse_bad_request(request, self._model_info)
        self._refuse_missing_features(request)
        refuse_bad_images(request, self._model_info, self.image_text)
        grammar = None if request.grammar is None else check_grammar(request, self._grammars)
        return CheckedRequest(clamped(request), grammar)

    def _refuse_missing_features(self, request: EngineRequest) -> None:
        features = self._features
        if request.prompt_logprobs is not None and not features.prompt_logprobs:
            raise RequestRefused("bad_limit", "The engine returns no logprobs of prompts.")
        wanted = 2 * request.beams.width if request.beams is not None else request.logprobs or 0
        if max(wanted, request.prompt_logprobs or 0) > features.max_logprobs:
            raise RequestRefused(
                "bad_limit", f"The engine returns at most {features.max_logprobs} top logprobs of a token."
            )
        most = features.max_logprob_token_ids
        if len(request.logprob_token_ids) > most:
            raise RequestRefused("bad_stop", f"The engine returns logprobs of at most {most} chosen tokens.")

    def image_text(self, data: bytes, cache_salt: str = "") -> ImageText:
        """How a picture is written in a prompt; asks a server, unless it was asked lately.

        Any thread but the loop's. Raises `RequestRefused`: `bad_image`, or `overloaded` if no server answers.
        """
        return self._images.text(ImageFile(data, hashlib.sha256(data).digest(), cache_salt))

    def _image_tokens(self, image: ImageFile) -> tuple[int, ...]:
        question = self._fleet.image_tokens(image)
        try:
            answer = asyncio.run_coroutine_threadsafe(question, self._loop)
            return answer.result(IMAGE_ANSWER_SECONDS)
        except EngineFault as fault:
            reason: RefusalReason = "bad_image" if fault.kind == "refused" else "overloaded"
            raise RequestRefused(reason, f"The engine cannot read the picture: {fault}.") from fault
        except TimeoutError as error:
            answer.cancel()
            if not self._registry.closed:
                raise RequestRefused("overloaded", "The engine cannot read the picture in time.") from error
            raise RequestRefused("closed", "The engine is closed.") from error
        except (RuntimeError, CancelledError) as error:  # the loop is closed, or ends
            question.close()
            raise RequestRefused("closed", "The engine is closed.") from error

    def submit(self, request: EngineRequest | CheckedRequest) -> None:
        """Queues the request, which is checked first if it was not. Raises `RequestRefused`. Any thread."""
        checked = request if isinstance(request, CheckedRequest) else self.check(request)
        request = checked.request
        if request.beams is not None:
            self._beam_requests.submit(request)
            return
        self._registry.check(request)  # before its blocks are hashed
        self._accept(request, self._digest(request), checked.grammar)

    def _digest(self, request: EngineRequest) -> list[bytes]:
        chain: list[bytes] = []
        count = len(request.prompt) // BLOCK_SIZE
        with suppress(AttributeError, TypeError):  # malformed: its call will fail
            extend_chain(chain, request.cache_salt, request.prompt, count, BLOCK_SIZE, request.adapter)
        return chain

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
        self._wake()

    def cancel(self, request_id: str, reason: CancelReason = "cancelled") -> None:
        """Ends the request; `stop`: its output is complete. Unknown ids are ignored. Any thread."""
        if not self._beam_requests.cancel(request_id):
            self._cancel(request_id, reason)

    def _cancel(self, request_id: str, reason: CancelReason = "cancelled") -> None:
        self._registry.inbox.put(Cancel(request_id, reason))
        self._wake()

    def set_paused(self, paused: bool) -> None:
        """While paused, no answer is read and no call begins. Idempotent; any thread."""
        self._registry.paused = paused
        self._wake()

    def stats(self) -> Stats:
        """A snapshot; `waiting` counts accepted requests that are not running. Any thread."""
        running = self._requests.running
        stats = self._metrics.stats(
            running=running,
            waiting=max(0, len(self._registry) - running),
            alive=self._thread.is_alive() and self._fleet.available,
            paused=self._registry.paused,
            servers=self._fleet.stats,
        )
        return replace(stats, max_running=self._max_running)

    def trouble(self) -> str | None:
        """Why no server can be used, in a sentence; None if one can. Any thread."""
        return self._fleet.trouble

    def close(self, *, drain: bool) -> None:
        """Ends the thread: after the accepted requests (`drain`), or after cancelling them. Idempotent."""
        self._registry.close("The engine is closed.")
        self._registry.inbox.put(Close(drain))
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        if not self._thread.is_alive():
            self._loop.close()
        if self._grammars is not None:
            self._grammars.close()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._requests.read_inbox)
        except RuntimeError:
            return  # the loop is closed, and with it the registry

    def _run(self) -> None:
        """The thread's body."""
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            log.exception("the engine's thread died")
            self._registry.close("The engine is dead.")
            self._requests.fail_all(error)
            self._on_dead(describe(error))

    async def _main(self) -> None:
        self._client.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                fleet = tasks.create_task(self._fleet.run())
                await self._requests.run()
                fleet.cancel()
        finally:
            await self._client.close()
