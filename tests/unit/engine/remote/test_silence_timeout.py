"""A call that has given nothing for a time ends, whatever it waits for, and no other does."""

import asyncio

import pytest

from engine.remote import http_client
from engine.remote.engine_protocol import CallFault
from engine.remote.http_client import SilenceTimeout
from engine.remote.server_choice import EngineServer

SILENCE = 300.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(http_client, "monotonic", clock)
    return clock


async def wait_in(silence: SilenceTimeout, entered: asyncio.Event) -> None:
    async with silence.watching(set()):
        entered.set()
        await asyncio.Event().wait()


async def begin(silence: SilenceTimeout) -> asyncio.Task[None]:
    entered = asyncio.Event()
    task = asyncio.create_task(wait_in(silence, entered))
    await entered.wait()
    return task


async def pass_time(clock: Clock, seconds: float, silence: SilenceTimeout, task: asyncio.Task[None]) -> bool:
    """Whether the call still runs after these seconds."""
    clock.now += seconds
    silence.check()
    for _ in range(5):  # its cancellation, and what it does then
        await asyncio.sleep(0)
    return not task.done()


def test_a_call_that_has_given_nothing_for_the_time_is_a_fault_of_its_server(clock: Clock) -> None:
    async def main() -> None:
        silence = SilenceTimeout(EngineServer("http://e"), SILENCE)
        task = await begin(silence)
        assert await pass_time(clock, SILENCE - 1, silence, task)
        assert not await pass_time(clock, 1, silence, task)
        with pytest.raises(CallFault, match="silence of 300 s") as raised:
            await task
        assert raised.value.kind == "failed"

    asyncio.run(main())


def test_each_part_of_an_answer_begins_the_time_again(clock: Clock) -> None:
    async def main() -> None:
        silence = SilenceTimeout(EngineServer("http://e"), SILENCE)
        task = await begin(silence)
        for _ in range(10):
            assert await pass_time(clock, SILENCE - 1, silence, task)
            silence.hear()
        assert not await pass_time(clock, SILENCE, silence, task)

    asyncio.run(main())


def test_a_call_that_waits_in_the_queue_waits_on_while_others_of_its_server_get_tokens(clock: Clock) -> None:
    async def main() -> None:
        server = EngineServer("http://e")
        queued, other = (
            SilenceTimeout(server, SILENCE),
            SilenceTimeout(server, SILENCE),
        )
        task = await begin(queued)
        for _ in range(10):
            assert await pass_time(clock, SILENCE - 1, queued, task)
            other.hear()
        assert not await pass_time(clock, SILENCE, queued, task)

    asyncio.run(main())


def test_a_call_that_has_begun_is_lost_though_others_of_its_server_get_tokens(clock: Clock) -> None:
    async def main() -> None:
        server = EngineServer("http://e")
        begun, other = (
            SilenceTimeout(server, SILENCE),
            SilenceTimeout(server, SILENCE),
        )
        task = await begin(begun)
        begun.hear()
        assert await pass_time(clock, SILENCE - 1, begun, task)
        other.hear()
        assert not await pass_time(clock, 1, begun, task)

    asyncio.run(main())


def test_a_new_call_has_the_whole_time_at_a_server_that_had_nothing_to_do(clock: Clock) -> None:
    async def main() -> None:
        silence = SilenceTimeout(EngineServer("http://e", chunk_at=clock.now - 10 * SILENCE), SILENCE)
        task = await begin(silence)
        assert await pass_time(clock, SILENCE - 1, silence, task)
        assert not await pass_time(clock, 1, silence, task)

    asyncio.run(main())


def test_a_silent_call_that_is_cancelled_is_cancelled(clock: Clock) -> None:
    async def main() -> None:
        silence = SilenceTimeout(EngineServer("http://e"), SILENCE)
        task = await begin(silence)
        clock.now += SILENCE
        silence.check()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_timeout_within_a_call_stays_one() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with SilenceTimeout(EngineServer("http://e"), SILENCE).watching(set()), asyncio.timeout(0):
                await asyncio.Event().wait()

    asyncio.run(main())


def test_the_time_of_a_pause_is_no_silence(clock: Clock) -> None:
    async def main() -> None:
        silence = SilenceTimeout(EngineServer("http://e"), SILENCE)
        task = await begin(silence)
        clock.now += SILENCE - 1
        silence.set_paused(True)
        assert await pass_time(clock, SILENCE, silence, task)
        clock.now += SILENCE - 1
        silence.set_paused(False)
        assert await pass_time(clock, SILENCE - 1, silence, task)
        assert not await pass_time(clock, 1, silence, task)

    asyncio.run(main())
