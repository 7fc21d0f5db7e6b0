"""Slots that few may have at a time: who gets a free one, in threads and on loops; what is left."""

import asyncio
import threading
from collections.abc import Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.fair_limit import FairLimit, NoSlot
from tests.support.contents import entries
from tests.support.eventually import eventually


def test_a_key_has_no_more_places_than_it_may_and_others_get_theirs() -> None:
    limit = FairLimit(total=2)
    limit.acquire("a", 1)
    with pytest.raises(NoSlot):
        limit.acquire("a", 0)
    limit.acquire("b", 1)
    with pytest.raises(NoSlot):
        limit.acquire("c", 0)
    assert [limit.used_by(key) for key in "abc"] == [1, 1, 0]


def test_a_free_place_goes_to_the_key_that_had_one_longest_ago() -> None:
    limit = FairLimit(total=1)
    order: list[str] = []

    def work(key: str) -> None:
        with limit.hold(key, 60):
            order.append(key)

    with ThreadPoolExecutor(8) as callers:
        limit.acquire("greedy", 1)
        for count, key in enumerate(["greedy", "greedy", "greedy", "modest", "late"]):
            callers.submit(work, key)
            eventually(lambda: sum(map(limit.waiting, ("greedy", "modest", "late"))) == count + 1)  # noqa: B023
        limit.release("greedy")
    assert order[:2] == ["modest", "late"]
    assert order[2:] == ["greedy"] * 3


def test_nothing_is_known_of_keys_that_are_gone() -> None:
    limit = FairLimit(total=1)
    before = entries(limit)
    for number in range(100):
        with limit.hold(str(number), 1), pytest.raises(NoSlot), limit.hold("late", 0):
            pass
    assert (limit.used, entries(limit)) == (0, before)


def test_a_place_is_given_back_when_the_work_fails() -> None:
    limit = FairLimit(total=1)
    with pytest.raises(ZeroDivisionError), limit.hold("a", 1):
        raise ZeroDivisionError
    with limit.hold("b", 0):
        assert threading.active_count() >= 1


class Calls:
    """Calls that go on until they are let go; `under_way` has those with a slot, in the order they got it."""

    def __init__(self, total: int, per_tenant: int, per_server: int, per_pair: int) -> None:
        self._slots = FairLimit(total, per_tenant)
        self._limits = (per_server, per_pair)
        self.under_way: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._go_on: dict[str, asyncio.Event] = {}

    async def begin(self, name: str, tenant: str, server: str) -> None:
        self._go_on[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._call(name, tenant, server))
        await settle()

    async def _call(self, name: str, tenant: str, server: str) -> None:
        per_server, per_pair = self._limits
        limits: dict[Hashable, int] = {("server", server): per_server, (tenant, server): per_pair}
        async with self._slots.holding(tenant, 60, limits):
            self.under_way.append(name)
            await self._go_on[name].wait()
        self.under_way.remove(name)

    async def end(self, name: str) -> None:
        self._go_on[name].set()
        await settle()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await settle()

    async def end_all(self) -> None:
        for event in self._go_on.values():
            event.set()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_a_server_that_never_answers_has_its_share_and_others_are_called() -> None:
    async def scene() -> None:
        calls = Calls(total=8, per_tenant=8, per_server=3, per_pair=3)
        for number in range(6):
            await calls.begin(f"hang{number}", "alice", "silent")
        await calls.begin("good", "alice", "good")
        assert calls.under_way == ["hang0", "hang1", "hang2", "good"]
        await calls.end_all()

    run(scene())


def test_a_tenant_has_its_share_of_a_server_and_of_all() -> None:
    async def scene() -> None:
        calls = Calls(total=8, per_tenant=3, per_server=4, per_pair=2)
        for number in range(4):
            await calls.begin(f"same{number}", "mallory", "city")
        await calls.begin("other1", "mallory", "town")
        await calls.begin("other2", "mallory", "village")
        await calls.begin("alice", "alice", "city")
        assert calls.under_way == ["same0", "same1", "other1", "alice"]
        await calls.end_all()

    run(scene())


def test_slots_go_to_the_waiting_tenants_in_turn() -> None:
    async def scene() -> None:
        calls = Calls(total=1, per_tenant=1, per_server=1, per_pair=1)
        for number in range(3):
            await calls.begin(f"m{number}", "mallory", "city")
        await calls.begin("a0", "alice", "city")
        order = []
        for _ in range(4):
            (name,) = calls.under_way
            order.append(name)
            await calls.end(name)
        assert order.index("a0") <= 2
        await calls.end_all()

    run(scene())


def test_a_call_that_is_cancelled_leaves_its_slot_or_its_place() -> None:
    async def scene() -> None:
        calls = Calls(total=1, per_tenant=1, per_server=1, per_pair=1)
        for name in ("first", "second", "third"):
            await calls.begin(name, "alice", "city")
        await calls.cancel("second")
        await calls.cancel("first")
        assert calls.under_way[-1] == "third"
        await calls.end_all()

    run(scene())


def test_who_waits_too_long_is_told_so() -> None:
    async def scene() -> None:
        limit = FairLimit(1)
        before = entries(limit)
        async with limit.holding("alice", 60):
            with pytest.raises(NoSlot):
                async with limit.holding("alice", 0.01):
                    raise AssertionError
        async with limit.holding("alice", 0.01):
            pass
        assert (limit.used, entries(limit)) == (0, before)

    run(scene())


def test_a_key_without_a_limit_of_its_own_may_have_all_slots() -> None:
    async def scene() -> None:
        limit = FairLimit(2, 1)
        async with limit.holding("any", 0, {"any": 2}), limit.holding("any", 0, {"any": 2}):
            assert limit.used == 2

    run(scene())


def test_a_thread_that_releases_wakes_the_loop_that_waits() -> None:
    limit = FairLimit(1)
    limit.acquire("thread", 1)

    async def scene() -> None:
        release = asyncio.get_running_loop().run_in_executor(None, limit.release, "thread")
        async with limit.holding("loop", 60):
            assert limit.used_by("loop") == 1
        await release

    run(scene())
