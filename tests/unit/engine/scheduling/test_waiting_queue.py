"""Turns of the shares, and requests that begin alike."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.sequence import TokenSequence
from engine.scheduling.waiting_queue import MIN_ACCOUNTS_TO_PRUNE
from tests.support.play import Play, limits
from tests.support.rounds import example_count

SIZES = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 10)), min_size=1, max_size=6)
"""Prompts and outputs."""

# Shares


def shares_by_turn(sequences: list[TokenSequence]) -> str:
    turned = sorted(
        (s.admission_order, s.request.fairness_key) for s in sequences if s.admission_order is not None
    )
    return "".join(fairness_key for _, fairness_key in turned)


def test_one_request_of_a_share_is_next_when_another_share_has_queued_a_thousand() -> None:
    play = Play(limits(max_running=2))
    many = [play.add(6, 3, salt, fairness_key="a") for salt in range(1000)]
    for _ in range(20):
        play.step()
    turns = sum(s.admission_order is not None for s in many)
    one = play.add(6, 3, 1, fairness_key="b")
    while one.admission_order is None:
        play.step()
    assert one.admission_order == turns + 1


def test_shares_take_turns_when_their_requests_are_alike() -> None:
    play = Play(limits(max_running=1))
    requests = [play.add(6, 3, n, fairness_key=fairness_key) for n, fairness_key in enumerate("aaaabbbbcccc")]
    play.finish()
    assert shares_by_turn(requests) == "abcabcabcabc"


def test_a_share_with_long_requests_gets_fewer_of_them_done() -> None:
    play = Play(limits(max_running=1))
    long = [play.add(18, 6, n, fairness_key="a") for n in range(4)]
    short = [play.add(6, 2, 10 + n, fairness_key="b") for n in range(12)]
    while sum(s.admission_order is not None for s in short) < 9:
        play.step()
    assert sum(s.admission_order is not None for s in long) == 3


def test_a_share_that_was_away_has_earned_no_credit() -> None:
    play = Play(limits(max_running=1))
    play.add(6, 3, fairness_key="b")
    play.finish()
    requests = [play.add(6, 3, 1 + n, fairness_key="a") for n in range(20)]
    while shares_by_turn(requests) != "a" * 8:
        play.step()
    requests += [play.add(6, 3, 30 + n, fairness_key="b") for n in range(6)]
    play.finish()
    assert shares_by_turn(requests)[8:18] == "ba" * 5


def test_what_the_cache_had_costs_a_share_nothing() -> None:
    play = Play(limits(max_running=1))
    play.add(21, 1)
    play.finish()
    warm = [play.add(21, 1, fairness_key="warm") for _ in range(9)]
    cold = [play.add(21, 1, 1 + n, fairness_key="cold") for n in range(9)]
    while sum(s.admission_order is not None for s in cold) < 2:
        play.step()
    assert all(s.admission_order is not None for s in warm)


def test_accounts_that_are_settled_are_forgotten() -> None:
    play = Play(limits(max_running=1))
    before, held, waiting = play.held(), list[int](), list[TokenSequence]()
    for n in range(4 * MIN_ACCOUNTS_TO_PRUNE):
        waiting += [play.add(5, 1, n, fairness_key=key) for key in (str(n), "always here")]
        while len(waiting) > 1:
            play.step()
            waiting = [request for request in waiting if request.admission_order is None]
        held.append(play.held())
    assert max(held) <= max(held[: 2 * MIN_ACCOUNTS_TO_PRUNE])
    play.finish()
    assert play.held() == before


@settings(max_examples=example_count(40), deadline=None)
@given(
    sizes=SIZES,
    others=SIZES,
    running=st.integers(1, 4),
)
def test_shares_that_wait_are_given_the_same(
    sizes: list[tuple[int, int]], others: list[tuple[int, int]], running: int
) -> None:
    """No more apart than what requests can run up between two turns: a prompt, and all running outputs."""
    play = Play(limits(max_running=running))
    most = 20 + running * 10
    one, other = list[TokenSequence](), list[TokenSequence]()
    for n in range(12):
        one.append(play.add(*sizes[n % len(sizes)], n, fairness_key="a"))
        other.append(play.add(*others[n % len(others)], 50 + n, fairness_key="b"))
    while all(any(request.admission_order is None for request in requests) for requests in (one, other)):
        assert abs(given_to(one) - given_to(other)) <= most
        play.step()


@settings(max_examples=example_count(60), deadline=None)
@given(
    sizes=SIZES,
    others=SIZES,
    priorities=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    running=st.integers(1, 4),
    ahead=st.integers(0, 8),
)
def test_a_share_that_lowers_requests_of_its_own_is_given_no_more_than_another_that_waits(
    sizes: list[tuple[int, int]],
    others: list[tuple[int, int]],
    priorities: list[int],
    running: int,
    ahead: int,
) -> None:
    """Whatever ran before the other came; from then on no more than requests can run up between two turns."""
    play = Play(limits(max_running=running, kv_blocks=128))
    lowering = [
        play.add(*sizes[n % len(sizes)], n, fairness_key="b", priority=priorities[n % len(priorities)])
        for n in range(14)
    ]
    for _ in range(ahead):
        play.step()
    before = given_to(lowering)
    waiting = [play.add(*others[n % len(others)], 50 + n, fairness_key="a") for n in range(12)]
    most = 20 + running * 10
    while any(request.admission_order is None for request in waiting):
        play.step()
        assert given_to(lowering) - before <= given_to(waiting) + most


def given_to(requests: list[TokenSequence]) -> int:
    """Tokens of the prompts that had their turn, and of the outputs."""
    return sum(len(request.tokens) for request in requests if request.admission_order is not None)


def test_a_request_of_lower_urgency_waits_for_all_shares() -> None:
    play = Play(limits(max_running=1))
    lesser = play.add(6, 3, priority=5, fairness_key="b")
    requests = [play.add(6, 3, 1 + n, fairness_key=fairness_key) for n, fairness_key in enumerate("aabb")]
    play.finish()
    assert shares_by_turn(requests) == "abab"
    assert lesser.admission_order == 5


def test_the_order_costs_little_when_thousands_wait() -> None:
    play = Play(limits(max_running=8, kv_blocks=4096))
    for n in range(5000):
        play.add(4, 2, n, fairness_key=str(n % 50))
    began = time.process_time()
    for _ in range(100):
        play.scheduler.advance(plan := play.scheduler.plan())
        for chunk in plan:
            if chunk.samples_token and (reason := chunk.sequence.append(1)):
                play.end(chunk.sequence, reason)
    assert time.process_time() - began < 2.0, "a step with thousands of waiting requests takes 20 ms"


# Requests that begin alike


def test_requests_of_one_prompt_cost_one_prefill() -> None:
    play = Play(limits(token_budget=16))
    requests = [play.add(50, 5) for _ in range(6)]
    play.finish()
    # The rest of the prompt after its last whole block, and the outputs but for the last of each.
    assert play.scheduler.counters.computed_tokens == 48 + 6 * (50 - 48) + 6 * 4
    assert [request.cached for request in requests] == [0, 48, 48, 48, 48, 48]
    assert len(play.ended) == 6


def test_requests_that_join_during_the_prefill_wait_for_it() -> None:
    play = Play(limits(token_budget=16))
    first = play.add(50, 5)
    play.step()
    late = play.add(50, 5)
    steps = 0
    while late.admission_order is None:
        play.step()
        steps += 1
    assert first.num_computed_tokens >= 50
    assert steps == 3, "two for what they share, and in the third it starts"
    assert late.cached == 48


def test_a_request_that_shares_only_a_beginning_waits_for_no_more_than_that() -> None:
    play = Play(limits(token_budget=16, kv_blocks=128))
    long = play.add(200, 1)
    play.step()
    half = play.add(40, 1)
    while half.admission_order is None:
        play.step()
    assert long.num_computed_tokens < 100
    assert half.cached == 36


def test_the_next_takes_over_when_the_one_that_computes_is_cancelled() -> None:
    play = Play(limits(token_budget=16))
    first, second, third = (play.add(50, 5) for _ in range(3))
    play.step()
    play.end(first, "cancelled")
    play.finish()
    assert (second.cached, third.cached) == (16, 48)
    assert len(play.ended) == 3


def test_nobody_waits_for_a_request_of_worse_priority() -> None:
    play = Play(limits(token_budget=16))
    lesser = play.add(50, 5, priority=3)
    play.step()
    urgent = play.add(50, 5)
    plan = play.step()
    assert urgent.cached == 16
    assert plan[0].sequence is urgent
    play.finish()
    assert len(lesser.tokens) == len(urgent.tokens) == 55


def test_nobody_waits_for_a_request_of_another_salt() -> None:
    play = Play(limits(token_budget=64, kv_blocks=128))
    play.add(20, 5, cache_salt="one")
    other = play.add(20, 5, cache_salt="another")
    play.step()
    assert other.admission_order == 2


@pytest.mark.parametrize("running", [1, 2, 8])
def test_requests_that_each_begin_with_the_one_before_all_end(running: int) -> None:
    play = Play(limits(max_running=running, kv_blocks=20))
    for n in range(1, 12):
        play.add(4 * n + 1, 6)
    steps = 0
    while not play.scheduler.idle:
        play.step()
        steps += 1
    assert steps < 11 * 8
    assert len(play.ended) == 11
