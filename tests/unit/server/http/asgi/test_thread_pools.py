import asyncio
import threading
import time
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from server.errors import ApiError, Overloaded, TooManyRequests
from server.http.asgi.thread_pools import ThreadPool, Threads, ThreadShare, make_thread_pools, run_in_thread
from tests.support.no_thread import no_new_threads
from tests.support.server_process import PATIENCE_S
from tests.unit.server.http.asgi.asgi_messages import now, run

WAIT_S = 10.0
ALICE, BOB, CAROL = ThreadShare("alice"), ThreadShare("bob"), ThreadShare("carol")


class Work:
    """Functions that run until they are told to end, on the virtual clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        monkeypatch.setattr("server.http.asgi.thread_pools.run_in_thread", self._run)

    async def _run(self, _threads: object, function: str) -> str:
        self.begun.append(function)
        await self._ends.setdefault(function, asyncio.Event()).wait()
        return function

    async def end(self, name: str) -> None:
        self._ends.setdefault(name, asyncio.Event()).set()
        for _ in range(8):
            await asyncio.sleep(0)

    async def begin(self, threads: ThreadPool, share: ThreadShare, *names: str) -> list["asyncio.Task[Any]"]:
        given: list[Coroutine[Any, Any, Any]] = [threads.run(share, name) for name in names]  # type: ignore[arg-type]
        begun = [asyncio.create_task(one) for one in given]
        for _ in range(4):
            await asyncio.sleep(0)
        return begun


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


async def error_of(waiting: "asyncio.Future[Any]") -> ApiError:
    with pytest.raises(ApiError) as raised:
        await waiting
    return raised.value


def test_tenants_take_turns_however_long_one_s_queue_is(work: Work) -> None:
    async def main() -> list[str]:
        threads = ThreadPool(1, WAIT_S)
        await work.begin(threads, ALICE, "a0", "a1", "a2", "a3")
        await work.begin(threads, BOB, "b0", "b1")
        await work.begin(threads, CAROL, "c0")
        for name in ("a0", "b0", "c0", "a1", "b1", "a2", "a3"):
            await work.end(name)
        return work.begun

    assert run(main) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_a_tenant_has_half_of_the_threads_and_another_one_finds_the_rest(work: Work) -> None:
    async def main() -> list[str]:
        threads = ThreadPool(4, WAIT_S)
        await work.begin(threads, ALICE, "a0", "a1", "a2", "a3")
        await work.begin(threads, BOB, "b0")
        return work.begun

    assert run(main) == ["a0", "a1", "b0"]


def test_a_tenant_that_is_alone_has_all_threads(work: Work) -> None:
    async def main() -> list[str]:
        threads = ThreadPool(3, WAIT_S)
        await work.begin(threads, ThreadShare("default", unlimited=True), "a0", "a1", "a2", "a3")
        return work.begun

    assert run(main) == ["a0", "a1", "a2"]


def test_whoever_waits_behind_its_own_requests_gets_429_and_behind_others_503(work: Work) -> None:
    async def main() -> tuple[ApiError, ApiError, float]:
        threads = ThreadPool(2, WAIT_S)
        _, own = await work.begin(threads, ALICE, "a0", "a1")
        first = await error_of(own)
        await work.begin(threads, BOB, "b0")
        (others,) = await work.begin(threads, CAROL, "c0")
        return first, await error_of(others), now()

    first, others, at = run(main)
    assert (type(first), type(others), at) == (TooManyRequests, Overloaded, 2 * WAIT_S)
    assert first.retry
    assert others.retry


def test_who_gave_up_waiting_takes_no_turn(work: Work) -> None:
    async def main() -> tuple[list[str], int]:
        threads = ThreadPool(1, WAIT_S)
        await work.begin(threads, ALICE, "a0")
        given_up, left = await work.begin(threads, BOB, "b0", "b1")
        left.cancel()
        await error_of(given_up)
        await work.begin(threads, CAROL, "c0")
        await work.end("a0")
        await work.end("c0")
        return work.begun, threads.busy

    assert run(main) == (["a0", "c0"], 0)


def test_a_turn_that_comes_as_its_waiter_is_cancelled_goes_to_the_next(work: Work) -> None:
    async def main() -> list[str]:
        threads = ThreadPool(1, WAIT_S)
        (first,) = await work.begin(threads, ALICE, "a0")
        (second,) = await work.begin(threads, BOB, "b0")
        await work.begin(threads, CAROL, "c0")
        first.cancel()
        await asyncio.sleep(0)  # by which the turn is the second one's, who has not heard of it yet
        second.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        return work.begun

    assert run(main) == ["a0", "c0"]


def test_a_thread_is_free_again_whatever_its_function_raises() -> None:
    def fail() -> None:
        raise RuntimeError("no")

    async def main() -> int:
        threads = ThreadPool(1)
        for _ in range(3):
            with pytest.raises(RuntimeError):
                await threads.run(ALICE, fail)
        return await threads.run(ALICE, lambda: threads.busy)

    assert asyncio.run(main()) == 1


def test_full_classes_keep_no_other_class_waiting() -> None:
    """With as many slow functions in each as there are threads in all."""
    over = threading.Event()

    async def main() -> int:
        classes = make_thread_pools(16)
        others = (classes.auth, classes.read, classes.write, classes.stream)
        slow = [
            asyncio.ensure_future(one.run(ALICE, over.wait, PATIENCE_S)) for one in others for _ in range(28)
        ]
        try:
            await asyncio.sleep(0)
            for one in (classes.cancel, classes.health, classes.document):
                assert await asyncio.wait_for(one.run(ALICE, lambda: True), PATIENCE_S)
            return len([one for one in slow if not one.done()])
        finally:
            over.set()
            await asyncio.gather(*slow)

    assert asyncio.run(main()) == 4 * 28


@pytest.mark.parametrize("connections", [1, 5, 8, 10, 16, 64, 1000])
def test_the_classes_share_out_the_connections_and_none_is_without(connections: int) -> None:
    classes = make_thread_pools(connections)
    users = (classes.auth, classes.read, classes.write, classes.cancel, classes.stream)
    sizes = [one.size for one in users]
    assert min(sizes) >= 1
    assert sum(sizes) == max(connections, 5)


def handlers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "handler"}


def test_calls_run_at_once_in_threads_that_are_used_again() -> None:
    async def act() -> None:
        threads, meeting = Threads(), threading.Barrier(3)
        before = handlers()
        for _ in range(20):
            await asyncio.gather(*(threads.call(lambda: meeting.wait(PATIENCE_S)) for _ in range(3)))
        assert len(handlers() - before) == 3

    asyncio.run(act())


def test_a_call_has_a_copy_of_its_context_and_raises_what_it_raises() -> None:
    word = ContextVar("word", default="")

    def speak() -> str:
        said = word.get()
        word.set("changed")
        return said

    async def act() -> None:
        threads = Threads()
        word.set("mine")
        assert await threads.call(speak) == "mine"
        assert word.get() == "mine"
        with pytest.raises(ZeroDivisionError):
            await threads.call(lambda: 1 // 0)
        assert await threads.call(lambda: "goes on") == "goes on"

    asyncio.run(act())


def test_a_call_that_raises_stop_iteration_ends() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(Threads().call(lambda: next(iter(()))), PATIENCE_S)

    asyncio.run(main())


def test_a_call_that_nobody_waits_for_any_more_runs_to_its_end_beside_others() -> None:
    async def act() -> None:
        threads, goes_on, ended = Threads(), threading.Event(), threading.Event()

        def work() -> None:
            assert goes_on.wait(PATIENCE_S)
            ended.set()

        task = asyncio.ensure_future(run_in_thread(threads, work))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await threads.call(lambda: "another") == "another"
        assert not ended.is_set()
        goes_on.set()
        assert ended.wait(PATIENCE_S)

    asyncio.run(act())


def test_threads_end_with_their_pool_also_after_its_loop() -> None:
    async def act() -> set[threading.Thread]:
        before = handlers()
        threads = Threads()
        await asyncio.gather(*(threads.call(lambda: None) for _ in range(3)))
        return handlers() - before

    for thread in asyncio.run(act()):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_closed_pool_has_finished_its_calls() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        time.sleep(0.05)
        ended.set()

    async def act() -> Threads:
        threads = Threads()
        threads.call(work)
        assert begun.wait(PATIENCE_S)
        return threads

    threads = asyncio.run(act())
    threads.close()
    assert ended.is_set()


def test_a_thread_that_cannot_be_made_is_made_later() -> None:
    async def scenario() -> None:
        threads, together = Threads(), threading.Barrier(3)
        with no_new_threads():
            for _ in range(3):
                with pytest.raises(Overloaded):
                    await run_in_thread(threads, lambda: None)
        await asyncio.gather(*(run_in_thread(threads, together.wait, PATIENCE_S) for _ in range(3)))
        await asyncio.to_thread(threads.close)

    asyncio.run(scenario())


def test_a_call_for_which_no_thread_can_be_made_waits_for_another_one_s() -> None:
    async def scenario() -> None:
        threads, may_end = Threads(), threading.Event()
        first = threads.call(lambda: may_end.wait(PATIENCE_S))
        with no_new_threads():
            second = threads.call(lambda: "done")
        may_end.set()
        assert (await first, await second) == (True, "done")

    asyncio.run(scenario())
