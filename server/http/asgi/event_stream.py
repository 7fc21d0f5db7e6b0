"""Server-sent events of responses: stored events first, then new ones as they are committed.

A stream waits on the event loop and uses a thread only for its reads from the store.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Protocol

from starlette.types import Message, Receive, Scope, Send

from server.crashpoints import die, is_last_pass
from server.delivery.frames import FramePage
from server.delivery.hub import Channel
from server.errors import Overloaded, TooManyRequests
from server.http.asgi.answer import Timing, wait_for, watch_disconnect
from server.http.asgi.thread_pools import RunInThread, store_reader
from server.store.database_errors import DatabaseError

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_LINE = b": keep-alive\n"
"""For streams with `id:` lines, where openai-python parses a blank line after a comment as an empty event."""
_STORE_POLL_SECONDS = 1.0
"""Pause before a stream reads the store again that had no events for it, or did not answer."""
_BLOCK_BYTES = 32 * 1024
"""Bytes of frames in one ASGI message: few enough that a slow client takes them within `Timing.send`."""


class StreamPosition:
    """The position of one reader in one response's events.

    `channel` is None if the response has ended. `read` gives the stored frames from a sequence number on; it
    is called in a thread.
    """

    def __init__(
        self,
        channel: Channel | None,
        read: Callable[[int], FramePage],
        position: int = 0,
        first_page: FramePage | None = None,
    ) -> None:
        """`first_page` are frames that were read from `position` on already."""
        self.ended = False
        self._channel = channel
        self._read = read
        self._position = position
        self._first_page = first_page

    def attach(self, waker: asyncio.Event) -> None:
        if self._channel:
            self._channel.join(waker)

    def detach(self, waker: asyncio.Event) -> None:
        if self._channel:
            self._channel.leave(waker)

    @property
    def is_behind(self) -> bool:
        """Whether the next events are in the store only, not in the channel."""
        return not self.ended and (self._channel is None or self._channel.after(self._position) is None)

    async def next_frames(self, run: RunInThread) -> Sequence[bytes]:
        """The frames since the last call; sets `ended` with the last ones. `run` runs reads of the store."""
        page, self._first_page = self._first_page or await self._read_page(run), None
        self._position += len(page.frames)
        self.ended = page.ended
        return page.frames

    async def _read_page(self, run: RunInThread) -> FramePage:
        if self._channel:
            frames = self._channel.after(self._position)
            if frames is not None:
                return FramePage(frames, self._channel.ended)
        try:
            return await run(self._read, self._position)
        except (DatabaseError, Overloaded, TooManyRequests):
            return FramePage([], False)  # the stream polls again


class FrameTransform(Protocol):
    """Rewrites the frames of responses to the frames of another API."""

    def rewrite(self, index: int, frames: Sequence[bytes]) -> list[bytes]:
        """The frames to send for these frames of the response at `index`."""

    def end(self) -> list[bytes]:
        """The frames to send before `[DONE]`, when all responses have ended."""


class EventStream:
    """Streams the events of one response from a position on, or of several rewritten into one stream.

    Ends with `[DONE]`. An ASGI message holds whole frames.
    """

    def __init__(
        self,
        *positions: StreamPosition,
        timing: Timing,
        headers: dict[str, str],
        transform: FrameTransform | None = None,
    ) -> None:
        self._positions = positions
        self._timing = timing
        self._headers = headers
        self._transform = transform
        self._keep_alive = KEEP_ALIVE_LINE if transform is None else KEEP_ALIVE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waker = asyncio.Event()
        run = store_reader(scope)
        for position in self._positions:
            position.attach(waker)
        disconnected = watch_disconnect(receive, waker)
        try:
            await self._send(send, _response_start(self._headers))
            async for block in self._blocks(waker, disconnected, run):
                if is_last_pass("stream.frame"):
                    await self._send(send, _body_part(block[: len(block) // 2 + 1]))
                    die()
                await self._send(send, _body_part(block))
                await asyncio.sleep(0)  # `send` on a reset connection never yields; let `receive` report it
            if not disconnected.done():
                await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            return  # the client does not read; its response runs on and can be replayed
        finally:
            disconnected.cancel()
            for position in self._positions:
                position.detach(waker)

    async def _send(self, send: Send, message: Message) -> None:
        async with asyncio.timeout(self._timing.send):
            await send(message)

    async def _blocks(
        self, waker: asyncio.Event, disconnected: asyncio.Future[None], run: RunInThread
    ) -> AsyncIterator[bytes]:
        """Blocks of whole frames; ends after `[DONE]` or when the client has disconnected."""
        clock = asyncio.get_running_loop().time
        silent_since = clock()
        while not disconnected.done():
            waker.clear()
            frames = await self._next_frames(run)
            for block in _in_blocks(frames):
                yield block
                silent_since = clock()
                if disconnected.done():
                    return
            if all(position.ended for position in self._positions):
                yield b"".join(self._transform.end() if self._transform else []) + DONE
                return
            left = silent_since + self._timing.keep_alive - clock()
            if left <= 0:
                yield self._keep_alive
                silent_since = clock()
            elif not frames:
                behind = any(position.is_behind for position in self._positions)
                await wait_for(waker, min(left, _STORE_POLL_SECONDS) if behind else left)

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
