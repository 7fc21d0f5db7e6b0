"""Frames that are written to a client's connection where they are published."""

import asyncio
from typing import Any
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from server.delivery.frames import FramePage
from server.delivery.hub import Channel, Published
from server.http.asgi.answers import DONE, KEEP_ALIVE_LINE, EventStream, StreamPosition
from server.http.asgi.body_writer import BODY_WRITER
from tests.support.builders import examples
from tests.unit.server.http.asgi.asgi_messages import Client, Writer, run

FRAMES = [b"event: e%d\ndata: {}\n\n" % n for n in range(12)]
KEEP_ALIVE_S = 15.0


def never(_first: int, _last: bytes | None) -> FramePage:
    raise AssertionError("the store was asked for nothing")


class Stream:
    """A channel that gets frames."""

    def __init__(self) -> None:
        self.channel = Channel(stored=True, start=0)

    def add(self, *frames: bytes, end: bool = False) -> None:
        self.channel.add(Published(uuid4(), self.channel.next_seq or 0, frames, b"{}" if end else None))


def follow_directly(stream: Stream, transform: Any = None) -> tuple[Client, Writer, "asyncio.Task[None]"]:
    """A client whose connection can be written to."""
    client = Client()
    writer = Writer(client)
    client.scope["state"] = {BODY_WRITER: writer}
    answer = EventStream(
        StreamPosition(stream.channel, never), keep_alive=KEEP_ALIVE_S, headers={}, transform=transform
    )
    return client, writer, client.ask(answer)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 2)), max_size=8))
@examples(60)
def test_a_stream_is_whole_in_whatever_way_its_frames_are_written(
    commits: list[tuple[int, bool, int]],
) -> None:
    async def main() -> Client:
        stream = Stream()
        client, writer, task = follow_directly(stream)
        left = list(FRAMES)
        for size, is_ready, turns in commits:
            writer.is_ready = is_ready
            stream.add(*left[:size])
            del left[:size]
            for _ in range(turns):
                await asyncio.sleep(0)
        stream.add(*left, end=True)
        await task
        return client

    client = run(main)
    assert client.body == b"".join(FRAMES) + DONE
    assert client.ended


def test_a_client_that_keeps_up_is_written_to_where_frames_are_published() -> None:
    async def main() -> tuple[list[bytes], list[bytes], Client]:
        stream = Stream()
        client, writer, task = follow_directly(stream)
        await asyncio.sleep(1)
        stream.add(*FRAMES[:2])
        at_once = list(writer.written)
        writer.is_ready = False
        stream.add(FRAMES[2])
        await client.until(lambda: client.body == b"".join(FRAMES[:3]))
        writer.is_ready = True
        await asyncio.sleep(1)
        stream.add(FRAMES[3])
        stream.add(b"x" * 40_000)
        stream.add(*FRAMES[5:], end=True)
        await task
        return at_once, writer.written, client

    at_once, written, client = run(main)
    assert at_once == [b"".join(FRAMES[:2])]
    assert written == [*at_once, FRAMES[3]]
    assert client.body == b"".join(FRAMES[:4]) + b"x" * 40_000 + b"".join(FRAMES[5:]) + DONE


def test_a_stream_that_is_written_to_is_kept_alive_after_silence_only() -> None:
    async def main() -> Client:
        stream = Stream()
        client, _, task = follow_directly(stream)
        for frame in FRAMES:
            await asyncio.sleep(10)
            stream.add(frame)
        await asyncio.sleep(20)
        stream.add(end=True)
        await task
        return client

    assert run(main).body == b"".join(FRAMES) + KEEP_ALIVE_LINE + DONE


def test_a_frame_that_cannot_be_rewritten_ends_its_own_stream_and_no_other() -> None:
    class Broken:
        def rewrite(self, _index: int, _frames: list[bytes]) -> list[bytes]:
            raise ValueError("broken")

        def end(self) -> list[bytes]:
            return []

    async def main() -> tuple[object, Client]:
        stream = Stream()
        _, _, broken = follow_directly(stream, Broken())
        await asyncio.sleep(1)
        client, _, task = follow_directly(stream)
        await asyncio.sleep(1)
        stream.add(*FRAMES[:1])
        stream.add(*FRAMES[1:], end=True)
        await task
        return (await asyncio.gather(broken, return_exceptions=True))[0], client

    failure, client = run(main)
    assert isinstance(failure, ValueError)
    assert client.body == b"".join(FRAMES) + DONE
