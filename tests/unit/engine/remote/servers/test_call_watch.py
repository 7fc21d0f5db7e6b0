"""A call ends from outside whatever it waits for, and at no other time."""

import asyncio

import pytest

from engine.remote.interface import EngineFault
from engine.remote.servers import call_watch
from engine.remote.servers.call_watch import CallWatch
from engine.remote.servers.silence import ServerSigns

SILENCE = 300.0
FAULT = EngineFault("failed", "it is lost")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(call_watch, "monotonic", clock)
    return clock


async def wait_in(watch: CallWatch, entered: asyncio.Event) -> None:
    async with watch.watching():
        entered.set()
        await asyncio.Event().wait()


async def begin(watch: CallWatch) -> asyncio.Task[None]:
    entered = asyncio.Event()
    task = asyncio.create_task(wait_in(watch, entered))
    await entered.wait()
    return task


def test_a_call_that_is_ended_raises_the_fault_where_it_waits() -> None:
    async def main() -> None:
        watch = CallWatch(ServerSigns(), SILENCE)
        task = await begin(watch)
        watch.end(FAULT)
        watch.end(EngineFault("failed", "another"))
        with pytest.raises(EngineFault, match="it is lost"):
            await task

    asyncio.run(main())


def test_a_call_that_is_cancelled_and_ended_together_is_cancelled() -> None:
    async def main() -> None:
        watch = CallWatch(ServerSigns(), SILENCE)
        task = await begin(watch)
        watch.end(FAULT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_timeout_within_a_call_stays_one() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with CallWatch(ServerSigns(), SILENCE).watching(), asyncio.timeout(0):
                await asyncio.Event().wait()

    asyncio.run(main())


def test_a_silent_call_waits_on_while_another_of_its_server_gets_chunks(clock: Clock) -> None:
    async def main() -> None:
        server = ServerSigns()
        silent, other = CallWatch(server, SILENCE), CallWatch(server, SILENCE)
        task = await begin(silent)
        for _ in range(10):
            clock.now += 200
            other.hear_chunk()
            silent.look()
            await asyncio.sleep(0)
            assert not task.done()
        clock.now += SILENCE
        silent.look()
        with pytest.raises(EngineFault, match="silence of 300 s"):
            await task

    asyncio.run(main())


def test_the_time_of_a_pause_is_no_silence(clock: Clock) -> None:
    async def main() -> None:
        watch = CallWatch(ServerSigns(), SILENCE)
        task = await begin(watch)
        clock.now += SILENCE - 1
        watch.set_paused(True)
        clock.now += SILENCE
        watch.look()
        clock.now += SILENCE - 1
        watch.set_paused(False)
        clock.now += SILENCE - 1
        watch.look()
        await asyncio.sleep(0)
        assert not task.done()
        clock.now += 1
        watch.look()
        with pytest.raises(EngineFault):
            await task

    asyncio.run(main())
