"""The answers that wait for tokens: they wait on the loop, so that no thread is held while nothing happens.

No decision is taken here. What is read from the store is read in threads for streams alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from server.crashpoints import die, is_last_pass
from server.delivery.event_frames import FramePage
from server.delivery.hub import Channel
from server.errors import Overloaded, TooManyRequests
from server.http.asgi.thread_pools import RunInThread, store_reads
from server.http.error_responses import on_error
from server.store.database import DatabaseError

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_LINE = b": keep-alive\n"
"""For streams with `id:` lines, where openai-python takes a blank line after a comment for an empty event."""
_STORE_SECONDS = 1.0
"""After how long a stream looks again when the store had nothing for it, or did not answer."""
_LOOK_SECONDS = 2.0  # of silence
_BLOCK_BYTES = 32 * 1024


class Answer(Protocol):
    """Anything that can be sent: Starlette's responses and the two below."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, all of them."""

    keep_alive: float
    send: float


class StreamPosition:
    """One reader's place in one response's events.

    `channel` is there unless the response has ended already; `read` gives what is stored from a sequence
    number on and is called in a thread.
    """

    def __init__(
        self,
        channel: Channel | None,
        read: Callable[[int], FramePage],
        position: int = 0,
        begun: FramePage | None = None,
    ) -> None:
        """`begun` is what was read from `position` on already."""
        self.ended = False
        self._channel = channel
        self._read = read
        self._position = position
        self._begun = begun

    def join(self, waker: asyncio.Event) -> None:
        if self._channel:
            self._channel.join(waker)

    def leave(self, waker: asyncio.Event) -> None:
        if self._channel:
            self._channel.leave(waker)

    @property
    def behind(self) -> bool:
        """What comes next is in the store alone."""
        return not self.ended and (self._channel is None or self._channel.after(self._position) is None)

    async def next(self, run: RunInThread) -> Sequence[bytes]:
        """The frames that have come since; sets `ended` with the last. `run` runs the store's read."""
        ready, self._begun = self._begun or await self._look(run), None
        self._position += len(ready.frames)
        self.ended = ready.ended
        return ready.frames

    async def _look(self, run: RunInThread) -> FramePage:
        if self._channel:
            frames = self._channel.after(self._position)
            if frames is not None:
                return FramePage(frames, self._channel.ended)
        try:
            return await run(self._read, self._position)
        except (DatabaseError, Overloaded, TooManyRequests):
            return FramePage([], False)  # it is asked again


class FrameTransform(Protocol):
    """Makes another API's frames of a response's."""

    def rewrite(self, index: int, frames: Sequence[bytes]) -> list[bytes]:
        """What is sent for these frames of the response at `index`."""

    def end(self) -> list[bytes]:
        """What is sent when all responses have ended, before `[DONE]`."""


class EventStream:
    """Server-sent events of one response from a position on, stored ones first, then as they are committed.

    Or of several, whose frames are rewritten into one stream. Frames are never split.
    """

    def __init__(
        self,
        *cursors: StreamPosition,
        timing: Timing,
        headers: dict[str, str],
        rewriting: FrameTransform | None = None,
    ) -> None:
        self._cursors = cursors
        self._timing = timing
        self._headers = headers
        self._rewriting = rewriting
        self._keep_alive = KEEP_ALIVE_LINE if rewriting is None else KEEP_ALIVE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waker = asyncio.Event()
        run = store_reads(scope)
        for cursor in self._cursors:
            cursor.join(waker)
        gone = _watch_disconnect(receive, waker)
        try:
            await self._send(send, _start(self._headers))
            async for block in self._blocks(waker, gone, run):
                if is_last_pass("stream.frame"):
                    await self._send(send, _part(block[: len(block) // 2 + 1]))
                    die()
                await self._send(send, _part(block))
                await asyncio.sleep(0)  # a reset connection no longer blocks `send`; this lets us hear of it
            if not gone.done():
                await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            return  # a client that has stopped reading; its response goes on and can be replayed
        finally:
            gone.cancel()
            for cursor in self._cursors:
                cursor.leave(waker)

    async def _send(self, send: Send, message: Message) -> None:
        async with asyncio.timeout(self._timing.send):
            await send(message)

    async def _blocks(
        self, waker: asyncio.Event, gone: asyncio.Future[None], run: RunInThread
    ) -> AsyncIterator[bytes]:
        """Whole frames, as many at a time as are ready; ends after `[DONE]` or when the client has gone."""
        clock = asyncio.get_running_loop().time
        silent_since = clock()
        while not gone.done():
            waker.clear()
            frames = await self._next(run)
            for block in _in_blocks(frames):
                yield block
                silent_since = clock()
                if gone.done():
                    return
            if all(cursor.ended for cursor in self._cursors):
                yield b"".join(self._rewriting.end() if self._rewriting else []) + DONE
                return
            left = silent_since + self._timing.keep_alive - clock()
            if left <= 0:
                yield self._keep_alive
                silent_since = clock()
            elif not frames:
                behind = any(cursor.behind for cursor in self._cursors)
                await _wait(waker, min(left, _STORE_SECONDS) if behind else left)

    async def _next(self, run: RunInThread) -> list[bytes]:
        ready: list[bytes] = []
        for index, cursor in enumerate(self._cursors):
            if not cursor.ended:
                frames = await cursor.next(run)
                ready += self._rewriting.rewrite(index, frames) if self._rewriting else frames
        return ready


class FinalResponse:
    """The final response as JSON, once it has ended; if that takes longer than `seconds`, what `read` gives.

    Or what `make` makes of the final responses of several. `read` answers for one that was deleted, too.
    `look` gives the final responses as stored, None while one runs. All three are called in a thread.
    """

    def __init__(
        self,
        *channels: Channel,
        read: Callable[[], Answer],
        timing: Timing,
        headers: dict[str, str],
        seconds: float | None = None,
        make: Callable[[Sequence[bytes]], Answer] | None = None,
        look: Callable[[], Sequence[bytes] | None] | None = None,
    ) -> None:
        self._look = look
        self._found: Sequence[bytes] | None = None
        self._channels = channels
        self._read = read
        self._timing = timing
        self._headers = headers
        self._seconds = seconds
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waker = asyncio.Event()
        for channel in self._channels:
            channel.join(waker)
        gone = _watch_disconnect(receive, waker)
        try:
            await self._await_end(waker, gone, store_reads(scope))
            if not gone.done():
                answer = await self._answer(Request(scope))
                async with asyncio.timeout(self._timing.send):
                    await answer(scope, receive, send)
        except TimeoutError:
            return  # a client that does not read its answer
        finally:
            gone.cancel()
            for channel in self._channels:
                channel.leave(waker)

    @property
    def _ended(self) -> bool:
        return self._found is not None or all(channel.ended for channel in self._channels)

    async def _await_end(self, waker: asyncio.Event, gone: asyncio.Future[None], run: RunInThread) -> None:
        clock = asyncio.get_running_loop().time
        until = None if self._seconds is None else clock() + self._seconds
        while not self._ended and not gone.done() and (until is None or clock() < until):
            waker.clear()
            left = None if until is None else until - clock()
            await _wait(waker, left if self._look is None else min(left or _LOOK_SECONDS, _LOOK_SECONDS))
            if self._look is not None and not waker.is_set():
                with suppress(DatabaseError, Overloaded, TooManyRequests):
                    self._found = await run(self._look)

    async def _answer(self, request: Request) -> Answer:
        run = store_reads(request.scope)
        finals = self._found or [one.final for one in self._channels if one.final is not None]
        try:
            if len(finals) < len(self._channels):
                return await run(self._read)
            if self._make is not None:
                return await run(self._make, finals)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an error object
            return on_error(request, error)
        headers = {**self._headers, "cache-control": "no-store"}
        return Response(finals[0], 200, headers, "application/json")


async def _wait(waker: asyncio.Event, seconds: float | None) -> None:
    """Until there may be more, the client has gone, or so long. Makes no task: every event waits here."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await waker.wait()


def _watch_disconnect(receive: Receive, waker: asyncio.Event) -> asyncio.Future[None]:
    """Done when the client has gone, of which the waker tells."""
    gone = asyncio.ensure_future(_disconnected(receive))
    gone.add_done_callback(lambda _: waker.set())
    return gone


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _start(headers: dict[str, str]) -> Message:
    """X-Accel-Buffering has nginx pass on each event at once; with its defaults it gathers 4 KiB first."""
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


def _part(block: bytes) -> Message:
    return {"type": "http.response.body", "body": block, "more_body": True}


def _in_blocks(frames: Sequence[bytes]) -> Iterator[bytes]:
    """Whole frames together, but never so many that a slow client could not read them in time."""
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
