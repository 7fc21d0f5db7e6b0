"""`RemoteEngine`: computes requests on engine servers, with one thread that runs an event loop.

What happens on the event loop is in `request_tasks` and `fleet`.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial

from engine.bounded_cache import BoundedCache
from engine.front.engine_front import EngineFront
from engine.front.request_registry import RequestRegistry
from engine.grammar.compiler import GrammarCompiler
from engine.remote.engine_protocol import CallFault, EngineProtocol, ImageFile
from engine.remote.fleet import IMAGE_SECONDS, Fleet, RemoteConfig
from engine.remote.http_client import EngineClient
from engine.remote.request_output import Generation
from engine.remote.request_tasks import RemoteMetrics, RequestLoop
from engine.remote.vocabulary_files import ModelFolder
from engine.request import (
    Deliver,
    EngineRequest,
    ImageText,
    OnEngineDeath,
    RefusalReason,
    RequestRefused,
    describe,
)
from engine.sampling.token_masks import TokenMasks
from engine.stats_snapshot import Stats

log = logging.getLogger(__name__)

BLOCK_SIZE = 16
"""Tokens of a block, whose digest stands for the prefix that ends with it."""
IMAGE_ANSWER_SECONDS = IMAGE_SECONDS + 5.0
"""Seconds for the answer to how many tokens a picture has: the server's, and some of the event loop's. A loop
that is about to close drops the question without a word."""
MAX_IMAGE_COUNTS = 4096
"""Pictures whose number of tokens is remembered; a row has some hundred bytes."""


class RemoteEngine(EngineFront):
    """The constructor raises ValueError for malformed URLs."""

    def __init__(
        self,
        config: RemoteConfig,
        protocol: EngineProtocol,
        folder: ModelFolder,
        deliver: Deliver,
        on_dead: OnEngineDeath = lambda _why: None,
        image_answer_seconds: float = IMAGE_ANSWER_SECONDS,
    ) -> None:
        self._image_answer_seconds = image_answer_seconds
        self._config = config
        self._features = protocol.features
        self._on_dead = on_dead
        model_info = folder.model_info
        if not protocol.features.images:
            model_info = replace(model_info, image_token_id=None, image_placeholder=None)
        grammars = None
        if folder.vocabulary is not None:
            vocabulary = folder.vocabulary
            if protocol.features.grammars:
                model_info = replace(model_info, grammar_token_ids=vocabulary.markup)
                vocabulary = replace(vocabulary, special=vocabulary.special | vocabulary.markup)
            grammars = GrammarCompiler(vocabulary)
        registry = RequestRegistry(config.max_running + config.max_waiting, config.max_per_key)
        super().__init__(model_info, registry, deliver, BLOCK_SIZE, grammars)
        self._image_counts = BoundedCache[tuple[str, bytes], int](MAX_IMAGE_COUNTS)
        """Tokens that servers make of pictures, by salt and digest."""
        vocab_size = folder.model_info.vocab_size
        self._metrics = RemoteMetrics(folder.model_info.context_length)
        self._client = EngineClient(
            protocol, config.api_key, config.ca_file, config.silence_timeout, config.trace_parent_of
        )
        self._fleet = Fleet(config, protocol, self._client, folder)
        masks = TokenMasks(grammars, vocab_size)
        self._requests = RequestLoop(
            registry,
            self._fleet,
            self._client,
            partial(Generation, features=protocol.features, masks=masks, vocab_size=vocab_size),
            config.max_running,
            self._beam_requests.deliver,
            self._metrics,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-engine", daemon=True)

    def start(self, say: Callable[[str], None] = lambda _line: None) -> None:
        """Waits for a usable server. Raises `EngineMismatch`, or `CallFault` if none answers in time."""
        self._thread.start()
        try:
            description = self._fleet.wait_for_first(self._config.start_seconds, say)
        except BaseException:
            self.close(drain=False)
            raise
        self.model_info = replace(
            self.model_info,
            context_length=description.context_length,
            adapters=tuple(description.adapters),
            weights=description.weights(),
        )

    def _refuse_unsupported(self, request: EngineRequest) -> None:
        features = self._features
        if request.prompt_logprobs is not None and not features.prompt_logprobs:
            raise RequestRefused("bad_limit", "The engine returns no logprobs of prompts.")
        top_count = 2 * request.beams.width if request.beams is not None else request.logprobs or 0
        if max(top_count, request.prompt_logprobs or 0) > features.max_logprobs:
            raise RequestRefused(
                "bad_limit", f"The engine returns at most {features.max_logprobs} top logprobs of a token."
            )
        most = features.max_logprob_token_ids
        if len(request.logprob_token_ids) > most:
            raise RequestRefused("bad_stop", f"The engine returns logprobs of at most {most} chosen tokens.")

    def _image_text(self, data: bytes, digest: bytes, cache_salt: str) -> ImageText:
        """Asks a server, unless it was asked lately. `overloaded` if none answers."""
        token_id, placeholder = self.model_info.image_token_id, self.model_info.image_placeholder
        if token_id is None or placeholder is None:
            raise RequestRefused("bad_image", "The model reads no pictures.")
        count = self._image_counts.get((cache_salt, digest))
        if count is None:
            tokens = self._image_tokens(ImageFile(data, digest, cache_salt))
            if set(tokens) != {token_id}:
                raise RequestRefused(
                    "bad_image", "Pictures of this model have tokens of several kinds, which are not served."
                )
            count = len(tokens)
            self._image_counts.put((cache_salt, digest), count)
        return ImageText(placeholder * count, count)

    def _image_tokens(self, image: ImageFile) -> tuple[int, ...]:
        question = self._fleet.image_tokens(image)
        try:
            answer = asyncio.run_coroutine_threadsafe(question, self._loop)
            return answer.result(self._image_answer_seconds)
        except CallFault as fault:
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

    def _snapshot(self) -> Stats:
        metrics, router = self._metrics, self._fleet.router
        return Stats(
            running=self._requests.running,
            max_running=self._config.max_running,
            tokens=metrics.tokens,
            alive=self._thread.is_alive() and router.available,
            requests=metrics.requests.stats,
            servers=router.stats,
            remote=True,
            prompt_tokens=metrics.prompt_tokens,
            cached_tokens=metrics.cached_tokens,
            tokens_per_second=metrics.tokens_per_second,
        )

    def trouble(self) -> str | None:
        return self._fleet.router.trouble()

    def _wait_until_ended(self) -> None:
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
