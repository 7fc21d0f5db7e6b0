"""Middleware RequestLog: gives each request its id; when it has been answered, logs, counts and traces it.

Streams have their line when they end. Probes of health are logged at level debug.
"""

import logging
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError
from server.http.asgi.body_writer import BodyWriter, body_writer
from server.logs.context import CURRENT, RequestContext
from server.protocol.ids import request_id_of, response_id
from server.tracing.spans import Span, Tracer

log = logging.getLogger("holdfast.access")

NO_ROUTE = "none"
"""The label, in metrics, of all addresses that are no route's."""
CLIENT_GONE = 499
"""The status of a request whose client left before the answer began, as in nginx's log."""
_PROBES = ("/health", "/ping", "/metrics")
"""How the routes begin that are asked every few seconds."""
MAX_USER_AGENT = 200
"""Characters of the header User-Agent that a response has."""
_CONTEXT = "request_context"
_SENT = "sent"
"""The keys of a request's RequestContext, and of its answer's Sent, in its ASGI scope's state."""


class RequestObserver(Protocol):
    """Counts requests; called on the event loop."""

    def request(self, handler: str, method: str, status: int, seconds: float | None) -> None:
        """A request to the route with the template `handler` has been answered; `seconds` is of HTTP only."""

    def error(self, error: ApiError) -> None:
        """A request has been answered with this error."""


@dataclass(slots=True)
class Sent:
    """The status of an answer, and the size of what was sent of it."""

    status: int | None = None
    """None if no answer has begun."""
    bytes: int = 0
    events: int | None = None
    """Events of a stream, or messages of a WebSocket; None for other answers."""

    def count(self, message: Message) -> None:
        match message["type"]:
            case "http.response.body" | "websocket.http.response.body":
                body = message.get("body", b"")
                self.bytes += len(body)
                if self.events is not None:
                    self.events += body.count(b"\n\n")
            case "http.response.start" | "websocket.http.response.start":
                self.status = message["status"]
                if _is_event_stream(message):
                    self.events = 0
            case "websocket.accept":
                self.status, self.events = 101, 0
            case "websocket.send":
                self.bytes += len(message.get("text") or message.get("bytes") or b"")
                self.events = (self.events or 0) + 1

    def add(self, writer: BodyWriter | None) -> None:
        """Counts what an answer's writer has written to the connection itself."""
        if writer is not None and self.events is not None:
            self.bytes += writer.bytes
            self.events += writer.events


def has_begun(scope: Scope) -> bool:
    """Whether the answer to this scope's request has begun."""
    sent: Sent = scope["state"][_SENT]
    return sent.status is not None


def bounded_user_agent(header: str | None) -> str | None:
    """The header's printable ASCII, cut to `MAX_USER_AGENT`; None if there is none of it. Pure."""
    shown = (header or "")[:MAX_USER_AGENT]
    if not (shown.isascii() and shown.isprintable()):
        shown = "".join(char for char in shown if " " <= char <= "~")
    return shown.strip() or None


class RequestLog:
    """The outermost ASGI middleware. It adds `cors_headers` and `answer_headers` of a request's state."""

    def __init__(
        self, app: ASGIApp, observer: RequestObserver | None = None, tracer: Tracer | None = None
    ) -> None:
        self._app = app
        self._observer = observer
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        context = RequestContext(request_id_of(headers.get("x-request-id")))
        context.user_agent = bounded_user_agent(headers.get("user-agent"))
        sent = Sent()
        state = {_CONTEXT: context, _SENT: sent, "request_id": context.request_id}
        scope.setdefault("state", {}).update(state)
        CURRENT.set(context)
        began = perf_counter()
        span = None if self._tracer is None else _begin_span(self._tracer, scope, context)

        def counting_send(message: Message) -> Awaitable[None]:
            sent.count(message)
            return send(_with_headers(message, scope["state"]))

        try:
            await self._app(scope, receive, counting_send)
        finally:
            seconds = perf_counter() - began
            context.route = _route(scope)
            sent.add(body_writer(scope))
            log_access(scope, context, sent, seconds)
            if span is not None:
                _end_span(span, scope, context, sent)
            if self._observer is not None:
                _report(self._observer, scope, sent, seconds)


def _route(scope: Scope) -> str:
    """The template of the route that the scope has been led to; empty if it has none."""
    return getattr(scope.get("route"), "path", "")


def _report(observer: RequestObserver, scope: Scope, sent: Sent, seconds: float) -> None:
    is_http = scope["type"] == "http"
    method = scope["method"] if is_http else "GET"
    status = sent.status or CLIENT_GONE
    observer.request(_route(scope) or NO_ROUTE, method, status, seconds if is_http else None)
    error = scope["state"].get("error")
    if isinstance(error, ApiError):
        observer.error(error)


def _begin_span(tracer: Tracer, scope: Scope, context: RequestContext) -> Span | None:
    """The span of a request; None if it is not sampled. Probes are not traced."""
    if scope["path"].startswith(_PROBES):
        return None
    method = scope.get("method", "GET")
    attributes = {"http.request.method": method, "holdfast.request_id": context.request_id}
    parent = Headers(scope=scope).get("traceparent")
    span = tracer.begin(method, kind="server", parent=parent, attributes=attributes)
    if span is not None:
        context.trace_parent = span.trace_parent
    return span


def _end_span(span: Span, scope: Scope, context: RequestContext, sent: Sent) -> None:
    status = sent.status or CLIENT_GONE
    attributes = {
        "http.route": context.route or None,
        "http.response.status_code": status,
        "holdfast.tenant": context.tenant,
        "gen_ai.response.id": response_id(context.responses[0]) if context.responses else None,
    }
    name = f"{scope.get('method', 'GET')} {context.route}".rstrip()
    span.end(attributes, name=name, error=(context.error_code or str(status)) if status >= 500 else None)


class MessageLog:
    """A message over a WebSocket as a request of its own, which has the connection's request id."""

    def __init__(self, scope: Scope) -> None:
        """`scope` is the connection's."""
        connection: RequestContext = scope["state"][_CONTEXT]
        self.context = replace(
            connection, route=_route(scope), responses=(), error_code=None, error_status=None
        )
        self._scope = {**scope, "method": "MESSAGE"}
        self._sent = Sent(events=0)
        self._began = perf_counter()

    @contextmanager
    def current(self) -> Iterator[None]:
        """In the block log lines are about this message."""
        token = CURRENT.set(self.context)
        try:
            yield
        finally:
            CURRENT.reset(token)

    def count(self, data: bytes) -> bytes:
        """Counts what is sent in answer, and returns it."""
        self._sent.events = (self._sent.events or 0) + 1
        self._sent.bytes += len(data)
        return data

    def write(self) -> None:
        self._sent.status = self.context.error_status or 200
        log_access(self._scope, self.context, self._sent, perf_counter() - self._began)


def _with_headers(message: Message, state: Mapping[str, Any]) -> Message:
    """The message; the head of an answer with the headers of its request's state."""
    extra = {**state.get("cors_headers", {}), **state.get("answer_headers", {})}
    if not extra or not message["type"].endswith("http.response.start"):
        return message
    more = [(name.encode(), value.encode()) for name, value in extra.items()]
    return {**message, "headers": [*message["headers"], *more]}


def _is_event_stream(start: Message) -> bool:
    kinds = [value for name, value in start["headers"] if name == b"content-type"]
    return any(kind.startswith(b"text/event-stream") for kind in kinds)


def log_access(scope: Scope, context: RequestContext, sent: Sent, seconds: float) -> None:
    """Writes the access line. The status is 499, as nginx has it, if the client left before an answer."""
    level = logging.DEBUG if context.route.startswith(_PROBES) else logging.INFO
    if not log.isEnabledFor(level):
        return
    method = scope.get("method", "WEBSOCKET")
    status = sent.status or CLIENT_GONE
    client = scope.get("client")
    fields = {
        "client": client[0] if client else None,
        "method": method,
        "route": context.route or None,
        "status": status,
        "error_code": context.error_code,
        "ms": round(seconds * 1000, 1),
        "events": sent.events,
        "bytes": sent.bytes,
    }
    log.log(level, "%s %s %d", method, context.route or "(no route)", status, extra=fields)
