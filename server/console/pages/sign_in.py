"""Signing in with an API key or an access token, and signing out."""

from starlette.responses import Response

from server.console.console_request import ConsoleRequest, pages
from server.console.session_cookie import PATH, end_session, set_session, with_key
from server.errors import NotAuthenticated

_CONSOLE_SCOPES = frozenset({"admin", "metadata"})
_OPENS_NOTHING = (
    "This key does not open the console: it has neither the scope admin nor metadata. On the server, "
    "holdfast keys create --scopes admin,read,write makes one that does."
)


@pages("GET /sign-in", needs="nothing")
def show(console: ConsoleRequest) -> Response:
    next_page = _next_page(console.request.query_params.get("next", ""))
    return console.page("sign_in.html", next_page=next_page, message="")


@pages("POST /sign-in", needs="nothing")
def sign_in(console: ConsoleRequest) -> Response:
    services, request = console.services, console.request
    key, next_page = console.form.get("key", "").strip(), _next_page(console.form.get("next", ""))
    try:
        caller = services.authenticator.authenticate(with_key(request, key))
    except NotAuthenticated as error:
        return console.page("sign_in.html", 401, next_page=next_page, message=str(error))
    if not caller.scopes & _CONSOLE_SCOPES:
        return console.page("sign_in.html", 403, next_page=next_page, message=_OPENS_NOTHING)
    answer = console.redirect(next_page)
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


def _next_page(path: str) -> str:
    """Where to go then: a page of the console, never another site."""
    is_ours = path.startswith(f"{PATH}/") and "\\" not in path and path.isprintable()
    return path if is_ours else PATH
