"""The deaths of an engine, told and survived."""

import gc
import logging
import resource
import threading
import time
import weakref
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from engine.core import local_engine
from engine.core.local_engine import LocalEngine
from engine.executor import EngineFault, ForwardHandle
from engine.request import Failed, Outbound, RequestRefused, Tokens
from engine.scheduling.scheduler import SchedulerOutput
from engine.scripted_engine import Fault, Script
from tests.support.engines import (
    PATIENCE,
    Bench,
    is_closed,
    make_prompt,
    make_request,
    start_model,
    start_scripted,
    start_scripted_with_thread,
    tiny_model,
)
from tests.support.eventually import eventually
from tests.support.rounds import faults_only


class Broken(BaseException):
    """What no handler of one request's errors keeps, and no failure of the device."""


class Owner:
    """Notes that an engine died for good."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.news = threading.Event()

    def __call__(self, why: str, /) -> None:
        self.told.append(why)
        self.news.set()


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def bench(owner: Owner) -> Iterator[Bench]:
    bench = start_scripted(on_dead=owner)
    yield bench
    bench.engine.close(drain=False)


def codes(bench: Bench, *request_ids: str) -> list[str]:
    lasts = [bench.listener.outcome(request_id).last for request_id in request_ids]
    return [last.code if isinstance(last, Failed) else last.reason for last in lasts]


def kill(bench: Bench, request_id: str, error: BaseException | None = None) -> None:
    """Has the engine die in the step of this request."""
    bench.fail_steps(error or Broken("a broken book"))
    bench.run(make_request(request_id, make_prompt(20)))


def test_the_engine_lives_on_after_a_first_death(bench: Bench, owner: Owner) -> None:
    (before,) = bench.run(make_request("before", make_prompt(40)))
    kill(bench, "victim")
    assert codes(bench, "victim") == ["engine_dead"]
    (after,) = bench.run(make_request("after", make_prompt(40)))
    assert after.tokens == before.tokens
    assert after.last.usage.cached == 0, "what the old life had cached is not trusted"
    assert (bench.engine.stats().alive, bench.engine.stats().deaths) == (True, 1)
    assert not owner.told


def test_every_request_is_told_of_a_death_before_another_life_begins(bench: Bench) -> None:
    alive: list[bool] = []

    def look(message: Outbound) -> None:
        if isinstance(message, Failed):
            alive.append(bench.engine.stats().alive)

    bench.listener.when_told = look
    bench.fail_steps(Broken("a broken book"))
    requests = [make_request(str(n), make_prompt(20, n)) for n in range(5)]
    bench.engine.set_paused(True)  # until all of them are there: they die together
    for request in requests:
        bench.engine.submit(request)
    bench.engine.set_paused(False)
    for request in requests:
        bench.listener.outcome(request.request_id)
    eventually(lambda: len(alive) == 5)
    assert alive == [False] * 5
    assert [len(batch) for batch in bench.listener.batches] == [5]
    eventually(lambda: bench.engine.stats().alive)


def test_a_death_is_told_to_hundreds_of_requests_within_a_second() -> None:
    bench = start_scripted(max_waiting=600)
    executor: Any = bench.executor
    died_at: list[float] = []
    told_after: list[float] = []

    def note(message: Outbound) -> None:
        if isinstance(message, Failed):
            told_after.append(time.monotonic() - died_at[0])

    def die(_plan: SchedulerOutput) -> ForwardHandle:
        died_at.append(time.monotonic())
        raise Broken("a broken book")

    bench.listener.when_told = note
    with bench.listener.held():
        bench.engine.submit(make_request("first", make_prompt(20)))
        bench.listener.wait(lambda: bool(bench.listener.batches))
        for n in range(600):
            bench.engine.submit(make_request(str(n), make_prompt(20, n)))
        executor.begin = die
    eventually(lambda: len(told_after) == 601)
    assert max(told_after) < 1.0
    bench.engine.close(drain=False)


def test_a_request_that_comes_between_two_lives_is_served(bench: Bench) -> None:
    def submit_another(message: Outbound) -> None:
        if isinstance(message, Failed):
            bench.engine.submit(make_request("between", make_prompt(20)))

    bench.listener.when_told = submit_another
    kill(bench, "victim")
    assert codes(bench, "victim", "between") == ["engine_dead", "length"]


def test_a_crash_of_the_script_is_survived(bench: Bench, owner: Owner) -> None:
    bench.engine.order_fault(Fault(kind="crash", at_token=2))  # type: ignore[attr-defined]
    bench.run(make_request("victim", make_prompt(20)))
    bench.run(make_request("after", make_prompt(20)))
    assert codes(bench, "victim", "after") == ["engine_dead", "length"]
    assert not owner.told


def test_a_second_death_within_a_minute_is_final(bench: Bench, owner: Owner) -> None:
    kill(bench, "first")
    kill(bench, "second")
    assert owner.news.wait(PATIENCE)
    assert codes(bench, "first", "second") == ["engine_dead"] * 2
    assert not bench.engine.stats().alive
    assert bench.engine.stats().deaths == 2
    with pytest.raises(RequestRefused) as refusal:
        bench.engine.submit(make_request("late", make_prompt(20)))
    assert refusal.value.reason == "closed"
    assert owner.told == ["Broken: a broken book"]


def test_a_second_death_after_a_minute_is_survived(
    bench: Bench, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(local_engine, "monotonic", lambda: now)
    for n in range(3):
        kill(bench, str(n))
        now += local_engine.RECOVERY_SECONDS
    (after,) = bench.run(make_request("after", make_prompt(20)))
    assert len(after.tokens) == 16
    assert not owner.told


def test_a_failure_of_the_device_is_final_at_once(bench: Bench, owner: Owner) -> None:
    kill(bench, "victim", EngineFault("the device is gone"))
    assert owner.news.wait(PATIENCE)
    assert bench.engine.stats().deaths == 1
    assert not bench.engine.stats().alive


def test_a_death_while_closing_is_no_news_to_the_owner(bench: Bench, owner: Owner) -> None:
    with bench.listener.held():
        bench.engine.submit(make_request("a", make_prompt(20)))
        bench.listener.wait(lambda: bool(bench.listener.batches))
        bench.fail_steps(Broken("a broken book"))
        closing = threading.Thread(target=lambda: bench.engine.close(drain=True))
        closing.start()
        eventually(lambda: is_closed(bench))
    closing.join(PATIENCE)
    assert codes(bench, "a") == ["engine_dead"]
    assert not owner.told


def test_an_engine_that_hangs_is_declared_dead_from_outside(owner: Owner) -> None:
    bench, thread = start_scripted_with_thread(on_dead=owner, hang_seconds=0.05)
    engine: Any = bench.engine
    engine.order_fault(Fault(kind="hang", at_token=2))
    for n in range(3):
        engine.submit(make_request(str(n), make_prompt(20, n)))
    assert owner.news.wait(PATIENCE)
    assert codes(bench, "0", "1", "2") == ["engine_dead"] * 3
    assert not engine.stats().alive
    assert engine.hanging.is_set(), "the thread hangs still"
    with pytest.raises(RequestRefused):
        engine.submit(make_request("late", make_prompt(20)))
    told = sum(map(len, bench.listener.batches))
    engine.close(drain=True)  # does not wait for the thread, but lets it go
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert sum(map(len, bench.listener.batches)) == told, "it came back and spoke"


def test_a_listener_that_does_not_come_back_is_the_engines_death_too(owner: Owner) -> None:
    bench = start_scripted(on_dead=owner, hang_seconds=0.2)
    with bench.listener.held():
        bench.engine.submit(make_request("a", make_prompt(20)))
        assert owner.news.wait(PATIENCE)
        assert not bench.engine.stats().alive
    assert codes(bench, "a") == ["engine_dead"]
    assert len(owner.told) == 1
    bench.engine.close(drain=False)


def test_a_host_that_hangs_between_two_steps_is_the_engines_death_too(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def hang(_self: object) -> SchedulerOutput:
        assert released.wait(PATIENCE)
        return ()

    monkeypatch.setattr("engine.scheduling.scheduler.Scheduler.plan", hang)
    bench = start_scripted(on_dead=owner, hang_seconds=0.2)
    bench.engine.submit(make_request("a", make_prompt(20)))
    assert owner.news.wait(PATIENCE)
    assert codes(bench, "a") == ["engine_dead"]
    released.set()
    bench.engine.close(drain=False)


def test_a_life_after_a_death_has_nothing_of_the_one_before(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    # What pytest keeps of the log has the traceback.
    caplog.set_level(logging.CRITICAL, "engine.core.engine_core")

    class Tensors:
        """In a frame of the step that broke."""

    left: list[weakref.ref[Tensors]] = []
    executor: Any = bench.executor
    begin = executor.begin

    def break_once(_plan: SchedulerOutput) -> ForwardHandle:
        tensors = Tensors()
        left.append(weakref.ref(tensors))
        executor.begin = begin
        raise Broken("a broken book")

    executor.begin = break_once
    bench.run(make_request("victim", make_prompt(20)))
    bench.run(make_request("after", make_prompt(20)))
    gc.collect()
    assert [each() for each in left] == [None]


def test_a_slow_step_within_the_limit_is_no_death() -> None:
    bench = start_scripted(hang_seconds=PATIENCE)
    engine: Any = bench.engine
    engine.order_fault(Fault(kind="hang", at_token=2))
    engine.submit(make_request("a", make_prompt(20)))
    assert engine.hanging.wait(PATIENCE)
    engine.resume()
    assert codes(bench, "a") == ["length"]
    bench.engine.close(drain=True)


# Nothing is left behind


@pytest.fixture
def silence() -> Iterator[None]:
    """No records of errors, which hold on to all that the error went through."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize(
    ("kind", "lives"), [("scripted", 20), ("model", 10), *faults_only(("scripted", 50), ("model", 50))]
)
def test_many_lives_leave_no_thread_and_no_memory(kind: str, lives: int) -> None:
    def live(cycle: int) -> None:
        bench = start_scripted() if kind == "scripted" else start_model(tiny_model(), kv_blocks=64)
        for n in range(3):
            bench.engine.submit(make_request(str(n), make_prompt(20, n), max_tokens=4))
        if cycle % 5 == 4:
            bench.fail_steps(Broken("a broken book"))
        bench.engine.close(drain=cycle % 2 == 0)
        assert len([m for batch in bench.listener.batches for m in batch if not isinstance(m, Tokens)]) == 3

    for cycle in range(3):
        live(cycle)
    threads, before = ours(), count(kind)
    for cycle in range(lives):
        live(cycle)
    assert ours() == threads
    assert count(kind) <= before + (100 if kind == "scripted" else 0)


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "holdfast" in thread.name]


def count(kind: str) -> int:
    """The objects that Python holds, or the tensors among them."""
    gc.collect()
    if kind == "scripted":
        return len(gc.get_objects())
    import torch

    # By the type: some libraries' objects warn when they are asked what they are.
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_five_hundred_requests_of_which_some_are_cancelled_leave_every_block_free() -> None:
    random = Random(5)
    bench = start_scripted(kv_blocks=40, max_running=12, max_waiting=600)
    most = 0

    def look(_message: Outbound) -> None:
        nonlocal most
        most = max(most, bench.engine.stats().kv_blocks_used)

    bench.listener.when_told = look
    for n in range(500):
        request = make_request(
            str(n),
            make_prompt(random.randint(1, 200), random.randint(0, 5)),
            random.randint(1, 40),
            priority=random.choice([0, 0, 1]),
            fairness_key=random.choice("abc"),
        )
        bench.engine.submit(request)
        if random.random() < 0.3:
            bench.engine.cancel(str(random.randint(0, n)))
    ends = codes(bench, *map(str, range(500)))
    assert set(ends) <= {"length", "cancelled"}
    assert {"length", "cancelled"} <= set(ends)
    bench.engine.close(drain=True)  # checks the books
    assert 20 < most <= 40
    assert bench.engine.stats().kv_blocks_used == 0
    assert sum(not isinstance(m, Tokens) for batch in bench.listener.batches for m in batch) == 500


@pytest.mark.parametrize("thousands", [4, *faults_only(10)])
def test_memory_is_flat_over_thousands_of_requests(thousands: int) -> None:
    bench = start_scripted(kv_blocks=64, script=Script(length=8))
    engine: LocalEngine = bench.engine

    def run_thousand(begin: int) -> int:
        for n in range(begin, begin + 1000, 50):
            requests = [
                make_request(str(i), make_prompt(30, i), 8, fairness_key=str(i)) for i in range(n, n + 50)
            ]
            bench.run(*requests)
            bench.listener.batches.clear()
        gc.collect()
        return resident()

    for begin in range(0, 3000, 1000):
        settled = run_thousand(begin)
    for begin in range(3000, thousands * 1000, 1000):
        now = run_thousand(begin)
    assert engine.stats().tokens == thousands * 8000
    assert now - settled < 4 * 2**20, f"{now - settled} bytes more"
    engine.close(drain=True)


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
