"""`DraftPlanner`: how many tokens of which request are drafted in a step, by expected gain and measured cost.

Engine thread; no torch. A draft's tokens are further rows of the step. So many are taken, the likeliest of
all requests first, that the step is expected to give the most tokens a second: none where rows cost much.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from engine.scheduling.prompt_lookup import PromptLookup
from engine.scheduling.sequence import TokenSequence

MAX_DRAFT = 31
"""Tokens of a draft: with the last token, as many rows as one product on a CPU takes."""

MIN_PROBABILITY = 0.02
"""Tokens that are less likely to be accepted are not considered."""

MAX_ROWS = 1024

GrammarPrefix = Callable[[TokenSequence, Sequence[int]], Sequence[int]]
"""The first of these tokens that the sequence's grammar allows next."""


class DraftPlanner:
    def __init__(self, seconds: Mapping[int, float], grammar_prefix: GrammarPrefix) -> None:
        """`seconds` is how long a step of so many rows takes, for at least two numbers of rows."""
        self._seconds = _interpolate(seconds)
        self._grammar_prefix = grammar_prefix

    def plan(self, sequences: Sequence[TokenSequence], spare: int) -> dict[TokenSequence, Sequence[int]]:
        """Drafts for some of these, whose next step has one row each otherwise: `spare` tokens at most."""
        candidates: list[tuple[float, TokenSequence]] = []
        for sequence in sequences:
            most = min(sequence.request.max_tokens - sequence.output_count - 1, MAX_DRAFT, spare)
            if most > 0 and (lookup := _lookup_of(sequence)) is not None and lookup.has_draft:
                probability = 1.0
                for place in range(most):
                    probability *= lookup.probability(place)
                    if probability < MIN_PROBABILITY:
                        break
                    candidates.append((-probability, sequence))
        if not candidates:
            return {}
        candidates.sort(key=lambda candidate: candidate[0])
        best = self._best_count(len(sequences), candidates, spare)
        counts = Counter(sequence for _, sequence in candidates[:best])
        drafts = {sequence: self._draft(sequence, count) for sequence, count in counts.items()}
        return {sequence: draft for sequence, draft in drafts.items() if draft}

    def _best_count(self, rows: int, candidates: Sequence[tuple[float, TokenSequence]], spare: int) -> int:
        """The number of candidates with which the step gives the most tokens a second."""
        seconds = self._seconds
        tokens, best, most = float(rows), 0, rows / seconds[min(rows, MAX_ROWS)]
        for count, (negative, _) in enumerate(candidates[: max(min(spare, MAX_ROWS - rows), 0)], start=1):
            tokens -= negative
            if tokens > most * seconds[rows + count]:
                best, most = count, tokens / seconds[rows + count]
        return best

    def _draft(self, sequence: TokenSequence, count: int) -> Sequence[int]:
        assert sequence.lookup is not None
        tokens: Sequence[int] = sequence.lookup.draft(count, sequence.request.stop_ids | sequence.ends)
        if tokens and sequence.request.grammar is not None:
            return self._grammar_prefix(sequence, tokens)
        return tokens


def _lookup_of(sequence: TokenSequence) -> PromptLookup | None:
    """The sequence's lookup, with all of its tokens; None for one that gets no drafts."""
    request = sequence.request
    if request.images:
        return None  # their positions are not counted one by one
    if sequence.lookup is None:
        output = len(request.prompt) - request.output_offset
        sequence.lookup = PromptLookup(request.prompt[:output], request.prediction)
    sequence.lookup.advance(sequence.tokens)
    return sequence.lookup


def _interpolate(seconds: Mapping[int, float]) -> list[float]:
    """By number of rows up to `MAX_ROWS`. Where more rows took less time, the fewer ones were disturbed."""
    points = [(rows, min(seconds[more] for more in seconds if more >= rows)) for rows in sorted(seconds)]
    table = [points[0][1]] * (points[0][0] + 1)
    slope = 0.0
    for (begin, first), (end, last) in pairwise(points):
        slope = (last - first) / (end - begin)
        table += [first + slope * (rows - begin) for rows in range(begin + 1, end + 1)]
    while len(table) <= MAX_ROWS:
        table.append(table[-1] + slope)
    return table
