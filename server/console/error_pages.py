"""Errors as pages of the console; who is not signed in is sent to the sign-in page."""

from typing import Never

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from server.caller import Caller
from server.console.console_request import html, redirect
from server.console.session_cookie import PATH
from server.console.templates import render
from server.errors import InvalidRequest, MissingScope, NotAuthenticated, NotFound
from server.http.json_responses import log_refusal, to_api_error
from server.protocol.ids import new_request_id
from server.store.console.time_limit import TimeOver


def on_error(connection: HTTPConnection, error: Exception) -> Response:
    """The answer to an exception of a page: a page with its sentence, or the way to the sign-in page."""
    request = Request(connection.scope)
    if getattr(request.state, "request_id", None) is None:
        request.state.request_id = new_request_id()
    api_error = to_api_error(InvalidRequest(str(error)) if isinstance(error, TimeOver) else error)
    request.state.error = api_error
    log_refusal(api_error, request.state.request_id, error)
    if isinstance(api_error, NotAuthenticated):
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return redirect(request, f"{PATH}/sign-in", **({"next": wanted} if request.method == "GET" else {}))
    content = render(
        "error.html",
        status=api_error.status,
        message=str(api_error),
        may_sign_in=isinstance(api_error, MissingScope),
        request_id=request.state.request_id,
    )
    answer = html(request, content, api_error.status)
    if api_error.retry:
        answer.headers["retry-after"] = str(api_error.retry_seconds)
    return answer


def raise_not_found(_request: Request, _caller: Caller, _body: bytes) -> Never:
    """The handler of addresses below /console that are none."""
    raise NotFound("There is no such page.")
