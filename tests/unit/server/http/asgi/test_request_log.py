"""Every request is reported once, with its route and status, whoever ends it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from server.errors import ApiError, TooManyRequests
from server.http.asgi.request_log import RequestLog


class Observer:
    def __init__(self) -> None:
        self.requests: list[tuple[str, str, int, bool]] = []
        self.errors: list[ApiError] = []

    def request(self, handler: str, method: str, status: int, seconds: float | None) -> None:
        self.requests.append((handler, method, status, seconds is not None))

    def error(self, error: ApiError) -> None:
        self.errors.append(error)


def _app(observer: Observer, handler: Callable[[Request], Any]) -> Starlette:
    return Starlette(
        routes=[Route("/things/{thing}", handler)], middleware=[Middleware(RequestLog, observer)]
    )


def _ask(app: Any, path: str, kind: str = "http") -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(_message: Message) -> None: ...

    scope: Scope = {"type": kind, "method": "GET", "path": path, "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))


def test_a_request_is_reported_under_its_routes_template() -> None:
    observer = Observer()
    app = _app(observer, lambda _request: PlainTextResponse("here", 201))
    _ask(app, "/things/1")
    _ask(app, "/things/2")
    _ask(app, "/nothing")
    there = ("/things/{thing}", "GET", 201, True)
    assert observer.requests == [there, there, ("none", "GET", 404, True)]


def test_the_error_of_an_answer_is_reported_with_it() -> None:
    observer, error = Observer(), TooManyRequests("Later.", limit="threads")

    def refuse(request: Request) -> Response:
        request.state.error = error
        return PlainTextResponse("no", 429)

    _ask(_app(observer, refuse), "/things/1")
    assert observer.errors == [error]


def test_a_request_whose_client_left_before_the_answer_is_reported_as_499() -> None:
    observer = Observer()

    async def leave(_scope: Scope, _receive: Receive, _send: Send) -> None: ...

    _ask(RequestLog(leave, observer), "/things/1")
    assert observer.requests == [("none", "GET", 499, True)]


def test_a_request_that_raises_is_reported_and_raises_on() -> None:
    observer = Observer()

    async def fail(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - it is ours
        _ask(RequestLog(fail, observer), "/things/1")
    assert len(observer.requests) == 1


def test_a_websocket_is_reported_without_a_duration() -> None:
    observer = Observer()

    async def accept(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})

    _ask(RequestLog(accept, observer), "/v1/responses", kind="websocket")
    assert observer.requests == [("none", "GET", 101, False)]
