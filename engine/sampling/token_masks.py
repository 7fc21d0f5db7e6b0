"""Bitmasks of allowed tokens: grammars (llguidance matchers), allowed ids, bad words, thinking budgets.

Engine thread; no torch. A mask is a function of the request and its tokens, so it can be rebuilt after a
preemption or restart, and computed before the logits are there.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from engine.request import EngineRequest, ThinkingBudget, describe, one_line
from engine.scheduling.sequence import TokenSequence


@dataclass(slots=True)
class Masks:
    of: dict[int, bytes] = field(default_factory=dict)
    """By row: bit `n % 8` of byte `n // 8` is set if token n is allowed."""
    failed: dict[int, str] = field(default_factory=dict)
    """By row: why no token can be sampled. Such a row's mask is missing or meaningless."""


Drafts = Sequence[Sequence[int]]
"""For each sequence, guesses of its next tokens, none of which ends it."""


class _NoToken(Exception):
    """No token may be sampled in this row; the message says why."""


@dataclass(slots=True)
class GrammarMatcher:
    """One request's state in its grammar, a matcher of llguidance."""

    compiled: CompiledGrammar
    ll_matcher: Any
    num_consumed: int
    """Number of the request's tokens that the matcher has consumed or skipped, the prompt included."""


class GrammarMatchers:
    """The matchers of all requests with a grammar; they live as long as their sequences."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._matchers: WeakKeyDictionary[TokenSequence, GrammarMatcher] = WeakKeyDictionary()

    def masks(self, sequences: Sequence[TokenSequence], drafts: Drafts = ()) -> Masks | None:
        """The masks for the next token of these sequences; None if none of them has a grammar.

        After the row of a sequence come those behind each token of its draft.
        """
        if self._compiler is None or all(sequence.request.grammar is None for sequence in sequences):
            return None
        masks = Masks()
        row = 0
        for sequence, draft in zip(sequences, drafts or [()] * len(sequences), strict=True):
            if sequence.request.grammar is not None:
                self._add(masks, row, sequence, draft)
            row += 1 + len(draft)
        return masks

    def _add(self, masks: Masks, row: int, sequence: TokenSequence, draft: Sequence[int]) -> None:
        assert self._compiler is not None
        stop_ids, vocab_size = sequence.request.stop_ids, len(self._compiler.vocabulary.tokens)
        end = row + len(draft)
        try:
            masks.of[row] = _with_stop_ids(self._compute(self._compiler, sequence), stop_ids, vocab_size)
            if not draft:
                return
            matcher = self._advanced_matcher(sequence).ll_matcher
            for token_id in draft:
                row += 1
                matcher.consume_tokens([token_id])
                mask = matcher.compute_bitmask()
                if matcher.is_error():
                    raise _NoToken("The grammar failed.")
                masks.of[row] = _with_stop_ids(mask, stop_ids, vocab_size)
            if not matcher.rollback(len(draft)):
                del self._matchers[sequence]
        except BaseException as error:  # panics of the library are not Exceptions
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            message = str(error) if isinstance(error, _NoToken) else describe(error)
            masks.failed.update(dict.fromkeys(range(row, end + 1), message))
            if draft:
                self._matchers.pop(sequence, None)  # it has consumed some of the draft

    def prefix(self, sequence: TokenSequence, tokens: Sequence[int]) -> Sequence[int]:
        """The first of these tokens that the sequence's grammar allows next."""
        return tokens[: self._advanced_matcher(sequence).ll_matcher.validate_tokens(list(tokens))]

    def allows(self, sequence: TokenSequence, token_id: int) -> bool:
        """Whether the sequence's grammar allows this token next; faster than a mask. False if it failed."""
        matcher = self._advanced_matcher(sequence).ll_matcher
        if token_id in sequence.request.stop_ids:
            return bool(matcher.is_accepting())
        return bool(matcher.validate_tokens([token_id]) == 1)

    def _compute(self, compiler: GrammarCompiler, sequence: TokenSequence) -> bytes:
        """The mask for the next token, with a bit for the end after the last token. Raises `_NoToken`.

        Requests share their grammar's lexer states, whose number is limited. A request that meets the limit,
        perhaps because of others, continues with a successor: the same grammar without states, compiled on
        another thread once this one has many.
        """
        for last in (False, True):
            started = time.perf_counter()
            matcher = self._advanced_matcher(sequence)
            mask: bytes = matcher.ll_matcher.compute_bitmask()
            matcher.compiled.record_mask_time(time.perf_counter() - started)
            if matcher.compiled.is_large:
                compiler.recompile_in_background(matcher.compiled)
            if not matcher.ll_matcher.is_error():
                return mask
            successor = None if last else compiler.take_successor(matcher.compiled)
            if successor is None:
                break
            del self._matchers[sequence]
            sequence.compiled = successor
        raise _NoToken(f"The grammar failed: {one_line(matcher.ll_matcher.get_error())}")

    def _advanced_matcher(self, sequence: TokenSequence) -> GrammarMatcher:
        matcher = self._matchers.get(sequence)
        if matcher is None:
            assert sequence.compiled is not None, "a grammar is compiled before its request is accepted"
            skipped = len(sequence.request.prompt) - sequence.request.output_offset
            matcher = GrammarMatcher(sequence.compiled, sequence.compiled.begin(), skipped)
            self._matchers[sequence] = matcher
        if matcher.num_consumed < len(sequence.tokens):
            matcher.ll_matcher.consume_tokens(sequence.tokens[matcher.num_consumed :])
            matcher.num_consumed = len(sequence.tokens)
        return matcher


def _with_stop_ids(mask: bytes, stop_ids: Iterable[int], vocab_size: int) -> bytes:
    """The mask with stop ids allowed exactly where the grammar may end. Raises `_NoToken` if it is empty."""
    bits = bytearray(mask)
    end, end_bit = vocab_size // 8, 1 << vocab_size % 8
    may_end = bool(bits[end] & end_bit)
    bits[end] &= ~end_bit
    for token_id in stop_ids:
        if 0 <= token_id < vocab_size:
            byte, bit = token_id // 8, 1 << token_id % 8
            bits[byte] = bits[byte] | bit if may_end else bits[byte] & ~bit
    if _is_empty(bits):
        raise _NoToken("The grammar allows no token here.")
    return bytes(bits)


class ThinkingState:
    """Tracks whether a request's output is inside reasoning, and how many reasoning tokens it has."""

    def __init__(self, budget: ThinkingBudget, output: int) -> None:
        """`output` is the index of the first output token."""
        self._budget = budget
        self._begin = self._read = output
        self._inside = budget.open
        self._count = budget.spent if budget.open else 0
        self._ending = 0

    @property
    def forced(self) -> int | None:
        """The token that must come next; None if any may."""
        if not self._inside or self._count < self._budget.tokens:
            return None
        return self._budget.end[self._ending]

    def advance(self, tokens: Sequence[int]) -> None:
        """`tokens` is prompt and output so far."""
        while self._read < len(tokens):
            forced = self.forced
            self._read += 1
            if forced is not None and tokens[self._read - 1] == forced:
                self._ending += 1
                if self._ending == len(self._budget.end):
                    self._inside, self._ending = False, 0
            elif self._inside:
                self._ending = 0
                self._count += 1
                if self._ends_with(tokens, self._budget.end):
                    self._inside = False
                    self._count = max(0, self._count - len(self._budget.end))
            else:
                self._inside = self._ends_with(tokens, self._budget.start)

    def _ends_with(self, tokens: Sequence[int], mark: tuple[int, ...]) -> bool:
        """Whether the tokens read so far end with `mark`, all of it in the output."""
        start = self._read - len(mark)
        return start >= self._begin and tuple(tokens[start : self._read]) == mark


class RequestRules:
    def __init__(self, request: EngineRequest, vocab_size: int) -> None:
        self._begin = len(request.prompt) - request.output_offset
        self._thinking = None
        if request.thinking_budget is not None:
            self._thinking = ThinkingState(request.thinking_budget, self._begin)
        self._size = (vocab_size + 32) // 32 * 4
        """Bytes of a mask: a bit for each token and one for the end, in whole 32-bit words."""
        allowed = request.sampling.allowed_token_ids
        self._allowed = self._bits(allowed) if allowed else None
        self._allowed_or_stops = self._bits((*allowed, *request.stop_ids)) if allowed else None
        """Stop ids are always allowed where the grammar may end."""
        self._words: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        """Bad words of several tokens, by their last token but one."""
        self._always = {word[0] for word in request.sampling.bad_words if len(word) == 1}
        for word in request.sampling.bad_words:
            if len(word) > 1:
                self._words[word[-2]].append(word)

    def copy(self) -> "RequestRules":
        other = copy(self)
        other._thinking = copy(self._thinking)
        return other

    def mask(self, tokens: Sequence[int], grammar: bytes | None) -> bytes | None:
        """The mask of allowed tokens, within the grammar's if there is one; None allows all, zeros none."""
        if self._thinking is not None:
            self._thinking.advance(tokens)
            if self._thinking.forced is not None:
                alone = self._bits([self._thinking.forced])
                if grammar is None or not _is_empty(_and(alone, grammar)):
                    return alone
        allowed, within_grammar = self._allowed, self._allowed_or_stops
        if grammar is not None:
            allowed = grammar if within_grammar is None else _and(within_grammar, grammar)
        banned = self._banned(tokens)
        if not banned:
            return allowed
        rest = bytearray(b"\xff" * self._size if allowed is None else allowed)
        for token_id in banned:
            if token_id // 8 < self._size:
                rest[token_id // 8] &= ~(1 << token_id % 8)
        return allowed if grammar is not None and _is_empty(rest) else bytes(rest)

    def _banned(self, tokens: Sequence[int]) -> set[int]:
        if len(tokens) <= self._begin or tokens[-1] not in self._words:
            return self._always
        banned = set(self._always)
        for word in self._words[tokens[-1]]:
            start = len(tokens) - len(word) + 1
            if start >= self._begin and tuple(tokens[start:]) == word[:-1]:
                banned.add(word[-1])
        return banned

    def _bits(self, token_ids: Iterable[int]) -> bytes:
        bits = bytearray(self._size)
        for token_id in token_ids:
            if token_id // 8 < self._size:
                bits[token_id // 8] |= 1 << token_id % 8
        return bytes(bits)


class TokenMasks:
    """The grammars and rules of all requests that have any; their state lives as long as their sequences."""

    def __init__(self, compiler: GrammarCompiler | None, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rules: WeakKeyDictionary[TokenSequence, RequestRules] = WeakKeyDictionary()
        self.grammars = GrammarMatchers(compiler)

    def of(self, sequences: Sequence[TokenSequence], drafts: Drafts = ()) -> Masks | None:
        """The masks for the next token of these sequences; None if any token may come in all of them.

        After the row of a sequence come those behind each token of its draft.
        """
        masks = self.grammars.masks(sequences, drafts)
        if not any(has_rules(sequence.request) for sequence in sequences):
            return masks
        masks = masks or Masks()
        row = 0
        for sequence, draft in zip(sequences, drafts or [()] * len(sequences), strict=True):
            if has_rules(sequence.request):
                self._add_rules(masks, row, sequence, draft)
            row += 1 + len(draft)
        return masks if masks.of or masks.failed else None

    def _add_rules(self, masks: Masks, row: int, sequence: TokenSequence, draft: Sequence[int]) -> None:
        rules, tokens = self._rules_of(sequence), sequence.tokens
        for place in range(row, row + 1 + len(draft)):
            if place > row:
                if place == row + 1:
                    rules, tokens = rules.copy(), tokens.copy()
                tokens.append(draft[place - row - 1])
            if place in masks.failed:
                continue
            mask = rules.mask(tokens, masks.of.get(place))
            if mask is not None:
                masks.of[place] = mask
                if _is_empty(mask):
                    masks.failed[place] = "Of the tokens that the request allows none may come here."

    def _rules_of(self, sequence: TokenSequence) -> RequestRules:
        rules = self._rules.get(sequence)
        if rules is None:
            rules = self._rules[sequence] = RequestRules(sequence.request, self._vocab_size)
        return rules


def has_rules(request: EngineRequest) -> bool:
    """Whether the request has rules for the next token, beside its grammar."""
    return bool(request.sampling.allowed_token_ids or request.sampling.bad_words or request.thinking_budget)


def allows_token(mask: bytes, token_id: int) -> bool:
    return bool(mask[token_id // 8] >> token_id % 8 & 1)


def _is_empty(bits: bytes | bytearray) -> bool:
    return bits == bytes(len(bits))


def _and(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left, "little") & int.from_bytes(right, "little")).to_bytes(len(left), "little")
