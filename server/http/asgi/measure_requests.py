"""Middleware MeasureRequests: reports each HTTP request when its answer has ended, and each WebSocket.

The label of a request is its route's template. Requests to addresses that are none have one label together.
"""

from collections.abc import Awaitable
from time import monotonic
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError

NO_ROUTE = "none"
SWITCHING_PROTOCOLS = 101
CLIENT_GONE = 499
"""The status of a request whose client left before the answer began, as in nginx's log."""


class RequestObserver(Protocol):
    """What is told of requests; called on the event loop."""

    def request(self, handler: str, method: str, status: int, seconds: float | None) -> None: ...

    def error(self, error: ApiError) -> None: ...


class MeasureRequests:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, observer: RequestObserver) -> None:
        self._app = app
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        began, sent = monotonic(), SentStatus(send)
        try:
            await self._app(scope, receive, sent)
        finally:
            self._report(scope, sent.status, monotonic() - began)

    def _report(self, scope: Scope, status: int | None, seconds: float) -> None:
        route = scope.get("route")
        handler = getattr(route, "path", NO_ROUTE)
        is_http = scope["type"] == "http"
        method = scope["method"] if is_http else "GET"
        self._observer.request(handler, method, status or CLIENT_GONE, seconds if is_http else None)
        error = scope.get("state", {}).get("error")
        if isinstance(error, ApiError):
            self._observer.error(error)


class SentStatus:
    """`send`, and the status that it has sent; None before the answer has begun."""

    __slots__ = ("_send", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None

    def __call__(self, message: Message) -> Awaitable[None]:
        if self.status is None:
            if message["type"] == "websocket.accept":
                self.status = SWITCHING_PROTOCOLS
            else:
                self.status = message.get("status")
        return self._send(message)
