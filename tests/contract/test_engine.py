"""What every engine promises, whatever computes its tokens (`engine.request.Engine`)."""

import math
import threading
from dataclasses import replace
from typing import Any

import pytest

from engine.executor import EngineFault, OutOfMemory
from engine.request import (
    CancelReason,
    EngineRequest,
    Failed,
    Finished,
    Outbound,
    RequestRefused,
    Tokens,
    TokenUsage,
)
from tests.contract.conftest import Start
from tests.support.engines import Bench, make_prompt, make_request


def reason_of(last: Finished | Failed) -> str:
    return last.reason if isinstance(last, Finished) else last.code


# Endings


def test_a_request_ends_with_length_when_it_has_all_its_tokens(bench: Bench) -> None:
    (outcome,) = bench.run(make_request("a", make_prompt(20), max_tokens=5))
    assert outcome.last == Finished("a", "length", TokenUsage(prompt=20, cached=0, output=5))
    assert len(outcome.tokens) == 5


def test_a_request_ends_with_stop_when_a_stop_token_came_and_delivers_it(bench: Bench) -> None:
    (free,) = bench.run(make_request("free", make_prompt(20), max_tokens=30))
    stop = free.tokens[12]
    end = free.tokens.index(stop) + 1
    (stopped,) = bench.run(make_request("a", make_prompt(20), max_tokens=30, stop_ids=frozenset({stop})))
    assert stopped.tokens == free.tokens[:end]
    assert stopped.last == Finished("a", "stop", replace(stopped.last.usage, output=end))


def test_every_request_ends_once_when_many_run_and_some_are_cancelled(start: Start) -> None:
    bench = start(max_running=5, kv_blocks=24)
    requests = [
        make_request(str(n), make_prompt(1 + n * 5 % 70, n), max_tokens=1 + n % 30) for n in range(40)
    ]
    with bench.listener.held():
        for request in requests:
            bench.engine.submit(request)
        for request in requests[::3]:
            bench.engine.cancel(request.request_id)
    outcomes = [bench.listener.outcome(request.request_id) for request in requests]
    bench.engine.close(drain=True)
    assert len([m for batch in bench.listener.batches for m in batch if not isinstance(m, Tokens)]) == 40
    for request, outcome in zip(requests, outcomes, strict=True):
        assert reason_of(outcome.last) in ("length", "cancelled")
        assert outcome.last.usage.output == len(outcome.tokens)
        assert outcome.last.usage.prompt == len(request.prompt)


def test_a_request_with_the_same_id_is_taken_when_the_first_has_ended(bench: Bench) -> None:
    request = make_request("again", make_prompt(20))
    bench.run(request)
    bench.engine.submit(request)
    bench.engine.close(drain=True)
    assert sum(isinstance(message, Finished) for message in bench.listener.of("again")) == 2


# Cancel


@pytest.mark.parametrize("reason", ["cancelled", "stop"])
def test_a_cancelled_request_ends_with_the_next_delivery(bench: Bench, reason: CancelReason) -> None:
    def cancel_after_third_token(message: Outbound) -> None:
        if len(bench.listener.of("a")) == 3:
            bench.engine.cancel("a", reason)

    bench.listener.when_told = cancel_after_third_token
    victim, neighbour = bench.run(
        make_request("a", make_prompt(20), max_tokens=50), make_request("b", make_prompt(30), max_tokens=20)
    )
    assert victim.last == Finished("a", reason, replace(victim.last.usage, output=3))
    assert victim.deliveries == 4
    assert reason_of(neighbour.last) == "length"


def test_a_waiting_request_ends_with_the_next_delivery_when_it_is_cancelled(start: Start) -> None:
    bench = start(max_running=1)
    with bench.listener.held():
        bench.engine.submit(make_request("runs", make_prompt(20), max_tokens=50))
        bench.engine.submit(make_request("waits", make_prompt(20)))
        bench.engine.cancel("waits")
    outcome = bench.listener.outcome("waits")
    assert outcome.last == Finished("waits", "cancelled", TokenUsage(prompt=20))


def test_cancel_of_an_unknown_or_ended_request_does_nothing(bench: Bench) -> None:
    bench.run(make_request("a", make_prompt(20)))
    bench.engine.cancel("a")
    bench.engine.cancel("never seen")
    (outcome,) = bench.run(make_request("b", make_prompt(20)))
    assert reason_of(outcome.last) == "length"
    assert len(bench.listener.of("a")) == 17


# Tokens


def sampled(request_id: str, prompt: list[int], max_tokens: int = 24, **fields: Any) -> EngineRequest:
    return make_request(request_id, prompt, max_tokens, **{"temperature": 1.0, "seed": 11, **fields})


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0.0}, {"seed": 5}, {"top_p": 0.8, "temperature": 1.5}, {"top_k": 7}],
    ids=["greedy", "sampled", "top_p", "top_k"],
)
def test_a_request_has_the_same_tokens_alone_and_in_a_batch(start: Start, fields: dict[str, Any]) -> None:
    request = sampled("a", make_prompt(33), **fields)
    (alone,) = start().run(request)
    neighbours = [sampled(str(n), make_prompt(3 + 9 * n, n), seed=n, top_p=0.5 + n / 16) for n in range(6)]
    in_batch, *_ = start().run(request, *neighbours)
    assert in_batch.tokens == alone.tokens
    assert len(set(alone.tokens)) > 4, "a model that repeats itself proves nothing"


def test_a_seeded_request_continues_when_it_is_cut_at_any_token(bench: Bench) -> None:
    prompt = make_prompt(21)
    (whole,) = bench.run(sampled("whole", prompt, top_p=0.95))
    rests = [
        sampled(f"cut {n}", prompt + whole.tokens[:n], 24 - n, top_p=0.95)
        for n in range(1, len(whole.tokens))
    ]
    for n, outcome in enumerate(bench.run(*rests), start=1):
        assert outcome.tokens == whole.tokens[n:]


def test_sampled_requests_differ_when_their_seeds_do(bench: Bench) -> None:
    one, other = bench.run(sampled("a", make_prompt(20), seed=1), sampled("b", make_prompt(20), seed=2))
    assert one.tokens != other.tokens


def test_greedy_requests_agree_when_their_seeds_differ(bench: Bench) -> None:
    one, other = bench.run(
        make_request("a", make_prompt(20), seed=1), make_request("b", make_prompt(20), seed=2**63)
    )
    assert one.tokens == other.tokens


def test_a_request_is_unchanged_when_little_memory_makes_it_start_again(start: Start) -> None:
    requests = [sampled(str(n), make_prompt(20, n), max_tokens=40) for n in range(4)]
    roomy = start().run(*requests)
    tight = start(kv_blocks=9).run(*requests)
    assert [outcome.tokens for outcome in tight] == [outcome.tokens for outcome in roomy]


# Prefix reuse


def test_a_second_turn_takes_the_first_from_the_cache(bench: Bench) -> None:
    (first,) = bench.run(make_request("first", make_prompt(40), max_tokens=25))
    history = make_prompt(40) + first.tokens + make_prompt(10, 3)
    (second,) = bench.run(make_request("second", history))
    assert second.last.usage.cached == 64
    assert first.last.usage.cached == 0


def test_a_second_turn_takes_nothing_from_the_cache_of_another_salt(bench: Bench) -> None:
    bench.run(make_request("a", make_prompt(40), cache_salt="one"))
    (other,) = bench.run(make_request("b", make_prompt(40), cache_salt="other \ud800"))
    assert other.last.usage.cached == 0


# Refusals

GOOD = make_request("good", make_prompt(20))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (replace(GOOD, prompt=()), "bad_token"),
        (replace(GOOD, prompt=(1, 97)), "bad_token"),
        (replace(GOOD, prompt=(-1, 1)), "bad_token"),
        (replace(GOOD, prediction=(1, 97)), "bad_token"),
        (replace(GOOD, prompt=(1, 2**70)), "bad_token"),
        (replace(GOOD, prompt=(1, 2.5)), "bad_token"),  # type: ignore[arg-type]
        (replace(GOOD, max_tokens=0), "bad_limit"),
        (replace(GOOD, max_tokens=237), "too_long"),
        (replace(GOOD, sampling=replace(GOOD.sampling, temperature=-0.1)), "bad_sampling"),
        (replace(GOOD, sampling=replace(GOOD.sampling, temperature=math.nan)), "bad_sampling"),
        (replace(GOOD, sampling=replace(GOOD.sampling, temperature=math.inf)), "bad_sampling"),
        (replace(GOOD, sampling=replace(GOOD.sampling, top_p=0.0)), "bad_sampling"),
        (replace(GOOD, sampling=replace(GOOD.sampling, top_p=1.1)), "bad_sampling"),
        (replace(GOOD, sampling=replace(GOOD.sampling, top_k=-1)), "bad_sampling"),
        (replace(GOOD, sampling=replace(GOOD.sampling, seed=2**64)), "bad_sampling"),
    ],
)
def test_a_bad_request_is_refused_and_its_neighbour_unchanged(
    bench: Bench, bad: EngineRequest, reason: str
) -> None:
    (alone,) = bench.run(make_request("alone", make_prompt(20)))
    with bench.listener.held():
        bench.engine.submit(make_request("neighbour", make_prompt(20)))
        with pytest.raises(RequestRefused) as refusal:
            bench.engine.submit(bad)
    assert refusal.value.reason == reason
    assert bench.listener.outcome("neighbour").tokens == alone.tokens
    assert not bench.listener.of("good")


def test_a_request_is_refused_when_the_cache_could_never_hold_it(start: Start) -> None:
    bench = start(kv_blocks=3)
    with pytest.raises(RequestRefused) as refusal:
        bench.engine.check(make_request("a", make_prompt(20), max_tokens=29))
    assert refusal.value.reason == "too_long"
    (outcome,) = bench.run(make_request("a", make_prompt(20), max_tokens=28))
    assert reason_of(outcome.last) == "length"


def test_a_request_is_refused_when_one_of_its_id_has_not_ended(bench: Bench) -> None:
    with bench.listener.held():
        bench.engine.submit(make_request("a", make_prompt(20)))
        with pytest.raises(RequestRefused) as refusal:
            bench.engine.submit(make_request("a", make_prompt(30)))
    assert refusal.value.reason == "duplicate"
    assert bench.listener.outcome("a").last.usage.prompt == 20


def test_a_request_is_refused_when_the_queue_is_full(start: Start) -> None:
    bench = start(max_running=2, max_waiting=3)
    with bench.listener.held():
        for n in range(5):
            bench.engine.submit(make_request(str(n), make_prompt(20)))
        with pytest.raises(RequestRefused) as refusal:
            bench.engine.submit(make_request("one more", make_prompt(20)))
    assert refusal.value.reason == "overloaded"
    assert {reason_of(bench.listener.outcome(str(n)).last) for n in range(5)} == {"length"}


def test_a_request_is_refused_when_the_engine_is_closed(bench: Bench) -> None:
    bench.engine.close(drain=True)
    with pytest.raises(RequestRefused) as refusal:
        bench.engine.submit(GOOD)
    assert refusal.value.reason == "closed"


# Trouble


def test_only_the_requests_of_a_step_fail_when_it_raises(start: Start) -> None:
    bench = start(max_running=2)
    bench.fail_steps(ValueError("a broken step"))
    outcomes = bench.run(*(make_request(str(n), make_prompt(20, n)) for n in range(4)))
    failed = [outcome.last for outcome in outcomes if isinstance(outcome.last, Failed)]
    assert 1 <= len(failed) <= 2
    assert all(last.code == "engine_error" and "a broken step" in last.message for last in failed)
    assert bench.engine.stats().alive


@pytest.mark.parametrize("times", [1, 2])
def test_the_newest_requests_wait_and_all_are_whole_when_memory_runs_out(bench: Bench, times: int) -> None:
    expected = [
        outcome.tokens
        for outcome in bench.run(*(make_request(f"x{times} {n}", make_prompt(2, n)) for n in range(3)))
    ]

    def starve_when_all_run(message: Outbound) -> None:
        if bench.listener.of(f"{times} 2") == [message]:
            bench.fail_steps(OutOfMemory("none left"), times=times)

    bench.listener.when_told = starve_when_all_run
    outcomes = bench.run(*(make_request(f"{times} {n}", make_prompt(2, n)) for n in range(3)))
    assert [outcome.tokens for outcome in outcomes] == expected
    assert bench.engine.stats().preemptions >= times


def test_only_the_request_that_does_not_fit_alone_fails_when_memory_runs_out(bench: Bench) -> None:
    (expected,) = bench.run(make_request("x", make_prompt(2)))

    def starve_when_both_run(message: Outbound) -> None:
        if bench.listener.of("late") == [message]:
            bench.fail_steps(OutOfMemory("none left"), times=2)

    bench.listener.when_told = starve_when_both_run
    large, late = bench.run(
        make_request("large", make_prompt(2, 1), 40), make_request("late", make_prompt(2))
    )
    assert reason_of(large.last) == "out_of_memory"
    assert late.tokens == expected.tokens


def test_every_request_is_told_at_once_when_the_engine_dies(start: Start) -> None:
    bench = start(max_running=1)

    def die_after_first_token(message: Outbound) -> None:
        if isinstance(message, Tokens):
            bench.fail_steps(EngineFault("the device is gone"))

    bench.listener.when_told = die_after_first_token
    outcomes = bench.run(*(make_request(str(n), make_prompt(20, n)) for n in range(4)))
    assert [reason_of(outcome.last) for outcome in outcomes] == ["engine_dead"] * 4
    assert [len(batch) for batch in bench.listener.batches] == [1, 4]
    assert not bench.engine.stats().alive
    with pytest.raises(RequestRefused) as refusal:
        bench.engine.submit(GOOD)
    assert refusal.value.reason == "closed"
    bench.engine.close(drain=True)


@pytest.mark.parametrize("nonsense", [{"cache_salt": None}, {"stop_ids": None}], ids=str)
def test_a_request_that_cannot_be_handled_fails_alone(bench: Bench, nonsense: dict[str, Any]) -> None:
    neighbour, bad = bench.run(
        make_request("a", make_prompt(20)), make_request("b", make_prompt(20), **nonsense)
    )
    assert reason_of(bad.last) == "engine_error"
    assert reason_of(neighbour.last) == "length"


# Stats


def test_stats_tell_what_runs_and_what_waits(start: Start) -> None:
    bench = start(max_running=2)
    before = bench.engine.stats()
    assert (before.running, before.waiting, before.steps, before.tokens, before.alive) == (0, 0, 0, 0, True)
    with bench.listener.held():
        for n in range(5):
            bench.engine.submit(make_request(str(n), make_prompt(20, n)))
        bench.listener.wait(lambda: bool(bench.listener.batches))
        during = bench.engine.stats()
        assert during.running + during.waiting == 5
        assert 1 <= during.running <= 2
        assert during.kv_blocks_used >= 2
    for n in range(5):
        bench.listener.outcome(str(n))
    after = bench.engine.stats()
    assert (after.running, after.waiting, after.kv_blocks_used, after.tokens) == (0, 0, 0, 80)
    assert after.steps >= 16 * 2.5
    assert after.kv_blocks_total == before.kv_blocks_total


def test_a_step_is_one_delivery_when_several_requests_run(bench: Bench) -> None:
    bench.run(*(make_request(str(n), make_prompt(20, n)) for n in range(4)))
    assert len(bench.listener.batches) <= bench.engine.stats().steps


# Life


def test_close_finishes_the_accepted_requests_when_it_drains(start: Start) -> None:
    bench = start(max_running=1)
    for n in range(3):
        bench.engine.submit(make_request(str(n), make_prompt(20, n)))
    bench.engine.close(drain=True)
    assert {reason_of(bench.listener.outcome(str(n)).last) for n in range(3)} == {"length"}
    assert not bench.engine.stats().alive


def test_close_cancels_the_accepted_requests_when_it_does_not_drain(start: Start) -> None:
    bench = start(max_running=1)
    # Called by the listener, so that no request can end before.
    bench.listener.when_told = lambda _message: bench.engine.close(drain=False)
    outcomes = bench.run(*(make_request(str(n), make_prompt(20, n)) for n in range(3)))
    assert [reason_of(outcome.last) for outcome in outcomes] == ["cancelled"] * 3
    assert [outcome.last.usage.output for outcome in outcomes] == [1, 0, 0]


def test_close_ends_a_drain_that_is_under_way_when_it_does_not_drain(bench: Bench) -> None:
    def drain_then_abort(message: Outbound) -> None:
        bench.engine.close(drain=len(bench.listener.of("a")) == 1)

    bench.listener.when_told = drain_then_abort
    (outcome,) = bench.run(make_request("a", make_prompt(20)))
    assert outcome.last.usage.output == 2


def test_close_returns_when_the_engine_is_closed_already(bench: Bench) -> None:
    bench.engine.close(drain=True)
    bench.engine.close(drain=True)
    bench.engine.close(drain=False)
    assert not bench.engine.stats().alive


def test_no_thread_is_left_when_engines_come_and_go(start: Start, request: pytest.FixtureRequest) -> None:
    threads = set(threading.enumerate())
    for cycle in range(5 if "model" in request.node.name else 20):
        bench = start(max_running=2)
        for n in range(3):
            bench.engine.submit(make_request(str(n), make_prompt(20, n), max_tokens=4 + cycle))
        bench.engine.close(drain=cycle % 2 == 0)
        assert {bench.listener.outcome(str(n)).last.request_id for n in range(3)} == {"0", "1", "2"}
    # torch may keep workers of its own; ours all bear our name.
    left = set(threading.enumerate()) - threads
    assert [thread for thread in left if "holdfast" in thread.name] == []
