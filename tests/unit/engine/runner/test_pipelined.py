"""Steps that begin before the last one's tokens are read give what steps one after the other give."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.executor import OutOfMemory
from engine.request import EngineRequest, Failed, Finished, Outbound, ThinkingBudget, Tokens
from tests.support.engines import Bench, make_prompt, make_request, save_random_model, start_model, tiny_model
from tests.support.grammars import END, SIZE, readable_model, schema

MODELS: dict[str, dict[str, Any]] = {
    "Qwen3Config": {},
    "GptOssConfig": {"sliding_window": 12, "num_local_experts": 4, "num_experts_per_tok": 2},
}
DECODES = ("eager", "static")


@pytest.fixture(scope="module", params=MODELS)
def start(request: pytest.FixtureRequest) -> Callable[..., Bench]:
    path = save_random_model(request.param, num_hidden_layers=2, **MODELS[request.param])
    return lambda **settings: start_model(path, **settings)


def pipelined(start: Callable[..., Bench], decode: str = "static", **settings: Any) -> Bench:
    return start(pipelined=True, decode=decode, **settings)


def told_of(bench: Bench, *requests: EngineRequest) -> list[list[Any]]:
    """All that was said of each request but for likelihoods, which rounding may change."""
    bench.run(*requests)
    bench.engine.close(drain=True)
    told: list[list[Any]] = []
    for request in requests:
        *before, last = bench.listener.of(request.request_id)
        tokens = [token for message in before if isinstance(message, Tokens) for token in message.token_ids]
        count = sum(len(getattr(message, "logprobs", None) or ()) for message in before)
        assert isinstance(last, Finished | Failed)
        told.append([tokens, count, replace(last, usage=replace(last.usage, cached=0))])
    return told


@pytest.fixture(scope="module")
def in_turn(start: Callable[..., Bench]) -> list[list[Any]]:
    """What is said of the jobs by an engine that takes one step after the other, with room for all."""
    return told_of(start(), *JOBS)


JOBS = [make_request(str(n), make_prompt(4 + 9 * n, n), 8 + 7 * n) for n in range(6)]


@pytest.mark.parametrize("decode", DECODES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"token_budget": 7, "max_running": 3},
        {"kv_blocks": 8},
        {"kv_blocks": 9, "token_budget": 7, "max_running": 3},
        {"block_size": 1, "kv_blocks": 200},
    ],
    ids=str,
)
def test_tokens_are_the_same_however_little_room_there_is(
    start: Callable[..., Bench], settings: dict[str, Any], decode: str, in_turn: list[list[Any]]
) -> None:
    assert told_of(pipelined(start, decode, **settings), *JOBS) == in_turn


@pytest.mark.parametrize("decode", DECODES)
def test_all_that_requests_may_ask_for_is_the_same(decode: str) -> None:
    """Masks, counts, seeds and ends depend on tokens that are still in flight when a step begins."""
    prompt = [t % (SIZE - 2) + 2 for t in make_prompt(20)]
    wishes: list[dict[str, Any]] = [
        {"grammar": schema({"type": "array", "items": {"type": "integer"}, "minItems": 3})},
        {"grammar": schema({"enum": ["yes", "no"]}), "temperature": 1.0, "seed": 4},
        {"stop_token_ids": frozenset({40, 41}), "temperature": 1.2, "seed": 5},
        {"temperature": 1.0, "seed": 16, "repetition_penalty": 1.5, "presence_penalty": 1.0},
        {"temperature": 1.0, "seed": 7, "frequency_penalty": 2.0, "logprobs": 2, "prompt_logprobs": 1},
        {"min_tokens": 9, "logit_bias": ((END, 50.0),)},
        {"top_k": 5, "temperature": 0.9, "seed": 8, "top_p": 0.7},
        {"allowed_token_ids": tuple(range(9, 40)), "temperature": 1.0, "seed": 9, "logprobs": 1},
        {"bad_words": tuple((token,) for token in range(4, 60)), "logprobs": 0, "logprob_token_ids": (3, 9)},
        {"stop_token_ids": frozenset(range(9, 12)), "ignore_eos": True, "temperature": 1.5, "seed": 10},
        {"thinking_budget": ThinkingBudget(tokens=6, start=(3,), end=(7, 8), open=True)},
        {},
    ]
    requests = [
        make_request(str(n), [*prompt, n + 2], 30, stop_ids=frozenset({END}), **wish)
        for n, wish in enumerate(wishes)
    ]
    for settings in ({}, {"kv_blocks": 14, "token_budget": 16, "max_running": 5}):
        expected = told_of(start_model(readable_model(), **settings), *requests)
        bench = pipelined(lambda **more: start_model(readable_model(), **more), decode, **settings)
        assert told_of(bench, *requests) == expected


def test_a_pass_begins_before_the_last_steps_tokens_are_read() -> None:
    bench = pipelined(lambda **more: start_model(tiny_model(), **more))
    executor: Any = bench.executor
    begin, sample = executor.begin, executor.sample
    acts: list[str] = []

    def noted_begin(plan: Any) -> Any:
        acts.append("begin")
        return begin(plan)

    def noted_sample(*args: Any) -> Any:
        acts.append("sample")
        return sample(*args)

    executor.begin, executor.sample = noted_begin, noted_sample
    bench.listener.when_told = lambda message: acts.append("told") if isinstance(message, Tokens) else None
    bench.run(make_request("a", make_prompt(20), 5))
    bench.engine.close(drain=True)
    turn = ["begin", "sample", "told"]
    assert acts == ["begin", "sample", *turn * 4, "told"]


@pytest.mark.parametrize("decode", DECODES)
def test_a_cancelled_request_is_told_of_once_more(
    start: Callable[..., Bench], decode: str, in_turn: list[list[Any]]
) -> None:
    """Its token in flight is nobody's, and its neighbours' tokens are what they were."""
    expected = in_turn
    bench = pipelined(start, decode)
    heard: dict[str, int] = {}

    def cancel_after_three(message: Outbound) -> None:
        heard[message.request_id] = heard.get(message.request_id, 0) + 1
        if message.request_id in "135" and heard[message.request_id] == 3:
            bench.engine.cancel(message.request_id)

    bench.listener.when_told = cancel_after_three
    outcomes = bench.run(*JOBS)
    bench.engine.close(drain=True)
    for request, outcome, (tokens, _, _) in zip(JOBS, outcomes, expected, strict=True):
        if request.request_id in "135":
            assert isinstance(outcome.last, Finished)
            assert (outcome.last.reason, outcome.last.usage.output) == ("cancelled", 3)
            assert outcome.tokens == tokens[:3]
        else:
            assert outcome.tokens == tokens


def test_a_stop_id_ends_a_request_whose_next_pass_was_begun(start: Callable[..., Bench]) -> None:
    ((tokens, _, _), *_) = told_of(start(), JOBS[5])
    stop = tokens[20]
    request = replace(JOBS[5], stop_ids=frozenset({stop}))
    expected = told_of(start(), request, *JOBS[:5])
    assert expected[0][0][-1] == stop
    assert told_of(pipelined(start), request, *JOBS[:5]) == expected


# Trouble


@pytest.mark.parametrize("step", ["begin", "sample"])
def test_a_step_that_fails_ends_its_requests_with_what_they_have(step: str) -> None:
    bench = pipelined(lambda **more: start_model(tiny_model(), **more))
    expected = bench.run(make_request("whole", make_prompt(20), 12))[0].tokens
    executor: Any = bench.executor
    act, calls = getattr(executor, step), 0

    def fail_at_the_fifth(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise ValueError("a mistake")
        return act(*args)

    setattr(executor, step, fail_at_the_fifth)
    (outcome,) = bench.run(make_request("a", make_prompt(20), 12))
    # Four tokens were drawn before, and the fourth was in flight.
    assert outcome.last == Failed("a", "engine_error", "ValueError: a mistake", outcome.last.usage)
    assert outcome.tokens == expected[:4]
    assert bench.run(make_request("b", make_prompt(20), 12))[0].tokens == expected
    bench.engine.close(drain=True)


def test_a_long_prompt_beside_a_token_in_flight_is_computed_in_smaller_pieces() -> None:
    def start(**more: Any) -> Bench:
        return start_model(tiny_model(), token_budget=128, max_running=4, **more)

    requests = [make_request("short", make_prompt(9), 12), make_request("long", make_prompt(150, 1), 3)]
    expected = told_of(start(), *requests)
    bench = pipelined(start)
    bench.fail_steps(OutOfMemory("none left"))
    assert told_of(bench, *requests) == expected


def test_numbers_that_are_none_reach_no_other_request() -> None:
    import torch

    bench = pipelined(lambda **more: start_model(tiny_model(), **more), kv_blocks=12)
    with torch.no_grad():
        bench.network.get_input_embeddings().weight[96] = float("nan")
    bad = make_request("bad", [*(t % 96 for t in make_prompt(39, 9)), 96, 5, 6], 20)
    fine = [make_request(str(n), [t % 96 for t in make_prompt(20, n)], 12) for n in range(3)]
    expected = [
        bench.run(replace(request, request_id=f"first {request.request_id}"))[0].tokens for request in fine
    ]
    *others, failed = bench.run(*fine, bad)
    assert isinstance(failed.last, Failed)
    assert failed.last.code == "engine_error"
    after = [
        bench.run(replace(request, request_id=f"{request.request_id} {n}"))[0]
        for n in range(3)
        for request in fine
    ]
    assert [other.tokens for other in others] == expected
    assert [outcome.tokens for outcome in after] == expected * 3
    bench.engine.close(drain=True)


@pytest.mark.parametrize("seed", range(3))
def test_every_request_ends_once_and_every_block_comes_back(seed: int) -> None:
    """Requests come while others run, are cancelled at any moment, fail, and take each other's memory."""
    dice = random.Random(seed)
    bench = pipelined(
        lambda **more: start_model(tiny_model(), **more),
        kv_blocks=8, max_running=5, token_budget=11, max_waiting=200,
    )  # fmt: skip
    requests = [
        make_request(
            str(n),
            make_prompt(dice.randint(1, 40), dice.randint(0, 9)),
            dice.randint(1, 80),
            priority=dice.choice((0, 0, 0, 1, -1)),
            temperature=dice.choice((0.0, 1.0)),
            stop_ids=frozenset(dice.sample(range(97), dice.randint(0, 2))),
        )
        for n in range(60)
    ]
    waiting = requests[20:]
    ends: list[str] = []

    def meddle(message: Outbound) -> None:
        if isinstance(message, Finished | Failed):
            ends.append(message.request_id)
        if waiting and dice.random() < 0.3:
            bench.engine.submit(waiting.pop())
        if dice.random() < 0.05:
            bench.engine.cancel(message.request_id)
        if dice.random() < 0.01:
            bench.fail_steps(OutOfMemory("none left"))

    bench.listener.when_told = meddle
    bench.run(*requests[:20])
    bench.listener.wait(lambda: not waiting and len(ends) == 60)
    bench.engine.close(drain=True)
    assert sorted(ends) == sorted(request.request_id for request in requests)
    # An engine that ends has checked its books.
    stats = bench.engine.stats()
    assert (stats.deaths, stats.kv_blocks_used) == (0, 0)
    assert stats.preemptions > 0
    reasons = {
        m.reason
        for request in requests
        for m in bench.listener.of(request.request_id)
        if isinstance(m, Finished)
    }
    assert reasons == {"stop", "length", "cancelled"}
