"""Signing in with an API key or an access token, and signing out."""

from starlette.requests import Request
from starlette.responses import Response

from server.console.console_request import ConsoleRequest, html, pages, redirect
from server.console.session_cookie import PATH, end_session, set_session, with_key
from server.console.templates import render
from server.errors import NotAuthenticated
from server.http.handler_services import Services

_CONSOLE_SCOPES = frozenset({"admin", "metadata"})
_OPENS_NOTHING = (
    "This key does not open the console: it has neither the scope admin nor metadata. On the server, "
    "holdfast keys create --scopes admin,read,write makes one that does."
)


def show(_services: Services, request: Request, _form: dict[str, str]) -> Response:
    """GET /console/sign-in"""
    return _form_page(request, _next_page(request.query_params.get("next", "")), "")


def sign_in(services: Services, request: Request, form: dict[str, str]) -> Response:
    """POST /console/sign-in"""
    key, next_page = form.get("key", "").strip(), _next_page(form.get("next", ""))
    try:
        caller = services.authenticator.authenticate(with_key(request, key))
    except NotAuthenticated as error:
        return _form_page(request, next_page, str(error), 401)
    if not caller.scopes & _CONSOLE_SCOPES:
        return _form_page(request, next_page, _OPENS_NOTHING, 403)
    answer = redirect(request, next_page)
    if key:
        set_session(services, request, answer, key)
    return answer


@pages("GET /sign-out")
def confirm_sign_out(console: ConsoleRequest) -> Response:
    return console.page("sign_out.html")


@pages("POST /sign-out", needs="metadata")
def sign_out(console: ConsoleRequest) -> Response:
    answer = console.redirect(f"{PATH}/sign-in")
    end_session(answer)
    return answer


def _form_page(request: Request, next_page: str, message: str, status: int = 200) -> Response:
    return html(request, render("sign_in.html", wanted=next_page, message=message), status)


def _next_page(path: str) -> str:
    """Where to go then: a page of the console, never another site."""
    is_ours = path.startswith(f"{PATH}/") and "\\" not in path and path.isprintable()
    return path if is_ours else PATH
