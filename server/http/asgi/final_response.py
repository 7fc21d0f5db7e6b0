"""An answer without streaming: waits on the event loop until responses have ended, then sends their JSON."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.delivery.hub import Channel
from server.errors import Overloaded, TooManyRequests
from server.http.asgi.answer import Answer, Timing, wait_for, watch_disconnect
from server.http.asgi.thread_pools import RunInThread, store_reader
from server.http.error_responses import on_error
from server.store.database_errors import DatabaseError

_POLL_SECONDS = 2.0
"""Silence after which the store is read, for a response that runs on another replica."""


class FinalResponse:
    """Sends the final response of one channel, or what `render` makes of the final responses of several.

    `fallback` answers when `seconds` are over or a response was deleted. `read_stored` gives the final
    responses from the store, None while one runs. All three are called in a thread.
    """

    def __init__(
        self,
        *channels: Channel,
        fallback: Callable[[], Answer],
        timing: Timing,
        headers: dict[str, str],
        seconds: float | None = None,
        render: Callable[[Sequence[bytes]], Answer] | None = None,
        read_stored: Callable[[], Sequence[bytes] | None] | None = None,
    ) -> None:
        self._read_stored = read_stored
        self._stored: Sequence[bytes] | None = None
        self._channels = channels
        self._fallback = fallback
        self._timing = timing
        self._headers = headers
        self._seconds = seconds
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waker = asyncio.Event()
        for channel in self._channels:
            channel.join(waker)
        disconnected = watch_disconnect(receive, waker)
        try:
            await self._wait_for_end(waker, disconnected, store_reader(scope))
            if not disconnected.done():
                answer = await self._answer(Request(scope))
                async with asyncio.timeout(self._timing.send):
                    await answer(scope, receive, send)
        except TimeoutError:
            return  # the client does not read its answer
        finally:
            disconnected.cancel()
            for channel in self._channels:
                channel.leave(waker)

    @property
    def _ended(self) -> bool:
        return self._stored is not None or all(channel.ended for channel in self._channels)

    async def _wait_for_end(
        self, waker: asyncio.Event, disconnected: asyncio.Future[None], run: RunInThread
    ) -> None:
        clock = asyncio.get_running_loop().time
        until = None if self._seconds is None else clock() + self._seconds
        while not self._ended and not disconnected.done() and (until is None or clock() < until):
            waker.clear()
            left = None if until is None else until - clock()
            if self._read_stored is None:
                await wait_for(waker, left)
                continue
            await wait_for(waker, min(left or _POLL_SECONDS, _POLL_SECONDS))
            if not waker.is_set():
                with suppress(DatabaseError, Overloaded, TooManyRequests):
                    self._stored = await run(self._read_stored)

    async def _answer(self, request: Request) -> Answer:
        run = store_reader(request.scope)
        finals = self._stored or [one.final for one in self._channels if one.final is not None]
        try:
            if len(finals) < len(self._channels):
                return await run(self._fallback)
            if self._render is not None:
                return await run(self._render, finals)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an error object
            return on_error(request, error)
        headers = {**self._headers, "cache-control": "no-store"}
        return Response(finals[0], 200, headers, "application/json")
