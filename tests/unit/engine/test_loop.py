import logging
import sys
from collections.abc import Iterator

import pytest

from engine import loop, supervisor
from engine.executor import OutOfMemory
from engine.messages import Failed
from tests.support.engines import Bench, make_job, make_prompt, start_scripted
from tests.support.eventually import eventually


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = start_scripted()
    yield bench
    bench.engine.close(drain=False)


def test_the_jobs_go_on_when_the_listener_raises(bench: Bench) -> None:
    bench.listener.broken = RuntimeError("a listener's mistake")
    (outcome,) = bench.run(make_job("a", make_prompt(20), max_tokens=5))
    assert len(outcome.tokens) == 5
    assert bench.engine.stats().alive


def test_a_long_prompt_is_computed_in_smaller_pieces_when_memory_runs_out() -> None:
    bench = start_scripted(token_budget=128)
    bench.fail_steps(OutOfMemory("none left"))
    (outcome,) = bench.run(make_job("a", make_prompt(200), max_tokens=1))
    assert len(outcome.tokens) == 1
    assert bench.engine.stats().steps == 4
    bench.engine.close(drain=True)


def test_a_long_prompt_fails_when_the_smallest_piece_is_too_much(bench: Bench) -> None:
    bench.fail_steps(OutOfMemory("none left"), times=100)
    (outcome,) = bench.run(make_job("a", make_prompt(200)))
    assert outcome.last == Failed("a", "out_of_memory", "none left", outcome.last.usage)


def test_an_idle_engine_checks_its_books_and_dies_when_they_are_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "IDLE_CHECK_AFTER", 0.01)
    bench = start_scripted()
    bench.run(make_job("a", make_prompt(20)))
    bench.engine._supervisor.loop._scheduler.pool._holders[1] += 1
    bench.engine.cancel("nobody")  # wakes it, so that it becomes idle again
    eventually(lambda: bench.engine.stats().deaths == 1)
    assert "block 1 is counted 1 times, held 0 times" in caplog.text


def test_an_idle_engine_whose_books_are_right_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "IDLE_CHECK_AFTER", 0.0)
    bench = start_scripted()
    for n in range(3):
        bench.run(make_job(str(n), make_prompt(20)))
    bench.engine.close(drain=True)
    assert len(bench.listener.of("2")) == 17


def test_the_engine_thread_makes_other_threads_give_way_sooner(bench: Bench) -> None:
    bench.run(make_job("a", make_prompt(20)))
    assert sys.getswitchinterval() <= supervisor.SWITCH_INTERVAL


def test_a_failed_job_is_logged_by_its_id(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        bench.fail_steps(ValueError("a broken step"))
        bench.run(make_job("job-77", make_prompt(20)))
    assert "job-77" in caplog.text
    assert "a broken step" in caplog.text
