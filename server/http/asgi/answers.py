"""ASGI answers that wait for responses: EventStream sends their server-sent events, FinalResponse their JSON.

They wait on the event loop, and use a thread only to read the store.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from server.crashpoints import die, is_last_pass
from server.delivery.frames import FramePage
from server.delivery.hub import Channel
from server.errors import Overloaded, StreamForked, TooManyRequests
from server.http.asgi.body_writer import BodyWriter, body_writer
from server.http.asgi.thread_pools import RunInThread, store_reader
from server.http.json_responses import on_error
from server.protocol.responses.events import error_frame
from server.store.database_errors import DatabaseError


class StreamPosition:
    """The position of one reader in a response's events: the next ones come from a channel or from the store.

    A database that loses commits has numbers used again for other events, and a stream would be spliced of
    two. So a page of the store is read with the client's last frame, which must be stored before it. A
    channel's frames go on from that one, unless the channel has forked, or was behind the store when the
    client read that.
    """

    def __init__(
        self,
        channel: Channel | None,
        read: Callable[[int, bytes | None], FramePage],
        position: int = 0,
        first_page: FramePage | None = None,
    ) -> None:
        """`channel` is None if the response has ended. `read` gives the stored frames from a sequence number
        on, after the client's last frame, and is called in a thread; it raises StreamForked. `first_page` are
        frames that were read from `position` on already.
        """
        self.ended = False
        self.channel = channel
        self._read = read
        self._position = position
        self._first_page = first_page
        self._last = None if first_page is None else first_page.before
        """The client's last frame."""
        self._forks = 0
        """The channel's forks after which it is certain to go on from what the client has; -1 if only the
        store can tell."""

    @property
    def is_behind(self) -> bool:
        """Whether the next events are in the store only, not in the channel."""
        return not self.ended and self._from_channel() is None

    async def next_frames(self, run: RunInThread) -> Sequence[bytes]:
        """The frames since the last call; sets `ended` with the last ones. `run` runs reads of the store."""
        page, self._first_page = self._first_page, None
        if page is None and (frames := self._from_channel()) is not None:
            self.advance(frames)
            self.ended = self.channel is not None and self.channel.ended
            return frames
        forks = 0 if self.channel is None else self.channel.forks
        page = page or await self._read_page(run)
        self._position += page.length
        self._last = page.frames[-1] if page.frames else self._last
        self.ended = page.ended
        self._forks = -1 if self._is_ahead() else forks
        return page.frames

    def new_frames(self) -> Sequence[bytes] | None:
        """The channel's frames since `next_frames`; None if that has to be called."""
        if self.ended:
            return ()
        return None if self.channel is None or self.channel.ended else self._from_channel()

    def advance(self, frames: Sequence[bytes]) -> None:
        """These frames have been sent."""
        if frames:
            self._position += len(frames)
            self._last = frames[-1]

    def _from_channel(self) -> Sequence[bytes] | None:
        """The channel's frames from the position on; None if the store has to be read."""
        if self.channel is None or self.channel.forks != self._forks:
            return None
        return self.channel.after(self._position)

    def _is_ahead(self) -> bool:
        """Whether the client has events that the channel has not had: of their loss it would not know."""
        if self.channel is None or self._last is None:
            return False
        return self.channel.next_seq is None or self.channel.next_seq < self._position

    async def _read_page(self, run: RunInThread) -> FramePage:
        try:
            return await run(self._read, self._position, self._last)
        except StreamForked as fork:
            return FramePage([error_frame(self._position, str(fork.code), str(fork))], ended=True)
        except (DatabaseError, Overloaded, TooManyRequests):
            return FramePage([], False)  # the stream polls again


DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_LINE = b": keep-alive\n"
"""Comment for streams with `id:` lines, where openai-python parses a blank line behind as an empty event."""
_STORE_POLL_SECONDS = 1.0
"""Pause before a stream reads the store again that had no events for it, or did not answer."""
_FINAL_POLL_SECONDS = 2.0
"""Silence after which the store is read for a final response, which may be of another replica."""
_BLOCK_BYTES = 32 * 1024
"""Bytes of frames in one ASGI message: about what the listener has a client take within the send time."""


class Answer(Protocol):
    """An ASGI app that sends one response: a Starlette response, an EventStream or a FinalResponse."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class _Waker(asyncio.Event):
    """Set by news in channels, unless `on_news` deals with them, and by the client's disconnect."""

    def __init__(self, disconnected: asyncio.Future[None]) -> None:
        super().__init__()
        self.on_news: Callable[[], bool] | None = None
        self._disconnected = disconnected
        disconnected.add_done_callback(lambda _: super(_Waker, self).set())

    def set(self) -> None:
        if self.on_news is None or not self.on_news():
            super().set()

    def has_client(self) -> bool:
        return not self._disconnected.done()

    async def wait_for(self, seconds: float | None, on_news: Callable[[], bool] | None = None) -> None:
        """Waits until it is set or the time is over; `on_news` says whether it has dealt with news."""
        self.on_news = on_news
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            pass
        finally:
            self.on_news = None


@asynccontextmanager
async def _waker(channels: Iterable[Channel | None], receive: Receive) -> AsyncIterator[_Waker]:
    """A waker for the block. A client that does not read what it is sent is disconnected by the listener."""
    disconnected = asyncio.ensure_future(_receive_disconnect(receive))
    waker = _Waker(disconnected)
    joined = [channel for channel in channels if channel is not None]
    for channel in joined:
        channel.join(waker)
    try:
        yield waker
    finally:
        disconnected.cancel()
        for channel in joined:
            channel.leave(waker)


async def _receive_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class FrameTransform(Protocol):
    def rewrite(self, index: int, frames: Sequence[bytes]) -> list[bytes]:
        """The frames to send for these frames of the response at `index`."""

    def end(self) -> list[bytes]:
        """The frames to send before `[DONE]`, when all responses have ended."""


class EventStream:
    """Streams the events of one response from a position on, or of several rewritten into one stream.

    Ends with `[DONE]`. An ASGI message holds whole frames. While the client keeps up, new frames are written
    to its connection as they are published, and the stream's task sleeps.
    """

    def __init__(
        self,
        *positions: StreamPosition,
        keep_alive: float,
        headers: dict[str, str],
        transform: FrameTransform | None = None,
    ) -> None:
        """After `keep_alive` seconds of silence it sends a comment."""
        self._positions = positions
        self._keep_alive_seconds = keep_alive
        self._headers = headers
        self._transform = transform
        self._keep_alive = KEEP_ALIVE_LINE if transform is None else KEEP_ALIVE
        self._writer: BodyWriter | None = None
        self._silent_since = 0.0
        self._failure: Exception | None = None
        """The exception of `_write_news`, which the task raises."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._writer = body_writer(scope)
        async with _waker((position.channel for position in self._positions), receive) as waker:
            await send(_response_start(self._headers))
            async for block in self._blocks(waker, store_reader(scope)):
                if is_last_pass("stream.frame"):
                    await send(_body_part(block[: len(block) // 2 + 1]))
                    die()
                await send(_body_part(block))
                await asyncio.sleep(0)  # `send` on a reset connection never yields; let `receive` report it
            if waker.has_client():
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _blocks(self, waker: _Waker, run: RunInThread) -> AsyncIterator[bytes]:
        """Blocks of whole frames; ends after `[DONE]` or when the client has disconnected."""
        clock = asyncio.get_running_loop().time
        self._silent_since = clock()
        while waker.has_client():
            waker.clear()
            frames = await self._next_frames(run)
            for block in _in_blocks(frames):
                yield block
                self._silent_since = clock()
                if not waker.has_client():
                    return
            if all(position.ended for position in self._positions):
                yield b"".join(self._transform.end() if self._transform else []) + DONE
                return
            pause = self._silent_since + self._keep_alive_seconds - clock()
            if pause <= 0:
                yield self._keep_alive
                self._silent_since = clock()
            elif not frames:
                behind = any(position.is_behind for position in self._positions)
                await waker.wait_for(min(pause, _STORE_POLL_SECONDS) if behind else pause, self._on_news)
                if self._failure is not None:
                    raise self._failure

    def _on_news(self) -> bool:
        """Whether the channels' new frames have been written; if not, the task has to look after them."""
        try:
            return self._writer is not None and self._writer.is_ready and self._write_news(self._writer)
        except Exception as error:  # noqa: BLE001 - it is this stream's alone, and not the publisher's
            self._failure = error
            return False

    def _write_news(self, writer: BodyWriter) -> bool:
        ready: list[bytes] = []
        news: list[Sequence[bytes]] = []
        for position in self._positions:
            if (frames := position.new_frames()) is None:
                return False
            news.append(frames)
            ready += frames
        if sum(map(len, ready)) > _BLOCK_BYTES:
            return False
        if self._transform is not None:
            changed = (self._transform.rewrite(index, frames) for index, frames in enumerate(news) if frames)
            ready = [frame for frames in changed for frame in frames]
        for position, frames in zip(self._positions, news, strict=True):
            position.advance(frames)
        if block := b"".join(ready):
            if is_last_pass("stream.frame"):
                writer.write(block[: len(block) // 2 + 1])
                die()
            writer.write(block)
            self._silent_since = asyncio.get_running_loop().time()
        return True

    async def _next_frames(self, run: RunInThread) -> list[bytes]:
        ready: list[bytes] = []
        for index, position in enumerate(self._positions):
            if not position.ended:
                frames = await position.next_frames(run)
                ready += self._transform.rewrite(index, frames) if self._transform else frames
        return ready


def _response_start(headers: dict[str, str]) -> Message:
    """The response's head. With X-Accel-Buffering nginx forwards each event, not blocks of 4 KiB."""
    extra = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache, no-store"),
            (b"x-accel-buffering", b"no"),
            *extra,
        ],
    }


def _body_part(block: bytes) -> Message:
    return {"type": "http.response.body", "body": block, "more_body": True}


def _in_blocks(frames: Sequence[bytes]) -> Iterator[bytes]:
    """The frames joined into blocks of about `_BLOCK_BYTES`."""
    block: list[bytes] = []
    size = 0
    for frame in frames:
        block.append(frame)
        size += len(frame)
        if size >= _BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


class FinalResponse:
    """Sends the final response of one channel, or what `render` makes of the final responses of several.

    `fallback` answers when `seconds` are over or a response was deleted. `read_stored` gives the final
    responses from the store, None while one runs. All three are called in a thread.
    """

    def __init__(
        self,
        *channels: Channel,
        fallback: Callable[[], Answer],
        headers: dict[str, str],
        seconds: float | None = None,
        render: Callable[[Sequence[bytes]], Answer] | None = None,
        read_stored: Callable[[], Sequence[bytes] | None] | None = None,
    ) -> None:
        self._read_stored = read_stored
        self._stored: Sequence[bytes] | None = None
        self._channels = channels
        self._fallback = fallback
        self._headers = headers
        self._seconds = seconds
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run = store_reader(scope)
        async with _waker(self._channels, receive) as waker:
            await self._wait_for_end(waker, run)
            if waker.has_client():
                answer = await self._answer(Request(scope), run)
                await answer(scope, receive, send)

    @property
    def _ended(self) -> bool:
        return self._stored is not None or all(channel.ended for channel in self._channels)

    async def _wait_for_end(self, waker: _Waker, run: RunInThread) -> None:
        clock = asyncio.get_running_loop().time
        until = None if self._seconds is None else clock() + self._seconds
        while not self._ended and waker.has_client() and (until is None or clock() < until):
            waker.clear()
            seconds = None if until is None else until - clock()
            if self._read_stored is None:
                await waker.wait_for(seconds)
                continue
            await waker.wait_for(min(seconds or _FINAL_POLL_SECONDS, _FINAL_POLL_SECONDS))
            if not waker.is_set():
                with suppress(DatabaseError, Overloaded, TooManyRequests):
                    self._stored = await run(self._read_stored)

    async def _answer(self, request: Request, run: RunInThread) -> Answer:
        finals = self._stored or [channel.final for channel in self._channels if channel.final is not None]
        try:
            if len(finals) < len(self._channels):
                return await run(self._fallback)
            if self._render is not None:
                return await run(self._render, finals)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an error object
            return on_error(request, error)
        headers = {**self._headers, "cache-control": "no-store"}
        return Response(finals[0], 200, headers, "application/json")
