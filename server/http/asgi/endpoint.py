"""Requests in, answers out: who asks is known before anything of the body is read.

A handler is a plain function; it gets the caller and the whole body and returns an answer. No decision is
taken here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from server.errors import ClientGone, Overloaded
from server.http.asgi.content_encoding import coding_of
from server.http.asgi.event_stream import Answer
from server.http.asgi.request_body import Body, Lingering
from server.http.asgi.retried_handler import when_ready
from server.http.asgi.thread_pools import ALONE, ThreadClass, ThreadClasses, ThreadShare, set_store_reads
from server.http.error_responses import on_error
from server.limits.concurrency import SharedLimit
from server.protocol.ids import request_id_of

C = TypeVar("C")

_FRESH_S = 1.0
"""How long an answer to everybody is given again."""
_LAST_WORDS_S = 1.0
"""How long a client is given to take the error that says that this process ends."""


@dataclass(frozen=True, slots=True)
class Admittance(Generic[C]):
    """What all requests that need a caller pass, HTTP ones and WebSockets."""

    expect: Callable[[HTTPConnection], ThreadShare]
    """The lane in which a request waits for its key to be looked up. Called on the loop; raises ApiError for
    what needs no looking up."""
    identify: Callable[[HTTPConnection], C]
    """The caller. Called in a thread; raises NotAuthenticated."""
    lane: Callable[[C], ThreadShare]
    threads: ThreadClasses
    requests: SharedLimit
    """Requests that are worked on or answered, open streams among them."""
    bodies: SharedLimit
    """Bytes of bodies in memory."""
    lingering: Lingering

    async def enter(self, request: HTTPConnection) -> C:
        """The caller. Raises ApiError."""
        return await self.threads.auth.run(self.expect(request), self.identify, request)


class Endpoint(Generic[C]):
    """An ASGI app around a plain function, which is called in a thread of a class."""

    def __init__(
        self,
        handler: Callable[[Request, C, bytes], Answer],
        door: Admittance[C],
        threads: ThreadClass,
        *,
        max_body: int,
        body_seconds: float,
        counted: bool = True,
    ) -> None:
        """`counted`: its requests count among the tenant's. Those that end others do not."""
        self._handler = handler
        self._door = door
        self._threads = threads
        self._max_body = max_body
        self._body_seconds = body_seconds
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        request.state.request_id = request_id_of(request.headers.get("x-request-id"))
        body = Body(request, receive, self._door.bodies)
        sending = _Sending(send)
        try:
            await self._serve(request, body, sending)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if not sending.begun:
                await _say_goodbye(request, sending)
            raise
        except Exception as error:
            if sending.begun:
                raise
            answer = on_error(request, error)
            if body.whole or not _has_body(request):
                await answer(scope, receive, sending)
            else:
                await self._door.lingering.send(answer, scope, receive, sending)

    async def _serve(self, request: Request, body: Body, send: "_Sending") -> None:
        caller = await self._door.enter(request)
        lane = self._door.lane(caller)
        with self._count(lane):
            try:
                coding = coding_of(request.headers.get("content-encoding", ""))
                content = await body.read(lane.tenant, self._max_body, self._body_seconds)
                if coding is not None and content:
                    content = await self._threads.run(lane, body.unpack, content, coding, self._max_body)
                run = partial(self._threads.run, lane, self._handler, request, caller, content)
                answer = await when_ready(run)
                del content, run
            finally:
                body.release()
            set_store_reads(request.scope, self._door.threads.stream.on(lane))
            await answer(request.scope, request.receive, send)

    def _count(self, lane: ThreadShare) -> AbstractContextManager[None]:
        return self._door.requests.hold(lane.tenant) if self._counted else nullcontext()


class OpenEndpoint:
    """An ASGI app that answers everybody, whatever body they send, which is not read."""

    def __init__(
        self,
        handler: Callable[[Request], Response],
        threads: ThreadClass | None,
        lingering: Lingering,
    ) -> None:
        """Without a thread class the handler is called on the loop, which it must not keep.

        Else one call at a time answers all who ask meanwhile or within a second after it, so that however
        many ask, they cost no more.
        """
        self._handler = handler
        self._threads = threads
        self._lingering = lingering
        self._call: asyncio.Task[Response] | None = None
        self._answered_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        request.state.request_id = request_id_of(request.headers.get("x-request-id"))
        try:
            answer = self._handler(request) if self._threads is None else await self._share(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an error object
            answer = on_error(request, error)
        if _has_body(request):
            await self._lingering.send(answer, scope, receive, send)
        else:
            await answer(scope, receive, send)

    async def _share(self, request: Request) -> Response:
        now = asyncio.get_running_loop().time()
        if self._call is None or (self._call.done() and now - self._answered_at > _FRESH_S):
            self._call = asyncio.ensure_future(self._ask(request))
        shared = await asyncio.shield(self._call)
        headers = {"x-request-id": request.state.request_id}
        return Response(shared.body, shared.status_code, headers, shared.media_type)

    async def _ask(self, request: Request) -> Response:
        assert self._threads is not None
        try:
            return await self._threads.run(ALONE, self._handler, request)
        except Exception as error:  # noqa: BLE001 - whatever it is, all who asked get an error object
            return on_error(request, error)
        finally:
            self._answered_at = asyncio.get_running_loop().time()


class _Sending:
    """`send`, and whether the answer has begun."""

    def __init__(self, send: Send) -> None:
        self.begun = False
        self._send = send

    def __call__(self, message: Message) -> Awaitable[None]:
        self.begun = True
        return self._send(message)


async def _say_goodbye(request: Request, send: Send) -> None:
    """Answers a request that is given up because the process ends."""
    answer = on_error(request, Overloaded("The server is shutting down; try again."))
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORDS_S):
            await answer(request.scope, request.receive, send)


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
