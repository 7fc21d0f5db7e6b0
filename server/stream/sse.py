"""All the asynchronous code there is: request bytes in, response bytes out. No decision is taken here.

A handler is a plain function; it is given the whole body and returns a response object. The ones that wait
for tokens (`EventStream`, `Deferred`) wait on the loop, so that no thread is held while nothing happens.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from anyio.to_thread import current_default_thread_limiter
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from server.errors import BodyTooLarge, BodyTooSlow, ClientGone, on_error
from server.stream.hub import Channel
from server.wire.ids import new_request_id

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_POLL_SECONDS = 0.5
"""How often a stream looks into the store for a response that runs on another replica."""
_DRAIN_FACTOR = 8
"""A body over the limit is still read, up to this many times it, so that the client can hear the answer."""


class Answer(Protocol):
    """Anything that can be sent: Starlette's responses and the two below."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, all of them."""

    keep_alive: float
    send: float


class Endpoint:
    """An ASGI app around a plain function, which is called in a thread with the whole body."""

    def __init__(
        self, handler: Callable[[Request, bytes], Answer], *, max_body: int, body_seconds: float
    ) -> None:
        self._handler = handler
        self._max_body = max_body
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        request.state.request_id = new_request_id()
        try:
            body = await self._read_in_time(request, receive)
            answer = await run_in_threadpool(self._handler, request, body)
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an error object
            answer = on_error(request, error)
        await answer(scope, receive, send)

    async def _read_in_time(self, request: Request, receive: Receive) -> bytes:
        try:
            return await asyncio.wait_for(self._read(request, receive), self._body_seconds)
        except TimeoutError:
            raise BodyTooSlow(self._body_seconds) from None

    async def _read(self, request: Request, receive: Receive) -> bytes:
        declared = request.headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
        if size > self._max_body * _DRAIN_FACTOR:
            raise BodyTooLarge(self._max_body)
        chunks: list[bytes] = []
        total = 0
        more = True
        while more and total <= self._max_body * _DRAIN_FACTOR:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            more = message.get("more_body", False)
            total += len(message.get("body", b""))
            if total <= self._max_body:
                chunks.append(message.get("body", b""))
        if total > self._max_body:
            raise BodyTooLarge(self._max_body)
        return b"".join(chunks)


@dataclass(frozen=True, slots=True)
class Stored:
    """Committed frames, and whether the response has ended and these are its last."""

    frames: list[bytes]
    ended: bool


class EventStream:
    """Server-sent events of one response from a position on, stored ones first, then as they are committed.

    `channel` is there if the response runs in this process; `read` gives what is stored from a sequence
    number on and is called in a thread. Frames are never split and `id:` is never sent (API.md's findings:
    clients lose events otherwise).
    """

    def __init__(
        self,
        channel: Channel | None,
        read: Callable[[int], Stored],
        *,
        position: int,
        timing: Timing,
        headers: dict[str, str],
    ) -> None:
        self._channel = channel
        self._read = read
        self._position = position
        self._timing = timing
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waker = self._channel.join() if self._channel else asyncio.Event()
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await send(_start(200, b"text/event-stream; charset=utf-8", self._headers))
            async for block in self._blocks(waker, gone):
                await asyncio.wait_for(
                    send({"type": "http.response.body", "body": block, "more_body": True}), self._timing.send
                )
                await asyncio.sleep(0)  # a reset connection no longer blocks `send`; this lets us hear of it
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            return  # a client that has stopped reading; its response goes on and can be replayed
        finally:
            gone.cancel()
            if self._channel:
                self._channel.leave(waker)

    async def _blocks(self, waker: asyncio.Event, gone: asyncio.Future[None]) -> AsyncIterator[bytes]:
        """Whole frames, as many at a time as are ready; ends after `[DONE]` or when the client has gone."""
        clock = asyncio.get_running_loop().time
        silent_since = clock()
        while not gone.done():
            waker.clear()
            frames, ended = await self._next()
            if frames:
                self._position += len(frames)
                yield b"".join(frames)
            elif ended:
                yield DONE
                return
            elif clock() - silent_since >= self._timing.keep_alive:
                yield KEEP_ALIVE
            else:
                await self._wait(waker, gone, silent_since + self._timing.keep_alive - clock())
                continue
            silent_since = clock()

    async def _next(self) -> tuple[list[bytes], bool]:
        if self._channel:
            frames = self._channel.after(self._position)
            if frames is not None:
                return frames, self._channel.ended
        stored = await run_in_threadpool(self._read, self._position)
        return stored.frames, stored.ended

    async def _wait(self, waker: asyncio.Event, gone: asyncio.Future[None], seconds: float) -> None:
        """Until there may be more, the client has gone, or it is time for a sign of life."""
        if self._channel is None:
            seconds = min(seconds, _POLL_SECONDS)
        woken = asyncio.ensure_future(waker.wait())
        try:
            waited: set[asyncio.Future[Any]] = {woken, gone}
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()


class Deferred:
    """The final response of a run in this process, as JSON, once it has ended."""

    def __init__(self, channel: Channel, *, headers: dict[str, str]) -> None:
        self._channel = channel
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waker = self._channel.join()
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            while not self._channel.ended and not gone.done():
                waker.clear()
                woken = asyncio.ensure_future(waker.wait())
                await asyncio.wait({woken, gone}, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
            if self._channel.final is not None:
                await send(_start(200, b"application/json", self._headers))
                await send({"type": "http.response.body", "body": self._channel.final})
        finally:
            gone.cancel()
            self._channel.leave(waker)


def lifespan(threads: int) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Sets how many handlers may run at the same time, once the loop is there."""

    @asynccontextmanager
    async def live(_app: Starlette) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = threads
        yield

    return live


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _start(status: int, content_type: bytes, headers: dict[str, str]) -> Message:
    extra = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", content_type), (b"cache-control", b"no-store"), *extra],
    }
