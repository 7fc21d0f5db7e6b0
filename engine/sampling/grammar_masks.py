"""Grammar matchers: the state of each request in its grammar, and token bitmasks for the rows of a step.

Engine thread; no torch. A mask is a function of the request's tokens, so it can be rebuilt after a preemption
or restart, and computed before the logits are there.
"""

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from engine.error_text import describe, one_line
from engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from engine.request import EngineRequest
from engine.scheduling.sequence import TokenSequence


class GrammarMatcher:
    """One request's state in its grammar, a matcher of llguidance."""

    def __init__(self, compiled: CompiledGrammar, request: EngineRequest) -> None:
        self.compiled = compiled
        self.ll_matcher: Any = compiled.begin()
        self._num_consumed = len(request.prompt) - request.output_offset
        """Number of the request's tokens that the matcher has consumed or skipped, the prompt included."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Consumes new tokens; `tokens` is prompt and output so far."""
        if self._num_consumed < len(tokens):
            self.ll_matcher.consume_tokens(list(tokens[self._num_consumed :]))
            self._num_consumed = len(tokens)


@dataclass(slots=True)
class Masks:
    """Bitmasks of some rows of a step: bit `n % 8` of byte `n // 8` is set if token n is allowed."""

    rows: list[int]
    """Row numbers in the step."""
    bits: bytearray
    """The masks of `rows`, concatenated."""
    stride: int
    """Bytes of one mask; a multiple of 4."""
    failed: dict[int, str] = field(default_factory=dict)
    """By row: why no token can be sampled. Such a row's mask is meaningless."""

    def of(self, row: int) -> memoryview:
        """The mask of one row."""
        start = self.rows.index(row) * self.stride
        return memoryview(self.bits)[start : start + self.stride]


class GrammarMatchers:
    """The matchers of all requests with a grammar; they live as long as their sequences."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._matchers: WeakKeyDictionary[TokenSequence, GrammarMatcher] = WeakKeyDictionary()

    def masks(self, sequences: Sequence[TokenSequence]) -> Masks | None:
        """The masks for the next token of these sequences; None if none of them has a grammar."""
        rows = [row for row, sequence in enumerate(sequences) if sequence.request.grammar is not None]
        if not rows or self._compiler is None:
            return None
        vocab_size = len(self._compiler.vocabulary.tokens)
        stride = mask_stride(vocab_size)
        masks = Masks(rows, bytearray(stride * len(rows)), stride)
        address = ctypes.addressof(ctypes.c_char.from_buffer(masks.bits))
        for index, row in enumerate(rows):
            try:
                ll_matcher = self._compute(sequences[row], address + index * stride, stride)
                masks.failed |= _allow_stop_ids(masks, index, ll_matcher, sequences[row].request, vocab_size)
            except BaseException as error:  # panics of the library are not Exceptions
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                masks.failed[row] = describe(error)
        return masks

    def _compute(self, sequence: TokenSequence, address: int, stride: int) -> Any:
        """Writes one mask; gives the matcher that made it.

        What a grammar has worked out is shared by its requests, and there is a limit to it. A request
        that meets the limit, maybe by the work of others, goes on with the same grammar that remembers
        nothing, which was compiled on another thread as soon as this one remembered much.
        """
        assert self._compiler is not None
        for last in (False, True):
            started = time.perf_counter()
            matcher = self._advanced_matcher(sequence)
            matcher.ll_matcher.unsafe_compute_mask_ptr(address, stride)
            matcher.compiled.record_mask_time(time.perf_counter() - started)
            if matcher.compiled.is_large:
                self._compiler.recompile_in_background(matcher.compiled)
            if last or not matcher.ll_matcher.is_error():
                break
            fresh = self._compiler.take_successor(matcher.compiled)
            if fresh is None:
                break
            del self._matchers[sequence]
            sequence.compiled = fresh
        return matcher.ll_matcher

    def _advanced_matcher(self, sequence: TokenSequence) -> GrammarMatcher:
        matcher = self._matchers.get(sequence)
        if matcher is None:
            assert self._compiler is not None
            assert sequence.request.grammar is not None
            compiled = sequence.compiled or self._compiler.get_cached(
                sequence.request.grammar, sequence.request.fairness_key
            )
            matcher = self._matchers[sequence] = GrammarMatcher(compiled, sequence.request)
        matcher.advance(sequence.tokens)
        return matcher


def _allow_stop_ids(
    masks: Masks, index: int, ll_matcher: Any, request: EngineRequest, vocab_size: int
) -> dict[int, str]:
    """Allows stop ids exactly where the grammar may end. Returns a failure for `Masks.failed`."""
    row = masks.rows[index]
    if ll_matcher.is_error():
        return {row: f"The grammar failed: {one_line(ll_matcher.get_error())}"}
    start = index * masks.stride
    may_end = _pop_end_bit(masks.bits, start, vocab_size)
    for token_id in request.stop_ids:
        if not 0 <= token_id < vocab_size:
            continue
        byte, bit = start + token_id // 8, 1 << token_id % 8
        masks.bits[byte] = masks.bits[byte] | bit if may_end else masks.bits[byte] & ~bit
    if masks.bits.count(0, start, start + masks.stride) == masks.stride:
        return {row: "The grammar allows no token here."}
    return {}


def mask_stride(vocab_size: int) -> int:
    """Bytes of a mask: a bit for each token and one for the end, in whole 32-bit words."""
    return (vocab_size + 32) // 32 * 4


def _pop_end_bit(bits: bytearray, start: int, vocab_size: int) -> bool:
    """Whether the grammar may end here: reads and clears the bit after the last token."""
    index, bit = start + vocab_size // 8, 1 << vocab_size % 8
    may_end = bool(bits[index] & bit)
    bits[index] &= ~bit
    return may_end
