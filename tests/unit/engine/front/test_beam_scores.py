"""Beam search against one that keeps every list, on language models that are tables of random numbers."""

import itertools
import math
import random
from typing import Any

import pytest

from engine.front.beam_search import Beam, BeamSearch
from engine.request import Beams, EngineRequest, TokenLogprobs
from tests.support.engines import make_request
from tests.support.rounds import faults_only

VOCABULARY = 6
STOP = 0
PROMPT = 3


class Language:
    """A distribution over the next token for every output, drawn once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def logprobs(self, output: tuple[int, ...]) -> list[float]:
        weights = [random.Random(f"{self._seed}{output}{token}").random() ** 3 for token in range(VOCABULARY)]
        return [math.log(weight / sum(weights)) for weight in weights]

    def table(self, output: tuple[int, ...], seen: int) -> TokenLogprobs:
        found = sorted(enumerate(self.logprobs(output)), key=lambda pair: -pair[1])
        return TokenLogprobs(found[0][1], tuple(found[:seen]))

    def likelihood(self, output: tuple[int, ...]) -> float:
        return sum(self.logprobs(output[:place])[token] for place, token in enumerate(output))


def request(*, width: int = 2, length_penalty: float = 1.0, **settings: Any) -> EngineRequest:
    fields = {"max_tokens": 5, "stop_ids": frozenset({STOP}), **settings}
    return make_request("a", [1] * PROMPT, beams=Beams(width=width, length_penalty=length_penalty), **fields)


def search(language: Language, **settings: Any) -> list[Beam]:
    beams = BeamSearch(request(**settings))
    while beams.running:
        beams.advance([language.table(beam.token_ids, 2 * beams.width) for beam in beams.running])
    return beams.best


def plain_search(
    language: Language, *, width: int, length_penalty: float, max_tokens: int
) -> list[tuple[int, ...]]:
    """vLLM's loop: all steps are made, and all that ended is kept."""

    def score(output: tuple[int, ...]) -> float:
        length = PROMPT + len(output) - (output[-1] == STOP)
        return float(language.likelihood(output) / length**length_penalty)

    running: list[tuple[int, ...]] = [()]
    ended: list[tuple[int, ...]] = []
    for _ in range(max_tokens):
        longer = [
            (*output, token) for output in running for token, _ in language.table(output, 2 * width).top
        ]
        ended += [output for output in longer if output[-1] == STOP]
        running = sorted((one for one in longer if one[-1] != STOP), key=score, reverse=True)[:width]
    return sorted(ended + running, key=score, reverse=True)[:width]


@pytest.mark.parametrize("seed", [*range(8), *faults_only(*range(8, 40))])
@pytest.mark.parametrize("length_penalty", [-2.0, 0.0, 0.5, 1.0, 3.0])
def test_the_outputs_are_those_of_a_search_that_never_ends_early(seed: int, length_penalty: float) -> None:
    language, width = Language(seed), 1 + seed % 4
    found = search(language, width=width, length_penalty=length_penalty, max_tokens=7)
    wanted = plain_search(language, width=width, length_penalty=length_penalty, max_tokens=7)
    assert [beam.token_ids for beam in found] == wanted


@pytest.mark.parametrize("seed", range(10))
def test_a_search_as_wide_as_all_outputs_finds_the_likeliest(seed: int) -> None:
    language = Language(seed)
    (best, *_) = search(language, width=VOCABULARY**2, length_penalty=0.0, max_tokens=3, stop_ids=frozenset())
    every = itertools.product(range(VOCABULARY), repeat=3)
    assert best.token_ids == max(every, key=language.likelihood)
    assert best.total == pytest.approx(language.likelihood(best.token_ids))


def test_one_beam_is_the_greedy_output() -> None:
    language, greedy = Language(3), ()
    for _ in range(6):
        greedy += (language.table(greedy, 1).top[0][0],)  # type: ignore[assignment]
    (found,) = search(language, width=1, max_tokens=6, stop_ids=frozenset())
    assert found.token_ids == greedy


def test_no_output_ends_before_the_least_number_of_tokens() -> None:
    lengths = [
        len(beam.token_ids)
        for seed in range(20)
        for beam in search(Language(seed), width=3, min_tokens=4, max_tokens=6)
    ]
    assert min(lengths) == 5  # four, and the stop token


def test_a_search_ends_as_soon_as_nothing_better_can_be_found() -> None:
    beams = BeamSearch(request(width=1, length_penalty=0.0, max_tokens=1000))
    beams.advance([TokenLogprobs(-0.1, ((STOP, -0.1), (1, -2.5)))])
    assert beams.running == []
    assert [beam.token_ids for beam in beams.best] == [(STOP,)]


@pytest.mark.parametrize("kept", [None, 0, 1, 3])
def test_log_probabilities_are_kept_as_far_as_they_are_wanted(kept: int | None) -> None:
    language = Language(1)
    for beam in search(language, logprobs=kept):
        if kept is None:
            assert beam.logprobs == ()
            continue
        assert math.fsum(one.chosen for one in beam.logprobs) == pytest.approx(beam.total)
        for place, one in enumerate(beam.logprobs):
            assert one.top == language.table(beam.token_ids[:place], kept).top
