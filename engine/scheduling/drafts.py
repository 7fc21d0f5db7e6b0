"""`DraftPlanner`: how many tokens of which request are drafted in a step, by expected gain and measured cost.

Engine thread; no torch. A draft's tokens are further rows of the step. So many are taken, those of requests
that gain most first, that the step is expected to give the most tokens a second: none where rows cost much,
and none beyond the number of rows whose cost was measured.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise, takewhile
from operator import mul
from typing import NamedTuple

from engine.scheduling.prompt_lookup import PromptLookup
from engine.scheduling.sequence import TokenSequence

MAX_DRAFT = 31
"""Tokens of a draft: with the last token, as many rows as one product on a CPU takes."""

MIN_PROBABILITY = 0.02
"""Tokens that are less likely to be accepted are not considered."""

GrammarPrefix = Callable[[TokenSequence, Sequence[int]], Sequence[int]]
"""The first of these tokens that the sequence's grammar allows next."""


class StepCosts(NamedTuple):
    of_rows: Mapping[int, float]
    """Seconds of a step by number of rows, for at least two numbers. No step with drafts has more rows."""
    of_draft: float = 0.0
    """Seconds that a draft adds to a step of several requests, beyond those of its rows."""


class DraftPlanner:
    def __init__(self, seconds: StepCosts, grammar_prefix: GrammarPrefix) -> None:
        self._seconds = _interpolate(seconds.of_rows)
        self._draft_seconds = seconds.of_draft
        self._grammar_prefix = grammar_prefix

    def plan(self, sequences: Sequence[TokenSequence], spare: int) -> dict[TokenSequence, Sequence[int]]:
        """Drafts for some of these, whose next step has one row each otherwise: `spare` tokens at most."""
        rows, seconds = len(sequences), self._seconds
        spare = min(spare, len(seconds) - 1 - rows)
        if spare <= 0:
            return {}
        # A token must be as likely as to outweigh the tokens that steps give in the time of a further row.
        least = max(
            MIN_PROBABILITY, (seconds[-1] - seconds[rows]) / (len(seconds) - 1 - rows) * rows / seconds[rows]
        )
        draft_seconds = self._draft_seconds if rows > 1 else 0.0
        gains: list[tuple[float, list[float], TokenSequence]] = []
        for sequence in sequences:
            most = min(sequence.request.max_tokens - sequence.output_count - 1, MAX_DRAFT, spare)
            if most > 0 and (lookup := _lookup_of(sequence)) is not None and lookup.has_draft:
                # By place in the draft, that its token is accepted.
                probabilities = accumulate(map(lookup.probability, range(most)), mul)
                own = list(takewhile(least.__le__, probabilities))
                if own and sum(own) > draft_seconds * rows / seconds[rows]:
                    gains.append((sum(own), own, sequence))
        gains.sort(key=lambda gain: -gain[0])
        candidates = [(probability, sequence) for _, own, sequence in gains for probability in own]
        best = self._best_count(rows, candidates[:spare], draft_seconds)
        counts = Counter(sequence for _, sequence in candidates[:best])
        drafts = {sequence: self._draft(sequence, count) for sequence, count in counts.items()}
        return {sequence: draft for sequence, draft in drafts.items() if draft}

    def _best_count(
        self, rows: int, candidates: Sequence[tuple[float, TokenSequence]], draft_seconds: float
    ) -> int:
        """The number of candidates with which the step gives the most tokens a second."""
        tokens, best, most = float(rows), 0, rows / self._seconds[rows]
        drafted: set[TokenSequence] = set()
        for count, (probability, sequence) in enumerate(candidates, start=1):
            tokens += probability
            drafted.add(sequence)
            seconds = self._seconds[rows + count] + draft_seconds * len(drafted)
            if tokens > most * seconds:
                best, most = count, tokens / seconds
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
    """By number of rows. Where more rows took less time, the fewer ones were disturbed."""
    points = [(rows, min(seconds[more] for more in seconds if more >= rows)) for rows in sorted(seconds)]
    table = [points[0][1]] * (points[0][0] + 1)
    for (begin, first), (end, last) in pairwise(points):
        table += [
            first + (last - first) * (rows - begin) / (end - begin) for rows in range(begin + 1, end + 1)
        ]
    return table
