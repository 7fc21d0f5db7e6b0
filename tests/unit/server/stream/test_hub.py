import asyncio
from uuid import uuid4

import pytest

from server.stream import hub as hub_module
from server.stream.hub import Channel, Hub, Published
from tests.unit.server.stream.asgi import now, run

GRACE = 15.0


def make_channel(gone: list[float], *, stored: bool = True) -> Channel:
    return Channel(stored=stored, start=0, on_abandoned=lambda: gone.append(now()), grace=GRACE)


def add(channel: Channel, *frames: bytes, final: bytes | None = None) -> None:
    channel.add(Published(uuid4(), channel.next_seq or 0, frames, final))


def test_a_channel_gives_the_frames_from_a_position_on() -> None:
    channel = make_channel([])
    add(channel, b"0", b"1")
    add(channel, b"2")
    assert [channel.after(n) for n in range(5)] == [[b"0", b"1", b"2"], [b"1", b"2"], [b"2"], [], []]


def test_a_stored_channel_keeps_its_tail_and_sends_others_to_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_module, "TAIL_FRAMES", 2)
    channel = make_channel([])
    add(channel, b"0", b"1", b"2", b"3")
    assert [channel.after(n) for n in range(5)] == [None, None, [b"2", b"3"], [b"3"], []]


def test_a_channel_that_is_not_stored_keeps_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "TAIL_FRAMES", 2)
    channel = make_channel([], stored=False)
    add(channel, b"0", b"1", b"2", b"3")
    assert channel.after(0) == [b"0", b"1", b"2", b"3"]


def test_every_reader_is_woken() -> None:
    async def main() -> None:
        channel = make_channel([])
        wakers = [channel.join(), channel.join()]
        add(channel, b"0")
        assert all(waker.is_set() for waker in wakers)

    run(main)


@pytest.mark.parametrize(("stored", "expected"), [(True, [GRACE]), (False, [0.0])])
def test_an_abandoned_run_is_told_of_after_the_grace_and_once(stored: bool, expected: list[float]) -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        channel = make_channel(gone, stored=stored)
        channel.leave(channel.join())
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == expected


def test_a_run_with_another_reader_is_not_abandoned() -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        channel = make_channel(gone)
        channel.join()
        channel.leave(channel.join())
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == []


def test_a_reader_that_comes_back_within_the_grace_keeps_the_run() -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        channel = make_channel(gone)
        channel.leave(channel.join())
        await asyncio.sleep(GRACE - 1)
        channel.join()
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == []


def test_the_grace_begins_anew_with_every_reader_that_leaves() -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        channel = make_channel(gone)
        channel.leave(channel.join())
        await asyncio.sleep(GRACE - 2)
        waker = channel.join()
        await asyncio.sleep(1)
        channel.leave(waker)
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == [2 * GRACE - 1]


def test_an_ended_run_is_not_abandoned() -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        late, early = make_channel(gone), make_channel(gone)
        late.leave(late.join())
        add(late, final=b"{}")
        waker = early.join()
        add(early, final=b"{}")
        early.leave(waker)
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == []


def test_the_hub_delivers_to_the_channel_and_forgets_it_at_the_end() -> None:
    async def main() -> None:
        hub = Hub(asyncio.get_running_loop())
        response = uuid4()
        assert not hub.follows(response)
        channel = hub.open(response, stored=True, grace=1, on_abandoned=lambda: None)
        assert hub.watch("acme", response) is channel
        assert hub.follows(response)
        hub.publish([Published(response, 0, (b"0",), None), Published(uuid4(), 0, (b"x",), None)])
        hub.publish([Published(response, 1, (b"1",), b"{}")])
        assert channel.after(0) == []
        await asyncio.sleep(0)
        assert channel.after(0) == [b"0", b"1"]
        assert channel.final == b"{}"
        assert not hub.follows(response)
        hub.publish([Published(response, 2, (b"2",), None)])
        await asyncio.sleep(0)
        assert channel.after(0) == [b"0", b"1"]

    run(main)


def test_a_hub_whose_loop_is_closed_takes_what_it_is_told() -> None:
    loop = asyncio.new_event_loop()
    hub = Hub(loop)
    response = uuid4()
    hub.open(response, stored=True, grace=1, on_abandoned=lambda: None)
    loop.close()
    hub.publish([Published(response, 0, (b"0",), None)])
