"""`BeamSearch`: the state of one beam search, as in vLLM's `beam_search`. Pure.

Each step reads the `2 * width` likeliest next tokens of every beam; beams with a stop token leave the search,
and the best `width` of the others continue. A score is the sum of the tokens' logprobs divided by (number of
prompt and output tokens) ** `length_penalty`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

from engine.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Beam:
    """A finished or partial output."""

    token_ids: tuple[int, ...] = ()
    """Stop token included."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, if requested."""
    total: float = 0.0
    """Sum of the tokens' logprobs."""
    ended: bool = False
    """Ended by a stop token."""
    origin: int = 0
    """Index, among the beams of the previous step, of the beam that it continues."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A beam with one token more."""

    beam: Beam
    origin: int
    token_id: int
    logprob: float
    table: TokenLogprobs
    ends: bool

    @property
    def total(self) -> float:
        return self.beam.total + self.logprob

    def extended(self, num_logprobs: int | None) -> Beam:
        beam = self.beam
        logprobs = (
            ()
            if num_logprobs is None
            else (*beam.logprobs, TokenLogprobs(self.logprob, self.table.top[:num_logprobs]))
        )
        return Beam((*beam.token_ids, self.token_id), logprobs, self.total, self.ends, self.origin)


class BeamSearch:
    """The state of one search. `advance` takes the model's top logprobs after each beam of `running`."""

    def __init__(
        self,
        *,
        width: int,
        length_penalty: float,
        prompt_length: int,
        max_tokens: int,
        min_tokens: int = 0,
        ends: frozenset[int] = frozenset(),
        logprobs: int | None = None,
    ) -> None:
        """`ends` are stop tokens; before `min_tokens` tokens none of them is looked at. `logprobs` is how
        many of the likeliest tokens are kept for each token of a beam; None keeps nothing.
        """
        self._width = width
        self._length_penalty = length_penalty
        self._prompt_length = prompt_length
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._ends = ends
        self._logprobs = logprobs
        self._ended: list[Beam] = []
        """The best `width` of those that ended, best first."""
        self._steps = 0
        self.running: list[Beam] = [Beam()]
        """Those that go on, best first; none when the search is over."""

    @property
    def candidates_per_beam(self) -> int:
        """Number of likeliest tokens per beam that a step needs."""
        return 2 * self._width

    def advance(self, tables: Sequence[TokenLogprobs]) -> None:
        """Takes the likeliest next tokens of each of `running`, in order."""
        candidates = [
            _Candidate(beam, origin, token, logprob, table, token in self._ends)
            for origin, (beam, table) in enumerate(zip(self.running, tables, strict=True))
            for token, logprob in table.top[: self.candidates_per_beam]
        ]
        ending = [one for one in candidates if one.ends and self._steps >= self._min_tokens]
        self._steps += 1
        self._ended = self._best_of([*self._ended, *(one.extended(self._logprobs) for one in ending)])
        # All of these have the same length, so that the likeliest have the best scores, whatever the penalty.
        following = nlargest(self._width, (one for one in candidates if not one.ends), key=_total)
        self.running = [one.extended(self._logprobs) for one in following]
        if self._steps == self._max_tokens or self._is_decided():
            self._ended = self._best_of([*self._ended, *self.running])
            self.running = []

    @property
    def best(self) -> list[Beam]:
        """Once the search is over: the best outputs, at most `width`, best first."""
        return self._ended

    def _best_of(self, beams: list[Beam]) -> list[Beam]:
        return sorted(beams, key=self.score, reverse=True)[: self._width]

    def score(self, beam: Beam) -> float:
        """The normalized score. A stop token counts in the sum and not in the length."""
        return self._normalized(beam.total, len(beam.token_ids) - beam.ended)

    def _normalized(self, total: float, output_length: int) -> float:
        length = self._prompt_length + output_length
        return float(total / length**self._length_penalty) if length else total

    def _is_decided(self) -> bool:
        """Whether no beam that runs can come to be among the best any more: sums only fall."""
        if len(self._ended) < self._width:
            return False
        worst = self.score(self._ended[-1])
        longest = self._max_tokens if self._length_penalty > 0 else self._steps
        return all(self._normalized(beam.total, longest) <= worst for beam in self.running)


def _total(candidate: _Candidate) -> float:
    return candidate.total
