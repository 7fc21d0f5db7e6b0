"""Per-request token rules as bitmasks: allowed token ids, bad words, thinking budget.

Engine thread; no torch. A rule is a function of the request and its tokens, so it survives a preemption or
restart. Its bitmask is combined with that of the request's grammar.
"""

from collections import defaultdict
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from engine.request import EngineRequest, ThinkingBudget
from engine.sampling.grammar_masks import Masks, mask_stride
from engine.scheduling.sequence import TokenSequence


def has_rules(request: EngineRequest) -> bool:
    return bool(request.sampling.allowed_token_ids or request.sampling.bad_words or request.thinking_budget)


class ThinkingState:
    """Tracks whether a request's output is inside reasoning, and how many reasoning tokens it has."""

    def __init__(self, budget: ThinkingBudget, output: int) -> None:
        """`output` is the index of the first output token."""
        self._budget = budget
        self._begin = self._read = output
        self._inside = budget.open
        self._count = budget.spent if budget.open else 0
        self._ending = 0
        """Number of tokens of `budget.end` that have been forced."""

    @property
    def forced(self) -> int | None:
        """The token that must come next; None if any may."""
        if not self._inside or self._count < self._budget.tokens:
            return None
        return self._budget.end[self._ending]

    def advance(self, tokens: Sequence[int]) -> None:
        """Processes new tokens; `tokens` is prompt and output so far."""
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
    """The rules of one request."""

    def __init__(self, request: EngineRequest, vocab_size: int) -> None:
        self._begin = len(request.prompt) - request.output_offset
        self._thinking = None
        if request.thinking_budget is not None:
            self._thinking = ThinkingState(request.thinking_budget, self._begin)
        self._size = mask_stride(vocab_size)
        self._stops = request.stop_ids
        allowed = request.sampling.allowed_token_ids
        self._allowed = self._bits(allowed) if allowed else None
        self._words: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        """Bad words of several tokens, by their last token but one."""
        self._always = {word[0] for word in request.sampling.bad_words if len(word) == 1}
        for word in request.sampling.bad_words:
            if len(word) > 1:
                self._words[word[-2]].append(word)

    def mask(self, tokens: Sequence[int], grammar: bytes | None) -> bytes | None:
        """The bitmask of allowed tokens, within that of the grammar if there is one; None allows all.

        A mask of zeros allows none.
        """
        forced = None
        if self._thinking is not None:
            self._thinking.advance(tokens)
            forced = self._thinking.forced
        if forced is not None:
            alone = self._bits([forced])
            if grammar is None or _and(alone, grammar).count(0) < len(grammar):
                return alone
        allowed = self._allowed
        if grammar is not None:
            # Stop ids are always allowed where the grammar may end.
            allowed = grammar if allowed is None else _and(_or(allowed, self._bits(self._stops)), grammar)
        banned = self._banned(tokens)
        if not banned:
            return allowed
        rest = bytearray(allowed) if allowed is not None else bytearray(b"\xff" * self._size)
        for token_id in banned:
            if token_id // 8 >= self._size:
                continue
            rest[token_id // 8] &= ~(1 << token_id % 8) & 0xFF
        if grammar is not None and rest.count(0) == len(rest):
            return allowed
        return bytes(rest)

    def _banned(self, tokens: Sequence[int]) -> set[int]:
        """The tokens that would complete a bad word."""
        if len(tokens) <= self._begin or tokens[-1] not in self._words:
            return self._always
        banned = set(self._always)
        for word in self._words[tokens[-1]]:
            start = len(tokens) - len(word) + 1
            if start >= self._begin and tuple(tokens[start:]) == word[:-1]:
                banned.add(word[-1])
        return banned

    def _bits(self, token_ids: Sequence[int] | frozenset[int]) -> bytes:
        bits = bytearray(self._size)
        for token_id in token_ids:
            if token_id // 8 < self._size:
                bits[token_id // 8] |= 1 << token_id % 8
        return bytes(bits)


class TokenRules:
    """The rules of all requests that have any; they live as long as their sequences."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rules: WeakKeyDictionary[TokenSequence, RequestRules] = WeakKeyDictionary()

    def restrict(self, sequences: Sequence[TokenSequence], masks: Masks | None) -> Masks | None:
        """Combines the sequences' rules with their grammars' masks; None if all tokens are allowed."""
        ruled = [row for row, sequence in enumerate(sequences) if has_rules(sequence.request)]
        if not ruled:
            return masks
        failed = dict(masks.failed) if masks is not None else {}
        bits = {row: bytes(masks.of(row)) for row in masks.rows} if masks is not None else {}
        for row in ruled:
            if row in failed:
                continue
            mask = self._of(sequences[row]).mask(sequences[row].tokens, bits.get(row))
            if mask is None:
                continue
            bits[row] = mask
            if mask.count(0) == len(mask):
                failed[row] = "Of the tokens that the request allows none may come here."
        if not bits:
            return None
        rows = sorted(bits)
        return Masks(
            rows, bytearray(b"".join(bits[row] for row in rows)), mask_stride(self._vocab_size), failed
        )

    def _of(self, sequence: TokenSequence) -> RequestRules:
        rules = self._rules.get(sequence)
        if rules is None:
            rules = self._rules[sequence] = RequestRules(sequence.request, self._vocab_size)
        return rules


def _and(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "little") & int.from_bytes(other, "little")).to_bytes(len(one), "little")


def _or(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "little") | int.from_bytes(other, "little")).to_bytes(len(one), "little")
