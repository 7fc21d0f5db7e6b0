import logging
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest

from engine.core import local_engine
from engine.core.step_metrics import EngineMetrics
from engine.executor import OutOfMemory
from engine.request import Failed, Outbound, RequestRefused
from engine.scheduling import block_pool
from tests.support.engines import Bench, make_prompt, make_request, start_scripted
from tests.support.eventually import eventually


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = start_scripted()
    yield bench
    bench.engine.close(drain=False)


def test_the_requests_go_on_when_the_listener_raises(bench: Bench) -> None:
    bench.listener.broken = RuntimeError("a listener's mistake")
    (outcome,) = bench.run(make_request("a", make_prompt(20), max_tokens=5))
    assert len(outcome.tokens) == 5
    assert bench.engine.stats().alive


def test_a_long_prompt_is_computed_in_smaller_pieces_when_memory_runs_out() -> None:
    bench = start_scripted(token_budget=128)
    bench.fail_steps(OutOfMemory("none left"))
    (outcome,) = bench.run(make_request("a", make_prompt(200), max_tokens=1))
    assert len(outcome.tokens) == 1
    assert bench.engine.stats().steps == 4
    bench.engine.close(drain=True)


def test_a_long_prompt_fails_when_the_smallest_piece_is_too_much(bench: Bench) -> None:
    bench.fail_steps(OutOfMemory("none left"), times=100)
    (outcome,) = bench.run(make_request("a", make_prompt(200)))
    assert outcome.last == Failed("a", "out_of_memory", "none left", outcome.last.usage)


def test_an_idle_engine_checks_its_books_and_dies_when_they_are_wrong(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.run(make_request("a", make_prompt(20)))
    bench.engine._core._scheduler.pool._ref_counts[1] += 1
    bench.engine.cancel("nobody")  # wakes it, so that it becomes idle again
    eventually(lambda: bench.engine.stats().deaths == 1)
    assert "block 1 is counted 1 times, held 0 times" in caplog.text


def test_an_idle_engine_has_no_speed_and_lives_on_when_its_books_are_right(bench: Bench) -> None:
    bench.run(make_request("0", make_prompt(20)))
    assert bench.engine.stats().tokens_per_second > 0
    eventually(lambda: bench.engine.stats().tokens_per_second == 0.0)
    assert bench.engine.stats().tokens == 16
    for n in (1, 2):
        bench.run(make_request(str(n), make_prompt(20)))
    bench.engine.close(drain=True)
    assert len(bench.listener.of("2")) == 17


def test_the_engine_thread_makes_other_threads_give_way_sooner(bench: Bench) -> None:
    bench.run(make_request("a", make_prompt(20)))
    assert sys.getswitchinterval() <= local_engine.SWITCH_INTERVAL


def test_a_failed_request_is_logged_by_its_id(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        bench.fail_steps(ValueError("a broken step"))
        bench.run(make_request("request-77", make_prompt(20)))
    assert "request-77" in caplog.text
    assert "a broken step" in caplog.text


def test_a_request_with_a_priority_of_more_than_32_bits_is_refused(bench: Bench) -> None:
    with pytest.raises(RequestRefused) as refusal:
        bench.engine.submit(make_request("a", make_prompt(20), priority=2**40))
    assert refusal.value.reason == "bad_limit"


# Limits


def test_a_share_is_refused_when_it_has_as_many_requests_as_one_may() -> None:
    bench = start_scripted(max_per_key=2)
    with bench.listener.held():
        for n in range(2):
            bench.engine.submit(make_request(str(n), make_prompt(20, n), fairness_key="greedy"))
        with pytest.raises(RequestRefused) as refusal:
            bench.engine.submit(make_request("2", make_prompt(20), fairness_key="greedy"))
        bench.engine.submit(make_request("other", make_prompt(20), fairness_key="modest"))
    assert refusal.value.reason == "share_full"
    for request_id in ("0", "1", "other"):
        assert len(bench.listener.outcome(request_id).tokens) == 16
    bench.engine.submit(make_request("2", make_prompt(20), fairness_key="greedy"))
    bench.engine.close(drain=True)


def test_a_limit_of_shares_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="max_per_key"):
        start_scripted(max_per_key=0)
    with pytest.raises(ValueError, match="hang_seconds"):
        start_scripted(hang_seconds=0.0)


# Memory


def test_the_last_requests_in_the_order_wait_when_generating_alone_is_too_much(bench: Bench) -> None:
    def starve_when_all_generate(_message: Outbound) -> None:
        if len(bench.listener.of("urgent")) == 3:
            bench.listener.when_told = lambda _message: None
            bench.fail_steps(OutOfMemory("none left"), times=2)

    bench.listener.when_told = starve_when_all_generate
    first, second, third, urgent = bench.run(
        make_request("first", make_prompt(20)),
        make_request("second", make_prompt(20, 1)),
        make_request("third", make_prompt(20, 2)),
        make_request("urgent", make_prompt(20, 3), priority=-1),
    )
    assert {len(outcome.tokens) for outcome in (first, second, third, urgent)} == {16}
    assert bench.engine.stats().alive


# Figures


def test_figures_tell_of_prompts_the_cache_and_recent_steps(bench: Bench) -> None:
    bench.run(make_request("a", make_prompt(40)))
    bench.run(make_request("b", make_prompt(40)))
    stats = bench.engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.tokens) == (80, 32, 32)
    assert stats.prefix_hit_rate == 0.4
    assert stats.computed_tokens == 80 - 32 + 32 - 2
    assert 0 < stats.step_seconds.p50 <= stats.step_seconds.p90 <= stats.step_seconds.p99
    assert stats.tokens_per_second > 0
    assert (stats.preemptions, stats.deaths) == (0, 0)


def test_preemptions_are_counted() -> None:
    bench = start_scripted(kv_blocks=9)
    bench.run(*(make_request(str(n), make_prompt(20, n), 40) for n in range(4)))
    assert bench.engine.stats().preemptions > 0
    bench.engine.close(drain=True)


def test_percentiles_are_those_of_the_recent_steps() -> None:
    metrics = EngineMetrics(8, 4)
    for n in range(100):
        metrics.record_step(1000.0 + n, 1000.5 + n, 1)
    for n in range(100):
        metrics.record_step(2000.0 + n / 100, 2000.0 + n / 100 + (n + 1) / 10_000, 3)
    metrics.publish(running=0, kv_blocks_used=0)
    seconds = metrics.stats.step_seconds
    assert (round(seconds.p50, 4), round(seconds.p90, 4), round(seconds.p99, 4)) == (0.005, 0.009, 0.0099)
    assert metrics.stats.tokens_per_second == pytest.approx(300, rel=0.02)


# The way in


def test_the_thread_that_submits_does_the_slow_work_for_a_long_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = start_scripted(context_length=200_000)
    threads: list[str] = []
    make = block_pool.chained_digest

    def noted(previous: bytes, token_ids: Sequence[int]) -> bytes:
        threads.append(threading.current_thread().name)
        return make(previous, token_ids)

    monkeypatch.setattr(block_pool, "chained_digest", noted)
    bench.run(make_request("a", make_prompt(100_000), 4))
    assert threads.count("holdfast-engine") == 0
    assert len(threads) == 6250
    bench.engine.close(drain=True)
