import asyncio
from collections.abc import Callable
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.stream import hub as hub_module
from server.stream import sse
from server.stream.hub import Channel, Published
from server.stream.sse import DONE, KEEP_ALIVE, Deferred, EventStream, Stored, Timing
from tests.support.builders import examples
from tests.unit.server.stream.asgi import Client, inline, now, run

FRAMES = [b"event: e%d\ndata: {}\n\n" % n for n in range(12)]
TIMING = Timing(keep_alive=15.0, send=30.0)
GRACE = 5.0


@pytest.fixture(autouse=True)
def on_the_virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "run_in_threadpool", inline)


def never(_first: int) -> Stored:
    raise AssertionError("the store was asked for nothing")


class Stream:
    """A channel, and clients that follow it."""

    def __init__(self, *, stored: bool = True) -> None:
        self.abandoned: list[float] = []
        self.channel = Channel(stored=stored, on_abandoned=lambda: self.abandoned.append(now()), grace=GRACE)

    def add(self, *frames: bytes, end: bool = False) -> None:
        self.channel.add(Published(uuid4(), frames, b"{}" if end else None))

    def follow(
        self, position: int = 0, read: Callable[[int], Stored] = never
    ) -> tuple[Client, "asyncio.Task[None]"]:
        return follow(self.channel, position, read)


def follow(
    channel: Channel | None, position: int, read: Callable[[int], Stored]
) -> tuple[Client, "asyncio.Task[None]"]:
    client = Client()
    headers = {"x-request-id": "req_1"}
    return client, client.ask(EventStream(channel, read, position=position, timing=TIMING, headers=headers))


@given(st.lists(st.integers(0, 4), max_size=8), st.integers(0, 14))
@examples(60)
def test_a_stream_is_every_frame_from_the_position_on_whole_and_then_done_once(
    sizes: list[int], position: int
) -> None:
    async def main() -> Client:
        stream = Stream()
        client, task = stream.follow(position)
        left = list(FRAMES)
        for size in sizes:
            stream.add(*left[:size])
            del left[:size]
            await asyncio.sleep(1)
        stream.add(*left, end=True)
        await task
        return client

    client = run(main)
    assert client.body == b"".join(FRAMES[position:]) + DONE
    assert all(piece.endswith(b"\n\n") for piece in client.pieces)
    assert client.ended
    assert (client.status, client.headers["x-request-id"]) == (200, "req_1")
    assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert client.headers["cache-control"] == "no-store"


def test_a_reader_that_joins_late_gets_what_was_before() -> None:
    async def main() -> list[Client]:
        stream = Stream()
        stream.add(*FRAMES[:5])
        first, one = stream.follow()
        second, two = stream.follow(3)
        await first.until(lambda: len(first.sent) == 2)
        stream.add(*FRAMES[5:], end=True)
        third, three = stream.follow(11)
        await asyncio.gather(one, two, three)
        return [first, second, third]

    bodies = [client.body for client in run(main)]
    assert bodies == [b"".join(FRAMES[n:]) + DONE for n in (0, 3, 11)]


def test_what_is_ready_together_is_sent_together() -> None:
    async def main() -> Client:
        stream = Stream()
        stream.add(*FRAMES)
        client, task = stream.follow()
        stream.add(end=True)
        await task
        return client

    assert run(main).pieces == [b"".join(FRAMES), DONE]


def test_a_reader_that_falls_behind_the_tail_goes_on_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "TAIL_FRAMES", 3)
    asked: list[int] = []

    def read(first: int) -> Stored:
        asked.append(first)
        return Stored(FRAMES[first:8], False)

    async def main() -> Client:
        stream = Stream()
        client, task = stream.follow(read=read)
        stream.add(*FRAMES[:1])
        await client.until(lambda: client.body == FRAMES[0])
        stream.add(*FRAMES[1:8])
        await client.until(lambda: client.body == b"".join(FRAMES[:8]))
        stream.add(*FRAMES[8:10])
        await client.until(lambda: client.body == b"".join(FRAMES[:10]))
        stream.add(*FRAMES[10:], end=True)
        await task
        return client

    assert run(main).body == b"".join(FRAMES) + DONE
    assert asked == [1]


def test_a_response_that_runs_elsewhere_is_followed_through_the_store() -> None:
    async def main() -> Client:
        def read(first: int) -> Stored:
            there = min(len(FRAMES), int(now()))
            return Stored(FRAMES[first:there], there == len(FRAMES))

        client, task = follow(None, 2, read)
        await task
        return client

    client = run(main)
    assert client.body == b"".join(FRAMES[2:]) + DONE
    assert client.times[-1] <= len(FRAMES) + 1


def test_a_response_that_has_ended_is_replayed_at_once() -> None:
    async def main() -> tuple[Client, float]:
        client, task = follow(None, 0, lambda first: Stored(FRAMES[first:], True))
        await task
        return client, now()

    client, at = run(main)
    assert client.body == b"".join(FRAMES) + DONE
    assert at == 0


@pytest.mark.parametrize("here", [True, False])
def test_a_silent_stream_gives_signs_of_life_and_a_talking_one_does_not(here: bool) -> None:
    async def main() -> Client:
        stream = Stream()
        client, task = (
            stream.follow()
            if here
            else follow(None, 0, lambda first: Stored(FRAMES[first : int(now() > 40)], False))
        )
        await client.until(lambda: client.pieces.count(KEEP_ALIVE) == 2)
        if here:
            await asyncio.sleep(10.25)
            stream.add(FRAMES[0])
        await client.until(lambda: client.pieces.count(KEEP_ALIVE) == 3)
        client.leave()
        await task
        return client

    client = run(main)
    assert client.pieces == [KEEP_ALIVE, KEEP_ALIVE, FRAMES[0], KEEP_ALIVE]
    sent = client.times[1:5]
    assert [int(at) for at in sent] == [15, 30, 40, 55]


def test_a_client_that_leaves_ends_its_stream_at_once_and_the_run_after_the_grace() -> None:
    async def main() -> tuple[Client, float, list[float]]:
        stream = Stream()
        stream.add(*FRAMES[:2])
        client, task = stream.follow()
        await client.until(lambda: len(client.sent) == 2)
        await asyncio.sleep(7)
        client.leave()
        await task
        at = now()
        await asyncio.sleep(100)
        return client, at, stream.abandoned

    client, at, abandoned = run(main)
    assert (at, abandoned) == (7, [7 + GRACE])
    assert client.body == b"".join(FRAMES[:2])
    assert not client.ended


def test_a_client_that_stops_reading_is_dropped_after_the_send_time() -> None:
    async def main() -> tuple[Client, float, list[float]]:
        stream = Stream()
        stream.add(FRAMES[0])
        client, task = stream.follow()
        await client.until(lambda: len(client.sent) == 2)
        client.stalled = True
        stream.add(FRAMES[1])
        await task
        at = now()
        await asyncio.sleep(100)
        return client, at, stream.abandoned

    client, at, abandoned = run(main)
    assert (at, abandoned) == (TIMING.send, [TIMING.send + GRACE])
    assert client.body == FRAMES[0]


def test_a_client_that_leaves_in_a_long_replay_is_heard() -> None:
    async def main() -> int:
        reads = 0

        def read(_first: int) -> Stored:
            nonlocal reads
            reads += 1
            if reads == 3:
                client.leave()
            return Stored([FRAMES[0]], False)

        client, task = follow(None, 0, read)
        await task
        return reads

    assert run(main) <= 4


def test_a_deferred_answer_is_the_final_response() -> None:
    async def main() -> list[Client]:
        stream = Stream()
        early, late = Client(), Client()
        first = early.ask(Deferred(stream.channel, headers={"x-request-id": "req_1"}))
        await asyncio.sleep(1)
        assert early.sent == []
        stream.add(FRAMES[0])
        await asyncio.sleep(1)
        stream.channel.add(Published(uuid4(), (), b'{"id":1}'))
        second = late.ask(Deferred(stream.channel, headers={}))
        await asyncio.gather(first, second)
        return [early, late]

    for client in run(main):
        assert (client.status, client.body, client.ended) == (200, b'{"id":1}', True)
        assert client.headers["content-type"] == "application/json"


def test_a_deferred_client_that_leaves_gets_nothing_and_gives_up_the_run() -> None:
    async def main() -> tuple[Client, list[float]]:
        stream = Stream(stored=False)
        client = Client()
        task = client.ask(Deferred(stream.channel, headers={}))
        await asyncio.sleep(1)
        client.leave()
        await task
        await asyncio.sleep(1)
        return client, stream.abandoned

    client, abandoned = run(main)
    assert (client.sent, abandoned) == ([], [1])
