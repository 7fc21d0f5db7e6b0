"""Grammars compiled once, followed token by token, and told as masks: which tokens may come next.

Three parts. `GrammarCompiler`, any thread: compiles in a small pool of its own and keeps what it made, up
to a number of bytes. `Follower`, engine thread: where one job's output stands in its grammar. `Followers`,
engine thread: the masks of all rows of a step, a bit a token. A mask is a function of the job's tokens
alone: it can be had again after a preemption or a cut, and before the logits are there.

The library (llguidance) does its work a little at a time and counts it, so that neither a compile nor a
mask can take long, whatever the grammar. Ignorant of models, of logits and of torch.
"""

import ctypes
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from engine.grammar_limits import MAX_TEXT, BadGrammar
from engine.grammar_source import to_lark
from engine.messages import Grammar, Job, JobRefused
from engine.sequence import TokenSequence
from engine.vocabulary import Vocabulary

CACHE_BYTES = 256 * 2**20
COMPILE_SECONDS = 2.0
THREADS = max(1, min(2, (os.cpu_count() or 1) - 1))
"""A compile must not share the processor of the engine thread."""
STACK_BYTES = 64 * 2**20
"""Of a compiling thread: schemas within schemas are calls within calls there, and a stack that ends
ends the process. See `grammar_limits.MAX_CHAIN`."""
_STACKS = threading.Lock()
"""Who changes the size of new threads' stacks puts the usual one back before another does."""

BASE_BYTES = 64 * 2**10
BYTES_PER_CHARACTER = 96
"""Memory of a grammar that was compiled; measured on schemas, patterns and enumerations."""
BYTES_PER_SECOND = 100e6
"""A grammar in use remembers what it worked out, and so grows with the time spent on its masks."""
MAX_STATES = 100_000
"""What a grammar can remember, up to 2 kB each. A job that needs more than that by itself fails."""


class CompiledGrammar:
    """A grammar ready to be followed by any number of jobs, which share what it has worked out."""

    def __init__(self, start: Any, source: str, digest: bytes) -> None:
        self.digest = digest
        """Of what it was compiled from."""
        self._start = start
        self._own = BASE_BYTES + BYTES_PER_CHARACTER * len(source)
        self._grown = 0.0

    @property
    def size(self) -> int:
        """Bytes, estimated: the library does not say."""
        return self._own + int(min(self._grown, MAX_STATES * 2048))

    def begin(self) -> Any:
        """A matcher at the beginning of the grammar."""
        return self._start.deep_copy()

    def spend(self, seconds: float) -> None:
        """Takes note of time spent on a mask."""
        self._grown += seconds * BYTES_PER_SECOND


def check_grammar(job: Job, compiler: "GrammarCompiler | None") -> None:
    """Raises `JobRefused` unless the job's grammar, if it has one, can be followed. Any thread.

    Waits while a grammar that was not seen before is compiled.
    """
    grammar = job.grammar
    if grammar is None:
        return
    if compiler is None:
        raise JobRefused("bad_grammar", "This model has no tokenizer.json, so its tokens spell nothing.")
    if not isinstance(grammar, Grammar) or not isinstance(grammar.text, str):
        raise JobRefused("bad_grammar", "The grammar must have a kind and a text.")
    if not job.stop_ids:
        raise JobRefused("bad_grammar", "A job with a grammar needs a stop id to end with.")
    compiler.compiled(grammar)


def _start_pool() -> ThreadPoolExecutor:
    """Starts all threads at once: while they start, every new thread of the process has stacks of their size,
    and so that is for a moment once, and not with every grammar.
    """
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-grammar")
    together = threading.Barrier(THREADS + 1)
    with _STACKS:
        usual = threading.stack_size(STACK_BYTES)
        try:
            for _ in range(THREADS):  # each is busy, so that the next gets a thread of its own
                pool.submit(together.wait)
        finally:
            threading.stack_size(usual)
    together.wait()
    return pool


class GrammarCompiler:
    """Compiles for one vocabulary; keeps grammars, and refusals, for who comes with the same again."""

    def __init__(self, vocabulary: Vocabulary, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.vocabulary = vocabulary
        self._special = {
            token_id: vocabulary.tokens[token_id].decode(errors="replace")
            for token_id in sorted(vocabulary.special)
        }
        self._cache_bytes = cache_bytes
        self._made: OrderedDict[bytes, Future[CompiledGrammar]] = OrderedDict()
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        """One check at a time: it is work in Python, which the engine thread has to wait for."""
        self._pool: ThreadPoolExecutor | None = None
        self._tokenizer: Any = None
        self._closed = False

    @property
    def size(self) -> int:
        """Bytes of all that is kept, estimated."""
        with self._lock:
            return sum(map(_size, self._made.values()))

    def compiled(self, grammar: Grammar) -> CompiledGrammar:
        """Finds the grammar or has it compiled, and waits for that. Raises `JobRefused`."""
        if len(grammar.text) > MAX_TEXT:
            raise JobRefused("bad_grammar", f"A grammar may have {MAX_TEXT} characters.")
        self._load_tokenizer()  # of a large vocabulary it takes seconds, which are not the grammar's
        future = self._find_or_start(grammar)
        try:
            compiled = future.result(COMPILE_SECONDS)
        except BadGrammar as error:
            raise JobRefused("bad_grammar", str(error)) from None
        except TimeoutError:
            if not future.running() and not future.done():
                raise JobRefused("overloaded", "Too many grammars are being compiled.") from None
            raise JobRefused(
                "bad_grammar", f"The grammar takes more than {COMPILE_SECONDS:g} s to compile."
            ) from None
        self._evict()
        return compiled

    def forget(self, compiled: CompiledGrammar) -> None:
        """Drops the grammar, if it is this one that is kept: who asks again gets a new one."""
        with self._lock:
            future = self._made.get(compiled.digest)
            if future is not None and _made(future) is compiled:
                del self._made[compiled.digest]

    def close(self) -> None:
        """Ends the pool's threads; grammars that are kept can still be found."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _find_or_start(self, grammar: Grammar) -> Future[CompiledGrammar]:
        digest = _digest(grammar)
        with self._lock:
            future = self._made.get(digest)
            if future is not None and not future.cancelled():
                self._made.move_to_end(digest)
                return future
            if self._closed:
                raise JobRefused("closed", "The engine is closed.")
            if self._pool is None:
                self._pool = _start_pool()
            future = self._made[digest] = self._pool.submit(self._compile, grammar)
            return future

    def _evict(self) -> None:
        """Forgets what was asked for longest ago, as long as all that is kept is too much."""
        with self._lock:
            sizes = {digest: _size(future) for digest, future in self._made.items()}
            total = sum(sizes.values())
            for digest, size in sizes.items():
                if total <= self._cache_bytes:
                    break
                if self._made[digest].done():
                    del self._made[digest]
                    total -= size

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        try:
            return self._compile_unguarded(grammar)
        except BadGrammar:
            raise
        except BaseException as error:  # the library's panics are no Exceptions
            raise BadGrammar(f"The grammar is not understood: {_one_line(str(error))}") from error

    def _compile_unguarded(self, grammar: Grammar) -> CompiledGrammar:
        with self._checking:
            source = to_lark(grammar, self._special)
        import llguidance  # a part that only jobs with grammars need

        limits = llguidance.LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)
        matcher = llguidance.LLMatcher(self._load_tokenizer(), source, log_level=0, limits=limits)
        if matcher.is_error():
            raise BadGrammar(f"The grammar cannot be compiled: {_one_line(matcher.get_error())}")
        # The first mask shows grammars that nothing fits; the copy keeps the beginning.
        first = matcher.deep_copy()
        mask = first.compute_bitmask()
        if first.is_error() or not any(mask):
            raise BadGrammar("Nothing that the model can write would fit the grammar.")
        return CompiledGrammar(matcher, source, _digest(grammar))

    def _load_tokenizer(self) -> Any:
        """The library's form of the vocabulary, made by the first that needs it."""
        with self._lock:
            if self._tokenizer is None:
                import llguidance

                self._tokenizer = llguidance.LLTokenizer(_Tokens(self.vocabulary))  # type: ignore[arg-type]
            return self._tokenizer


class Follower:
    """One job's place in its grammar. Engine thread."""

    def __init__(self, compiled: CompiledGrammar, job: Job) -> None:
        self.compiled = compiled
        self.matcher: Any = compiled.begin()
        self._read = len(job.prompt) - job.output_offset
        """So many of the job's tokens are behind it, those of the prompt included."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Follows the job's tokens, of which there are more than before."""
        if self._read < len(tokens):
            self.matcher.consume_tokens(list(tokens[self._read :]))
            self._read = len(tokens)


@dataclass(slots=True)
class Masks:
    """Of some rows of a step: bit `n % 8` of byte `n // 8` is set if token n is allowed."""

    rows: list[int]
    """The places of these rows in the step."""
    bits: bytearray
    """All masks, end to end."""
    stride: int
    """Bytes of one mask; a multiple of 4."""
    failed: dict[int, str] = field(default_factory=dict)
    """By place in the step: why nothing can be drawn. Such a row's mask says nothing."""

    def of(self, row: int) -> memoryview:
        """The mask of one row."""
        start = self.rows.index(row) * self.stride
        return memoryview(self.bits)[start : start + self.stride]


class Followers:
    """The followers of all jobs that have a grammar, which go with their sequences. Engine thread."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._followers: WeakKeyDictionary[TokenSequence, Follower] = WeakKeyDictionary()

    def masks(self, sequences: Sequence[TokenSequence]) -> Masks | None:
        """The masks for the next token of these sequences; None if none of them has a grammar."""
        rows = [row for row, sequence in enumerate(sequences) if sequence.job.grammar is not None]
        if not rows or self._compiler is None:
            return None
        vocab_size = len(self._compiler.vocabulary.tokens)
        stride = mask_stride(vocab_size)
        masks = Masks(rows, bytearray(stride * len(rows)), stride)
        address = ctypes.addressof(ctypes.c_char.from_buffer(masks.bits))
        for place, row in enumerate(rows):
            try:
                matcher = self._compute(sequences[row], address + place * stride, stride)
                masks.failed |= _finish(masks, place, matcher, sequences[row].job, vocab_size)
            except BaseException as error:  # the library's panics are no Exceptions
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                masks.failed[row] = f"{type(error).__name__}: {_one_line(str(error))}"
        return masks

    def _compute(self, sequence: TokenSequence, address: int, stride: int) -> Any:
        """Writes one mask; gives the matcher that made it.

        What a grammar has worked out is shared by its jobs, and there is a limit to it. A job that meets
        the limit, maybe by the work of others, starts anew with a grammar that remembers nothing.
        """
        for last in (False, True):
            begun = time.perf_counter()
            follower = self._follow(sequence)
            follower.matcher.unsafe_compute_mask_ptr(address, stride)
            follower.compiled.spend(time.perf_counter() - begun)
            if last or not follower.matcher.is_error():
                break
            del self._followers[sequence]
            assert self._compiler is not None
            self._compiler.forget(follower.compiled)
        return follower.matcher

    def _follow(self, sequence: TokenSequence) -> Follower:
        follower = self._followers.get(sequence)
        if follower is None:
            assert self._compiler is not None
            assert sequence.job.grammar is not None
            compiled = self._compiler.compiled(sequence.job.grammar)  # kept since the job's check
            follower = self._followers[sequence] = Follower(compiled, sequence.job)
        follower.advance(sequence.tokens)
        return follower


def _finish(masks: Masks, place: int, matcher: Any, job: Job, vocab_size: int) -> dict[int, str]:
    """Allows the job's stop ids exactly where the grammar may end; tells what stands in the way."""
    row = masks.rows[place]
    if matcher.is_error():
        return {row: f"The grammar failed: {_one_line(matcher.get_error())}"}
    start = place * masks.stride
    may_end = _take_end(masks.bits, start, vocab_size)
    for token_id in job.stop_ids:
        if not 0 <= token_id < vocab_size:
            continue
        byte, bit = start + token_id // 8, 1 << token_id % 8
        masks.bits[byte] = masks.bits[byte] | bit if may_end else masks.bits[byte] & ~bit
    if masks.bits.count(0, start, start + masks.stride) == masks.stride:
        return {row: "The grammar allows no token here."}
    return {}


def mask_stride(vocab_size: int) -> int:
    """Bytes of a mask: a bit for each token and one for the end, in whole words."""
    return (vocab_size + 32) // 32 * 4


def _take_end(bits: bytearray, start: int, vocab_size: int) -> bool:
    """Whether the grammar may end here, said by the bit after the last token, which is cleared."""
    place, bit = start + vocab_size // 8, 1 << vocab_size % 8
    may_end = bool(bits[place] & bit)
    bits[place] &= ~bit
    return may_end


class _Tokens:
    """The vocabulary in the form that the library asks for."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        # The end is a token after the last: which ids stop a job is the job's to say.
        self.eos_token_id = len(vocabulary.tokens)
        # With a text: a special token without one is taken for the beginning of all the others.
        self.tokens = [*vocabulary.tokens, b"<the end>"]
        self.special_token_ids = sorted(vocabulary.special | {self.eos_token_id})

    def __call__(self, _text: bytes) -> list[int]:
        """Never asked for: see `grammar_source.HEADER`."""
        return []


def _digest(grammar: Grammar) -> bytes:
    named = f"{grammar.kind}:{grammar.text}".encode(errors="surrogatepass")
    return hashlib.blake2b(named, digest_size=16).digest()


def _made(future: Future[CompiledGrammar]) -> CompiledGrammar | None:
    """What was made; None if nothing was, or not yet."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return None
    return future.result()


def _size(future: Future[CompiledGrammar]) -> int:
    made = _made(future)
    return BASE_BYTES if made is None else made.size  # a refusal is less, but too many are too many


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
