import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response

from server.delivery.frames import FramePage
from server.delivery.hub import TAIL_FRAMES, Channel, Published
from server.errors import NotFound
from server.http.asgi.answers import DONE, KEEP_ALIVE_LINE, EventStream, FinalResponse, StreamPosition
from server.store.database_errors import DatabaseError
from tests.support.builders import examples
from tests.unit.server.http.asgi.asgi_messages import Client, inline_to_thread, now, run

FRAMES = [b"event: e%d\ndata: {}\n\n" % n for n in range(12)]
KEEP_ALIVE_S = 15.0
GRACE = 5.0


@pytest.fixture(autouse=True)
def on_the_virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio.to_thread", inline_to_thread)


def never(_first: int, _last: bytes | None) -> FramePage:
    raise AssertionError("the store was asked for nothing")


class Stream:
    """A channel, and clients that follow it."""

    def __init__(self, *, stored: bool = True, tail_frames: int = TAIL_FRAMES) -> None:
        self.abandoned: list[float] = []
        self.channel = Channel(stored=stored, start=0, tail_frames=tail_frames)
        self.channel.end_without_readers(lambda: self.abandoned.append(now()), GRACE)

    def add(self, *frames: bytes, end: bool = False) -> None:
        self.channel.add(Published(uuid4(), self.channel.next_seq or 0, frames, b"{}" if end else None))

    def follow(
        self, position: int = 0, read: Callable[[int, bytes | None], FramePage] = never
    ) -> tuple[Client, "asyncio.Task[None]"]:
        return follow(self.channel, position, read)


def follow(
    channel: Channel | None, position: int, read: Callable[[int, bytes | None], FramePage]
) -> tuple[Client, "asyncio.Task[None]"]:
    client = Client()
    headers = {"x-request-id": "req_1"}
    return client, client.ask(
        EventStream(StreamPosition(channel, read, position), keep_alive=KEEP_ALIVE_S, headers=headers)
    )


def deferred(stream: Stream, *, headers: dict[str, str] | None = None, **about: Any) -> FinalResponse:
    return FinalResponse(
        stream.channel,
        fallback=lambda: Response(b"as it stands"),
        headers=headers or {},
        **about,
    )


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
    assert client.headers["cache-control"] == "no-cache, no-store"


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


def test_a_reader_that_falls_behind_the_tail_goes_on_from_the_store() -> None:
    asked: list[int] = []

    def read(first: int, _last: bytes | None) -> FramePage:
        asked.append(first)
        return FramePage(FRAMES[first:8], False)

    async def main() -> Client:
        stream = Stream(tail_frames=3)
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


@pytest.mark.parametrize("position", [0, 2, 9, len(FRAMES)])
def test_a_response_that_runs_elsewhere_is_read_from_the_store_and_then_from_its_channel(
    position: int,
) -> None:
    asked: list[int] = []

    def read(first: int, _last: bytes | None) -> FramePage:
        asked.append(first)
        return FramePage(FRAMES[first:5], False)

    async def main() -> Client:
        channel = Channel(stored=True)
        client, task = follow(channel, position, read)
        await asyncio.sleep(0.5)
        channel.add(Published(uuid4(), 5, (), None))
        await asyncio.sleep(20)
        channel.add(Published(uuid4(), 5, tuple(FRAMES[5:9]), None))
        channel.add(Published(uuid4(), 7, tuple(FRAMES[7:]), b"{}"))
        await task
        return client

    assert run(main).body.replace(KEEP_ALIVE_LINE, b"") == b"".join(FRAMES[position:]) + DONE
    # After its silence the channel may go on from other events than the store had.
    assert asked == ([position, 5, 5] if position < 5 else [position])


def test_a_response_that_has_ended_is_replayed_at_once() -> None:
    async def main() -> tuple[Client, float]:
        client, task = follow(None, 0, lambda first, _last: FramePage(FRAMES[first:], True))
        await task
        return client, now()

    client, at = run(main)
    assert client.body == b"".join(FRAMES) + DONE
    assert at == 0


def test_a_response_that_is_deleted_ends_its_readers() -> None:
    async def main() -> list[Client]:
        channel = Channel(stored=True)
        stream, deferred = Client(), Client()
        headers = {"x-request-id": "req_1"}
        tasks = [
            stream.ask(
                EventStream(
                    StreamPosition(channel, there_is_nothing), keep_alive=KEEP_ALIVE_S, headers=headers
                )
            ),
            deferred.ask(FinalResponse(channel, fallback=refuse, headers=headers)),
        ]
        await asyncio.sleep(0.5)
        channel.add(Published(uuid4(), 0, (), None, gone=True))
        await asyncio.gather(*tasks)
        return [stream, deferred]

    def there_is_nothing(_first: int, _last: bytes | None) -> FramePage:
        return FramePage([], False)

    def refuse() -> Response:
        raise NotFound("Gone.")

    stream, deferred = run(main)
    assert (stream.body, stream.ended) == (DONE, True)
    assert (deferred.status, b"Gone." in deferred.body) == (404, True)


def test_a_store_that_does_not_answer_is_asked_again() -> None:
    async def main() -> tuple[Client, float]:
        def read(first: int, _last: bytes | None) -> FramePage:
            if now() < 20:
                raise DatabaseError("down")
            return FramePage(FRAMES[first:], True)

        client, task = follow(None, 0, read)
        await task
        return client, now()

    client, at = run(main)
    assert client.pieces == [KEEP_ALIVE_LINE, b"".join(FRAMES), DONE]
    assert at < 22


def test_a_long_replay_is_sent_in_blocks_of_whole_frames() -> None:
    many = [b"event: e\ndata: %s\n\n" % (b"x" * 1000)] * 500

    async def main() -> Client:
        client, task = follow(None, 0, read)
        await task
        return client

    def read(first: int, _last: bytes | None) -> FramePage:
        return FramePage(many[first : first + 200], first == 400)

    client = run(main)
    assert client.body == b"".join(many) + DONE
    assert all(piece.endswith(b"\n\n") for piece in client.pieces)
    assert max(map(len, client.pieces)) < 34_000
    assert len(client.pieces) < 24


def test_a_silent_stream_gives_signs_of_life_and_a_talking_one_does_not() -> None:
    async def main() -> Client:
        stream = Stream()
        client, task = stream.follow()
        await client.until(lambda: client.pieces.count(KEEP_ALIVE_LINE) == 2)
        await asyncio.sleep(10.25)
        stream.add(FRAMES[0])
        await client.until(lambda: client.pieces.count(KEEP_ALIVE_LINE) == 3)
        client.leave()
        await task
        return client

    client = run(main)
    assert client.pieces == [KEEP_ALIVE_LINE, KEEP_ALIVE_LINE, FRAMES[0], KEEP_ALIVE_LINE]
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


def test_a_client_that_leaves_in_a_long_replay_is_heard() -> None:
    async def main() -> int:
        reads = 0

        def read(_first: int, _last: bytes | None) -> FramePage:
            nonlocal reads
            reads += 1
            if reads == 3:
                client.leave()
            return FramePage([FRAMES[0]], False)

        client, task = follow(None, 0, read)
        await task
        return reads

    assert run(main) <= 4


def test_a_deferred_answer_is_the_final_response() -> None:
    async def main() -> list[Client]:
        stream = Stream()
        early, late = Client(), Client()
        first = early.ask(deferred(stream, headers={"x-request-id": "req_1"}))
        await asyncio.sleep(1)
        assert early.sent == []
        stream.add(FRAMES[0])
        await asyncio.sleep(1)
        stream.channel.add(Published(uuid4(), 1, (), b'{"id":1}'))
        second = late.ask(deferred(stream))
        await asyncio.gather(first, second)
        return [early, late]

    for client in run(main):
        assert (client.status, client.body, client.ended) == (200, b'{"id":1}', True)
        assert client.headers["content-type"] == "application/json"


def test_a_deferred_client_that_leaves_gets_nothing_and_gives_up_the_run() -> None:
    async def main() -> tuple[Client, list[float]]:
        stream = Stream(stored=False)
        client = Client()
        task = client.ask(deferred(stream))
        await asyncio.sleep(1)
        client.leave()
        await task
        await asyncio.sleep(1)
        return client, stream.abandoned

    client, abandoned = run(main)
    assert (client.sent, abandoned) == ([], [1])


def test_a_deferred_answer_that_may_not_wait_longer_is_the_response_as_it_stands() -> None:
    async def main() -> tuple[Client, float]:
        stream = Stream()
        client = Client()
        task = client.ask(deferred(stream, seconds=3.0))
        await asyncio.sleep(1)
        stream.add(FRAMES[0])
        await task
        return client, now()

    client, at = run(main)
    assert (client.status, client.body, at) == (200, b"as it stands", 3)


def test_a_reader_that_the_store_has_brought_beyond_its_channel_waits_there() -> None:
    async def main() -> Client:
        stream = Stream()
        stream.add(*FRAMES[:3])
        client, task = stream.follow(5)
        await asyncio.sleep(1)
        stream.add(*FRAMES[3:5])
        await asyncio.sleep(1)
        assert client.pieces == []
        stream.add(*FRAMES[5:], end=True)
        await task
        return client

    assert run(main).body == b"".join(FRAMES[5:]) + DONE
