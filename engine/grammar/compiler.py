"""`GrammarCompiler`: compiles grammars in a small thread pool and caches them. Any thread.

A grammar that is not cached is compiled in a bounded process first; see `compile_process`.
"""

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from engine.fair_limit import FairLimit
from engine.grammar.compile_process import STACK_BYTES as TRIAL_STACK_BYTES
from engine.grammar.compile_process import TrialProcess
from engine.grammar.matcher import MAX_STATES, BadGrammar, check_first_mask, make_matcher, make_tokenizer
from engine.grammar.structured_output_to_lark import MAX_TEXT
from engine.request import EngineRequest, RequestRefused, StructuredOutput, one_line
from engine.vocabulary import Vocabulary

log = logging.getLogger("holdfast.grammars")

CACHE_BYTES = 256 * 2**20
COMPILE_SECONDS = 5.0
"""Timeout of a compile on a busy machine; the bounds of `compile_process` limit the work."""
QUEUE_SECONDS = 8.0
"""Timeout of the wait for a free compiling thread: grammars of other keys may take all that `compile_process`
gives, and end its process, which takes a second to start for a large vocabulary."""
MAX_WAITING_PER_KEY = 8
"""Maximum of grammars of one fairness key that wait to be compiled."""
THREADS = max(1, min(2, (os.cpu_count() or 1) - 1))
"""Leaves a CPU to the engine thread."""
STACK_BYTES = 2 * TRIAL_STACK_BYTES
"""Stack of a compiling thread: nested schemas recurse there, and a stack overflow ends the process."""
_STACKS = threading.Lock()
"""Held while the process-wide stack size of new threads is changed."""

BASE_BYTES = 64 * 2**10
BYTES_PER_CHARACTER = 96
"""Memory of a compiled grammar, per character of source; measured on schemas, patterns and enumerations."""
BYTES_PER_SECOND = 100e6
"""A grammar's lexer states grow with use; estimated by the time spent on its masks."""
RECOMPILE_BYTES = 20e6
"""At this estimated growth the grammar is compiled again, before it reaches `MAX_STATES`."""


class CompiledGrammar:
    """A compiled grammar. Any number of requests may use it; they share its lexer states."""

    def __init__(self, start: Any, source: str, digest: bytes) -> None:
        self.digest = digest
        """SHA-256 of the grammar and the fairness key; the key of the cache."""
        self.source = source
        self.is_recompiling = False
        self.successor: CompiledGrammar | None = None
        """A fresh compile of this grammar, without lexer states; new requests use it."""
        self._start = start
        self._base_bytes = BASE_BYTES + BYTES_PER_CHARACTER * len(source)
        self._growth_bytes = 0.0

    @property
    def size(self) -> int:
        """Estimated bytes; the library does not report them."""
        return self._base_bytes + int(min(self._growth_bytes, MAX_STATES * 2048))

    def begin(self) -> Any:
        return self._start.deep_copy()

    def record_mask_time(self, seconds: float) -> None:
        self._growth_bytes += seconds * BYTES_PER_SECOND

    @property
    def is_large(self) -> bool:
        """Whether the grammar should be compiled again, because its lexer states may reach `MAX_STATES`."""
        return self._growth_bytes > RECOMPILE_BYTES


def check_grammar(request: EngineRequest, compiler: "GrammarCompiler | None") -> CompiledGrammar:
    """The compiled grammar of a request that has one, or its fallback's. Raises `RequestRefused`.

    Any thread. Waits for the compile unless the grammar is cached for this fairness key.
    """
    grammar = request.grammar
    if compiler is None:
        raise RequestRefused("bad_grammar", "This model has no tokenizer.json, so its tokens spell nothing.")
    if not isinstance(grammar, StructuredOutput) or not isinstance(grammar.text, str):
        raise RequestRefused("bad_grammar", "The grammar must have a kind and a text.")
    if not request.stop_ids:
        raise RequestRefused("bad_grammar", "A request with a grammar needs a stop id to end with.")
    try:
        return compiler.compiled(grammar, request.fairness_key)
    except RequestRefused as refused:
        if refused.reason != "bad_grammar" or grammar.relaxed is None:
            raise
        with suppress(RequestRefused):
            return check_grammar(replace(request, grammar=grammar.relaxed), compiler)
        raise


def _start_pool(threads: int) -> ThreadPoolExecutor:
    """Starts all threads at once, so that the process-wide `threading.stack_size` is changed only once."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-grammar")
    together = threading.Barrier(threads + 1)
    with _STACKS:
        usual = threading.stack_size(STACK_BYTES)
        try:
            for _ in range(threads):  # the barrier keeps each busy, so that the pool starts another
                pool.submit(together.wait)
        finally:
            threading.stack_size(usual)
    together.wait()
    return pool


Compiling = Future[CompiledGrammar | str]
"""A compiled grammar, or the sentence that refuses it. Not the error, whose traceback would keep the grammar
and its JSON, and grow each time it is raised."""


class GrammarCompiler:
    """Compiles grammars for one vocabulary; caches grammars and refusals per fairness key.

    The cache is not shared between keys, because response times would reveal another key's grammars. Keys
    take turns, so that a key waits for at most one compile of each other key.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        cache_bytes: int = CACHE_BYTES,
        threads: int = THREADS,
        compile_seconds: float | None = None,
        queue_seconds: float = QUEUE_SECONDS,
        trial_process: Callable[[Vocabulary], TrialProcess] = TrialProcess,
    ) -> None:
        self.vocabulary = vocabulary
        self.turns = FairLimit(threads)
        """Whose grammars are compiled, and whose wait."""
        self._cache_bytes = cache_bytes
        self._compile_seconds = COMPILE_SECONDS if compile_seconds is None else compile_seconds
        self._queue_seconds = queue_seconds
        self._futures: OrderedDict[bytes, Compiling] = OrderedDict()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._trials = [trial_process(vocabulary) for _ in range(threads)]
        """Idle processes; a compiling thread takes one."""
        self._tokenizer: Any = None
        self._closed = False

    @property
    def size(self) -> int:
        with self._lock:
            return sum(map(_size, self._futures.values()))

    def compiled(self, grammar: StructuredOutput, fairness_key: str = "") -> CompiledGrammar:
        """The grammar, cached or compiled here. Raises `RequestRefused`. Not for the engine thread."""
        if len(grammar.text) > MAX_TEXT:
            raise RequestRefused("bad_grammar", f"A grammar may have {MAX_TEXT} characters.")
        self.load_tokenizer()  # takes seconds for a large vocabulary, so before the timeout starts
        digest = _digest(grammar, fairness_key)
        future, is_new = self._get_or_create_future(digest)
        if is_new:
            self._start(future, digest, fairness_key, grammar)
        try:
            outcome = future.result(self._compile_seconds + (0 if is_new else self._queue_seconds))
        except (TimeoutError, CancelledError):
            raise RequestRefused(
                "bad_grammar", f"The grammar takes more than {self._compile_seconds:g} s to compile."
            ) from None
        self._evict()
        if isinstance(outcome, str):
            raise RequestRefused("bad_grammar", outcome)
        return outcome

    def recompile_in_background(self, compiled: CompiledGrammar) -> None:
        """Starts a compile of the same grammar in the pool, as its successor."""
        with self._lock:
            if self._pool is None or compiled.is_recompiling:
                return
            compiled.is_recompiling = True
            self._pool.submit(self._recompile, compiled)

    def take_successor(self, compiled: CompiledGrammar) -> CompiledGrammar | None:
        """The successor, if it is compiled, which then replaces `compiled` in the cache; else None."""
        fresh = compiled.successor
        if fresh is not None:
            with self._lock:
                future = self._futures.get(compiled.digest)
                if future is not None and _result_of(future) is compiled:
                    replaced: Compiling = Future()
                    replaced.set_result(fresh)
                    self._futures[compiled.digest] = replaced
        return fresh

    def close(self) -> None:
        """Ends the pool's threads and processes; cached grammars stay usable."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        for trial in self._trials:
            trial.close()

    def _get_or_create_future(self, digest: bytes) -> tuple[Compiling, bool]:
        """The cached or pending future and False, or a new one and True: the caller starts its compile."""
        with self._lock:
            future = self._futures.get(digest)
            if future is not None and not future.cancelled():
                self._futures.move_to_end(digest)
                return future, False
            if self._closed:
                raise RequestRefused("closed", "The engine is closed.")
            future = self._futures[digest] = Future()
            return future, True

    def _start(self, future: Compiling, digest: bytes, fairness_key: str, grammar: StructuredOutput) -> None:
        """Waits for a compiling thread, then submits. Raises `RequestRefused` after `queue_seconds`."""
        try:
            if self.turns.waiting(fairness_key) >= MAX_WAITING_PER_KEY:
                raise RequestRefused(
                    "share_full", f"{MAX_WAITING_PER_KEY} grammars of yours wait to be compiled."
                )
            try:
                self.turns.acquire(fairness_key, self._queue_seconds)
            except TimeoutError:
                mine = self.turns.used_by(fairness_key)
                raise RequestRefused(
                    "share_full" if mine else "overloaded", "Too many grammars are being compiled."
                ) from None
            try:
                with self._lock:
                    if self._closed:
                        raise RequestRefused("closed", "The engine is closed.")
                    self._pool = self._pool or _start_pool(self.turns.total)
                    self._pool.submit(self._run, future, digest, fairness_key, grammar)
            except BaseException:
                self.turns.release(fairness_key)
                raise
        except BaseException as error:
            self._forget(future, digest)
            future.set_exception(error)
            raise

    def _run(self, future: Compiling, digest: bytes, fairness_key: str, grammar: StructuredOutput) -> None:
        """Runs in the pool: compiles and releases the key's place."""
        try:
            future.set_result(self._compile(grammar, digest))
        except BadGrammar as error:
            future.set_result(one_line(str(error)))
        except Exception as error:
            self._forget(future, digest)
            if not isinstance(error, RequestRefused):
                log.exception("a grammar could not be compiled")
                error = RequestRefused("overloaded", "The grammar could not be compiled now.")
            future.set_exception(error)
        finally:
            self.turns.release(fairness_key)

    def _forget(self, future: Compiling, digest: bytes) -> None:
        with self._lock:
            if self._futures.get(digest) is future:
                del self._futures[digest]

    def _recompile(self, compiled: CompiledGrammar) -> None:
        with suppress(BadGrammar):
            compiled.successor = self._compiled(compiled.source, compiled.digest)

    def _evict(self) -> None:
        with self._lock:
            sizes = {digest: _size(future) for digest, future in self._futures.items()}
            total = sum(sizes.values())
            for digest, size in sizes.items():
                if total <= self._cache_bytes:
                    break
                if self._futures[digest].done():
                    del self._futures[digest]
                    total -= size

    def _compile(self, grammar: StructuredOutput, digest: bytes) -> CompiledGrammar:
        """The compiled grammar, after its trial. Raises `BadGrammar`, or `RequestRefused` without a trial."""
        trial = self._trials.pop()
        try:
            source = trial.source_of(grammar)
        finally:
            self._trials.append(trial)
        return self._compiled(source, digest)

    def _compiled(self, source: str, digest: bytes) -> CompiledGrammar:
        try:
            matcher = make_matcher(self.load_tokenizer(), source)
            check_first_mask(matcher)
        except BadGrammar:
            raise
        except BaseException as error:  # the library's panics are no Exceptions
            raise BadGrammar(f"The grammar is not understood: {one_line(str(error))}") from error
        return CompiledGrammar(matcher, source, digest)

    def load_tokenizer(self) -> Any:
        """Llguidance's tokenizer; the first call builds it."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = make_tokenizer(self.vocabulary.tokens, self.vocabulary.special)
            return self._tokenizer


def _digest(grammar: StructuredOutput, fairness_key: str) -> bytes:
    named = f"{fairness_key}\0{grammar.kind}:{grammar.text}".encode(errors="surrogatepass")
    return hashlib.blake2b(named, digest_size=16).digest()


def _result_of(future: Compiling) -> CompiledGrammar | None:
    """The compiled grammar; None if pending, refused, failed or cancelled."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return None
    outcome = future.result()
    return None if isinstance(outcome, str) else outcome


def _size(future: Compiling) -> int:
    compiled = _result_of(future)
    # Refusals count, too, so that their number is bounded.
    return BASE_BYTES if compiled is None else compiled.size
