"""ASGI endpoints around handlers, plain functions: authenticate, read the body, call in a thread, answer.

A caller is authenticated before the body is read; a key that was valid when it was last used here is looked
up after it, in the handler's thread.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Generic, TypeVar

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from server.errors import ApiError, ClientGone, NotAuthenticated, NotReady, Overloaded
from server.http.asgi.answers import Answer
from server.http.asgi.client_connections import set_authenticated
from server.http.asgi.content_codings import read_content_encoding
from server.http.asgi.open_connections import KeyEnded, OpenConnections
from server.http.asgi.request_body import RequestBody, answer_unread, drain_and_answer
from server.http.asgi.request_log import has_begun
from server.http.asgi.thread_pools import ANY_TENANT, ThreadPool, ThreadPools, ThreadShare, set_store_reader
from server.http.json_responses import on_error
from server.limits.shared_limit import SharedLimit

C = TypeVar("C")
T = TypeVar("T")

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Bytes of answers to reads that are being sent; one tenant may use half."""
_SMALL_ANSWER = 64 * 1024
"""Bytes up to which an answer does not count."""
MAX_ATTEMPTS = 5
"""Calls of one handler. Each may start another fetch, and a fetched value may have left its cache again."""
_SHARED_ANSWER_S = 1.0
"""Seconds for which a public endpoint repeats its last answer."""
_SHUTDOWN_ANSWER_S = 1.0
"""Seconds for sending a 503 to a request that shutdown interrupts."""


def address_share(request: HTTPConnection) -> ThreadShare:
    """The queue of requests without a key that is known here: their addresses take turns."""
    return ThreadShare(f"address {request.client.host if request.client else ''}")


@dataclass(frozen=True, slots=True)
class EndpointContext(Generic[C]):
    """Authentication, thread pools and limits that HTTP and WebSocket endpoints share."""

    expected_share: Callable[[HTTPConnection], ThreadShare]
    """The queue in which a request waits for its key lookup. Called on the loop; raises ApiError for
    requests that can be refused without a lookup."""
    authenticate: Callable[[HTTPConnection], C]
    """The caller. Called in a thread; raises NotAuthenticated, or NotReady while an issuer's keys arrive."""
    share_of: Callable[[C], ThreadShare]
    threads: ThreadPools
    requests: SharedLimit
    """Requests in progress, open streams included."""
    bodies: SharedLimit
    """Bytes of request bodies in memory."""
    answers: SharedLimit
    """Bytes of answers to reads in memory, until their clients have taken them."""
    known_caller: Callable[[HTTPConnection], C | None] = lambda _request: None
    """The caller as it was when its key was last found valid here; None for other keys. Called on the loop;
    raises as `expected_share` does."""
    key_of: Callable[[C], str | None] = lambda _caller: None
    authenticates: bool = True
    """Whether a caller has shown a valid key; if not, a connection with none goes on to be closed first."""
    connections: OpenConnections = field(default_factory=OpenConnections)
    on_error: Callable[[HTTPConnection, Exception], Response] = on_error
    """The answer to an exception of authentication, of the limits or of a handler."""

    async def identify_caller(self, request: HTTPConnection) -> C:
        """The caller, whose connection from now on counts as one with a key. Raises ApiError."""
        share = self.expected_share(request)
        caller = await retry_until_ready(partial(self.threads.auth.run, share, self.authenticate, request))
        if self.authenticates:
            set_authenticated(request.scope)
        return caller


@dataclass(frozen=True, slots=True)
class AuthenticatedEndpoint(Generic[C]):
    """An ASGI app around a handler, which is called in a thread of a pool."""

    handler: Callable[[Request, C, bytes], Answer]
    context: EndpointContext[C]
    threads: ThreadPool
    _: KW_ONLY
    authorize: Callable[[C], None]
    """Raises ApiError for a caller who may not use this endpoint; called on the loop or in a thread."""
    max_body: int
    body_seconds: float
    limited: bool = True
    """Whether its requests count among the tenant's. Those that end others do not."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = RequestBody(request, receive, self.context.bodies)
        try:
            await self._serve(request, body, send)
        except ClientGone:
            return
        except KeyEnded:
            if not has_begun(scope):
                await self.context.on_error(request, NotAuthenticated("The API key is not valid any more."))(
                    scope, receive, send
                )
        except asyncio.CancelledError:
            if not has_begun(scope):
                await _answer_shutdown(request, send)
            raise
        except Exception as error:
            if has_begun(scope):
                raise
            answer = self.context.on_error(request, error)
            if body.whole:
                await answer(scope, receive, send)
            else:
                await answer_unread(answer, scope, receive, send)

    async def _serve(self, request: Request, body: RequestBody, send: Send) -> None:
        known = self._known_caller(request)
        caller = await self.context.identify_caller(request) if known is None else known
        if known is None:
            self.authorize(caller)
        share = self.context.share_of(caller)
        with self.context.requests.hold(share.tenant) if self.limited else nullcontext():
            try:
                coding = read_content_encoding(request.headers.get("content-encoding", ""))
                content = await body.read(share.tenant, self.max_body, self.body_seconds)
                if coding is not None and content:
                    content = await self.threads.run(share, body.unpack, content, coding, self.max_body)
                run = partial(self.threads.run, share, self._handle, request, caller, content, known is None)
                caller, answer = await retry_until_ready(run)
                del content, run
            except NotAuthenticated:
                set_authenticated(request.scope, valid=False)
                raise
            finally:
                body.release()
            set_store_reader(request.scope, partial(self.context.threads.stream.run, share))
            async with self.context.connections.tracked(self.context.key_of(caller)):
                with self._counted(request, share, answer):
                    await answer(request.scope, request.receive, send)

    def _counted(self, request: Request, share: ThreadShare, answer: Answer) -> AbstractContextManager[None]:
        """Counts the bytes of a read's answer. Raises TooManyRequests or Overloaded: nothing was changed."""
        size = len(answer.body) if isinstance(answer, Response) else 0
        if request.method not in ("GET", "HEAD") or size <= _SMALL_ANSWER:
            return nullcontext()
        return self.context.answers.hold(share.tenant, size)

    def _known_caller(self, request: Request) -> C | None:
        """A caller whose key was valid when it was last used, and might use this endpoint."""
        caller = self.context.known_caller(request)
        with suppress(ApiError):
            if caller is not None:
                self.authorize(caller)
                set_authenticated(request.scope)
                return caller
        return None

    def _handle(
        self, request: Request, caller: C, content: bytes, is_authenticated: bool
    ) -> tuple[C, Answer]:
        """Calls the handler, after looking up the key of a caller who is only known, both in one thread."""
        if not is_authenticated:
            caller = self.context.authenticate(request)
            self.authorize(caller)
        return caller, self.handler(request, caller, content)


class PublicEndpoint:
    """An ASGI app without authentication. It never reads a request's body."""

    def __init__(self, handler: Callable[[Request], Response], threads: ThreadPool | None) -> None:
        """Without a pool the handler is called on the loop and must not block.

        With one, a single call at a time answers all requests that arrive during it or within
        `_SHARED_ANSWER_S` after it, so that the cost does not grow with the number of requests.
        """
        self._handler = handler
        self._threads = threads
        self._shared_call: asyncio.Task[Response] | None = None
        self._answered_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answer = self._handler(request) if self._threads is None else await self._shared_answer(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an error object
            answer = on_error(request, error)
        await answer_unread(answer, scope, receive, send)

    async def _shared_answer(self, request: Request) -> Response:
        now = asyncio.get_running_loop().time()
        if self._shared_call is None or (
            self._shared_call.done() and now - self._answered_at > _SHARED_ANSWER_S
        ):
            self._shared_call = asyncio.ensure_future(self._call_handler(request))
        shared = await asyncio.shield(self._shared_call)
        headers = {"x-request-id": request.state.request_id}
        return Response(shared.body, shared.status_code, headers, shared.media_type)

    async def _call_handler(self, request: Request) -> Response:
        assert self._threads is not None
        try:
            return await self._threads.run(ANY_TENANT, self._handler, request)
        except Exception as error:  # noqa: BLE001 - whatever it is, all who asked get an error object
            return on_error(request, error)
        finally:
            self._answered_at = asyncio.get_running_loop().time()


class RefuseAll:
    """An ASGI app that answers each request and WebSocket with one error, and reads no request's body."""

    def __init__(self, reason: Callable[[], ApiError]) -> None:
        self._reason = reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            websocket = WebSocket(scope, receive, send)
            await websocket.send_denial_response(on_error(websocket, self._reason()))
        elif scope["type"] == "http":
            answer = on_error(HTTPConnection(scope), self._reason())
            await drain_and_answer(answer, scope, receive, send)


async def retry_until_ready(attempt: Callable[[], Awaitable[T]]) -> T:
    """The attempt's result. Waits on the loop after each NotReady; raises Overloaded after the last one."""
    for _ in range(MAX_ATTEMPTS):
        try:
            return await attempt()
        except NotReady as missing:
            pending = [asyncio.wrap_future(future) for future in missing.pending]
        await asyncio.wait(pending)  # cancellation does not reach the futures: other requests share them
    raise Overloaded("The tool servers of this request did not answer in time; try again.")


async def _answer_shutdown(request: Request, send: Send) -> None:
    """Sends a 503 to a request that is cancelled because the process ends."""
    answer = on_error(request, Overloaded("The server is shutting down; try again."))
    with suppress(TimeoutError):
        async with asyncio.timeout(_SHUTDOWN_ANSWER_S):
            await answer(request.scope, request.receive, send)
