"""F39: NaN and infinity in any request at any moment: that one fails or ends, and no other is touched."""

import random
from dataclasses import replace
from typing import Any

import pytest

from engine.request import EngineRequest, Finished, Outbound
from tests.fix_tally import Tally
from tests.support.engines import Bench, make_prompt, make_request, start_model, tiny_model
from tests.support.poison import POISON, Poison, at_random, clean, gather_blocks
from tests.support.rounds import rounds

JOBS = 24
WAYS: dict[str, dict[str, Any]] = {
    "shelves": {},
    "gathered": {},
    "ahead": {"pipelined": True},
    "as on a GPU": {"pipelined": True, "decode": "static"},
}


def start(way: str, **settings: Any) -> Bench:
    bench = start_model(tiny_model(), **WAYS[way], **settings)
    if way != "shelves":
        gather_blocks(bench)
    return bench


def random_requests(dice: random.Random) -> list[EngineRequest]:
    """Of four tenants; many share a beginning, many are short, and half has the poison in its prompt."""
    requests = []
    for number in range(JOBS):
        begin = clean(make_prompt(dice.choice((0, 0, 16, 33)), dice.randint(0, 2)))
        prompt = begin + clean(make_prompt(dice.choice((2, 4, 30, 70)), number))
        if number % 2 == 0:
            prompt[dice.randrange(len(begin), len(prompt))] = POISON
        requests.append(
            make_request(
                str(number),
                prompt,
                dice.randint(1, 40),
                temperature=dice.choice((0.0, 0.9)),
                seed=number,
                cache_salt=dice.choice("abcd"),
                priority=dice.choice((0, 0, 0, -1, 1)),
                logit_bias=((POISON, 6.0),) if number % 4 == 0 else ((POISON, -100.0),),
            )
        )
    return requests


def again(request: EngineRequest, name: str, **fields: Any) -> EngineRequest:
    return replace(request, request_id=f"{name} {request.request_id}", **fields)


def check_no_number_is_left(
    bench: Bench, requests: list[EngineRequest], expected: dict[str, list[int]]
) -> None:
    """Whatever is left in blocks, known by its content or not, would be met now: twice round the pool."""
    for turn in ("after", "later"):
        repeated = bench.run(*(again(request, turn) for request in requests))
        for request, outcome in zip(requests, repeated, strict=True):
            assert outcome.tokens == expected[request.request_id], (
                f"{turn} {request.request_id}: {outcome.last}"
            )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", rounds(few=0, many=10))
def test_numbers_that_are_none_fail_their_own_request_only(seed: int, way: str, tally: Tally) -> None:
    dice = random.Random(seed)
    requests = random_requests(dice)
    calm = start("shelves")
    expected = {
        request.request_id: calm.run(again(request, "calm", cache_salt=request.request_id))[0].tokens
        for request in requests
    }
    calm.engine.close(drain=True)
    sick = {
        request.request_id
        for request in requests
        if POISON in request.prompt or POISON in expected[request.request_id][:-1]
    }
    bench = start(way, kv_blocks=dice.choice((9, 12, 20)), token_budget=16, max_running=4)
    poison = Poison(bench, at_random(seed, dice.choice((0.5, 0.8, 1.0))))
    poison.deep = dice.random() < 0.5
    cancelled: set[str] = set()
    waiting = requests[JOBS // 3 :]
    seen = 0

    def meddle(_message: Outbound) -> None:
        """Jobs come one by one and take others' memory; who has wrong numbers now is often cancelled."""
        nonlocal seen
        if waiting and dice.random() < 0.3:
            bench.engine.submit(waiting.pop())
        if poison.hits > seen:
            seen = poison.hits
            for name in sorted(sick):
                if dice.random() < 0.5:
                    cancelled.add(name)
                    bench.engine.cancel(name)

    bench.listener.when_told = meddle
    bench.run(*requests[: JOBS // 3])
    bench.listener.wait(lambda: not waiting)
    outcomes = [bench.listener.outcome(request.request_id) for request in requests]
    for request, outcome in zip(requests, outcomes, strict=True):
        whole = expected[request.request_id]
        ended = isinstance(outcome.last, Finished)
        assert ended or request.request_id in sick, f"{request.request_id} was not poisoned: {outcome.last}"
        if ended and outcome.last.reason != "cancelled":  # type: ignore[union-attr]
            assert outcome.tokens == whole
        assert outcome.tokens == whole[: len(outcome.tokens)]
        assert ended or outcome.last.code == "engine_error"  # type: ignore[union-attr]
        assert request.request_id in cancelled or not ended or outcome.last.reason != "cancelled"  # type: ignore[union-attr]
        tally["F39", "requests that failed of numbers that are none"] += not ended
        tally["F39", "requests with such numbers that were cancelled"] += (
            ended and request.request_id in cancelled
        )
    bench.listener.when_told = lambda _message: None
    poison.on = False
    check_no_number_is_left(bench, requests, expected)
    bench.engine.close(drain=True)
    stats = bench.engine.stats()
    assert (stats.deaths, stats.kv_blocks_used) == (0, 0)
    tally["F39", "rounds of numbers that are none"] += 1
    tally["F39", "passes with numbers that are none"] += poison.hits
    tally["F39", "requests beside them that had to be untouched"] += JOBS - len(sick)
