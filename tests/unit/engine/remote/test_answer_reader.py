"""A streamed answer is read whole in whatever parts it arrives, and ends with a fault that says why."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from typing import NamedTuple

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.remote.engine_protocol import AnswerChunk, CallFault
from engine.remote.http_client import EVENT_BYTES, TOKENS_PER_CHUNK, AnswerReader, SilenceTimeout
from engine.remote.server_choice import EngineServer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
EVENTS = b"".join(b"data: %d\n\n" % token for token in range(40)) + b": a comment\n\n" + b"data: \xc3\xa9\n\n"
PATIENCE_S = 20.0

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]
Receive = Callable[[AnswerReader, AnswerChunk], bool]


class Read(NamedTuple):
    tokens: list[int]
    error: BaseException | None
    reusable: bool
    """A second answer could be read from the same connection."""


def as_token(data: bytes) -> AnswerChunk | None:
    return AnswerChunk(token_ids=(int(data),)) if data.isdigit() else None


def piece(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def parts_of(data: bytes, ends: Sequence[int]) -> list[bytes]:
    places = sorted({end % (len(data) + 1) for end in ends} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


def sending(parts: Sequence[bytes], end: bytes = END) -> Script:
    async def send(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(piece(part))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(end)

    return send


async def read_from(
    script: Script,
    receive: Receive = lambda _reader, _chunk: True,
    read_event: Callable[[bytes], AnswerChunk | None] = as_token,
    silence_timeout: float = PATIENCE_S,
) -> Read:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError), closing(writer):
            while (line := await reader.readuntil(b"\r\n\r\n")).startswith(b"GET"):
                writer.write(HEAD)
                await (script if b"/first" in line else sending([b"data: 7\n\n"]))(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    tokens: list[int] = []
    error: BaseException | None = None
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/first") as response:

            def take(chunk: AnswerChunk) -> bool:
                tokens.extend(chunk.token_ids)
                return receive(answer, chunk)

            silence = SilenceTimeout(EngineServer("http://e"), silence_timeout)
            answer = AnswerReader(response, read_event, take, silence)
            try:
                async with asyncio.timeout(PATIENCE_S), silence.watching(set()):
                    await answer.read(set())
            except Exception as raised:  # noqa: BLE001 - it is what the test is about
                error = raised
        async with session.get(f"{url}/second") as response:
            await response.read()
        reusable = connections == 1
    server.close()
    await server.wait_closed()
    return Read(tokens, error, reusable)


@given(ends=st.lists(st.integers(0, len(EVENTS)), max_size=30))
def test_an_answer_is_the_same_in_whatever_parts_it_arrives(ends: list[int]) -> None:
    read = asyncio.run(read_from(sending(parts_of(EVENTS, ends))))
    assert read == Read(list(range(40)), None, reusable=True)


def test_an_answer_of_which_no_more_is_wanted_ends_there() -> None:
    read = asyncio.run(read_from(sending([EVENTS]), lambda _, chunk: chunk.token_ids != (5,)))
    assert (read.tokens, read.error) == (list(range(6)), None)


def test_nothing_is_read_while_it_is_paused() -> None:
    read_while_paused: list[int] = []

    async def read() -> Read:
        paused, sent = asyncio.Event(), asyncio.Event()

        async def send_the_rest_when_paused(writer: asyncio.StreamWriter) -> None:
            writer.write(piece(b"data: 0\n\n"))
            await paused.wait()
            writer.write(piece(b"data: 1\n\n") + END)
            await writer.drain()
            sent.set()

        async def go_on(reader: AnswerReader) -> None:
            await sent.wait()
            await asyncio.sleep(0.02)  # longer than a loopback connection needs
            reader.paused = False
            reader.take()

        tasks: list[asyncio.Task[None]] = []

        def receive(reader: AnswerReader, chunk: AnswerChunk) -> bool:
            if reader.paused:
                read_while_paused.extend(chunk.token_ids)
            elif not tasks:
                reader.paused = True
                tasks.append(asyncio.create_task(go_on(reader)))
                paused.set()
            return True

        return await read_from(send_the_rest_when_paused, receive)

    assert asyncio.run(read()).tokens == [0, 1]
    assert read_while_paused == []


@pytest.mark.parametrize("count", [400, 430, 460, 520])
def test_what_came_during_a_pause_is_read_to_its_end(count: int) -> None:
    """Up to and beyond the 512 KiB that are parsed before they are read."""
    tokens = list(range(100 * count))
    events = [
        "".join(f"data: {one}\n\n" for one in tokens[at : at + 100]) for at in range(0, len(tokens), 100)
    ]

    async def read() -> Read:
        paused = asyncio.Event()

        async def send_the_rest_when_paused(writer: asyncio.StreamWriter) -> None:
            writer.write(piece(events[0].encode()))
            await paused.wait()
            writer.write(b"".join(piece(event.encode()) for event in events[1:]) + END)

        async def go_on(reader: AnswerReader) -> None:
            await asyncio.sleep(0.05)  # longer than a loopback connection needs
            reader.paused = False
            reader.take()

        tasks: list[asyncio.Task[None]] = []

        def receive(reader: AnswerReader, _chunk: AnswerChunk) -> bool:
            if not tasks:
                reader.paused = True
                tasks.append(asyncio.create_task(go_on(reader)))
                paused.set()
            return True

        return await read_from(send_the_rest_when_paused, receive, silence_timeout=1.0)

    assert asyncio.run(read()) == Read(tokens, None, reusable=True)


def test_a_server_that_falls_silent_is_given_up() -> None:
    async def hang(writer: asyncio.StreamWriter) -> None:
        writer.write(piece(b"data: 1\n\n"))
        await asyncio.sleep(PATIENCE_S)

    read = asyncio.run(read_from(hang, silence_timeout=0.1))
    assert read.tokens == [1]
    assert "silence" in str(read.error)


def test_a_server_that_only_sends_comments_is_given_up() -> None:
    async def hang(writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            for _ in range(int(PATIENCE_S / 0.01)):
                writer.write(piece(b": a comment\n\n"))
                await writer.drain()
                await asyncio.sleep(0.01)

    read = asyncio.run(read_from(hang, silence_timeout=0.1))
    assert isinstance(read.error, CallFault)
    assert "silence" in str(read.error)


def test_a_connection_that_is_lost_within_an_answer_is_an_error() -> None:
    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.write(piece(b"data: 1\n\ndata: 2"))
        await writer.drain()
        writer.transport.abort()

    read = asyncio.run(read_from(cut))
    assert read.tokens == [1]
    assert isinstance(read.error, aiohttp.ClientError)


@pytest.mark.parametrize("filler", [b": a comment\n\n", b"data: x\n\n", b"x"])
def test_what_has_no_tokens_is_bounded(filler: bytes) -> None:
    parts = [filler * (2**16 // len(filler))] * (2 * EVENT_BYTES // 2**16)
    read = asyncio.run(read_from(sending([b"data: 1\n\n", *parts])))
    assert read.tokens == [1]
    assert isinstance(read.error, CallFault)


def test_an_event_of_too_many_tokens_is_a_fault() -> None:
    def many(_data: bytes) -> AnswerChunk:
        return AnswerChunk(token_ids=(1,) * (TOKENS_PER_CHUNK + 1))

    read = asyncio.run(read_from(sending([EVENTS]), read_event=many))
    assert read.tokens == []
    assert isinstance(read.error, CallFault)


def test_what_the_reading_of_an_event_raises_ends_the_answer() -> None:
    def refuse(_data: bytes) -> AnswerChunk:
        raise CallFault("failed", "no answer of an engine")

    read = asyncio.run(read_from(sending([EVENTS]), read_event=refuse))
    assert str(read.error) == "no answer of an engine"
