"""The cookie of a session on its way in and out: read as the request's API key, set, removed."""

from time import time

from starlette.requests import HTTPConnection
from starlette.responses import Response

from server.console.session import COOKIE, PATH, SESSION_S, open_session, seal_session
from server.http.services import Services


def with_key_of_cookie(services: Services, request: HTTPConnection) -> HTTPConnection:
    """The request as an API client would have sent it: the cookie's key is its `Authorization`.

    A request with a header of its own, or without a cookie that holds, stays as it is.
    """
    cookie = request.cookies.get(COOKIE)
    if cookie is None or "authorization" in request.headers:
        return request
    key = open_session(services.model.seal, cookie, time())
    return request if key is None else with_key(request, key)


def with_key(request: HTTPConnection, key: str) -> HTTPConnection:
    """The request with the key as its `Authorization`."""
    others = [header for header in request.scope["headers"] if header[0] != b"authorization"]
    headers = [*others, (b"authorization", b"Bearer " + key.encode("latin-1", "replace"))]
    return HTTPConnection({**request.scope, "headers": headers})


def set_session(services: Services, request: HTTPConnection, answer: Response, key: str) -> None:
    """Gives the browser a session of that key. Raises InvalidRequest for one that is too long."""
    answer.set_cookie(
        COOKIE,
        seal_session(services.model.seal, key, time()),
        max_age=SESSION_S,
        path=PATH,
        secure=_is_secure(request),
        httponly=True,
        samesite="lax",
    )


def end_session(answer: Response) -> None:
    answer.delete_cookie(COOKIE, path=PATH, httponly=True, samesite="lax")


def _is_secure(request: HTTPConnection) -> bool:
    """Whether the browser uses HTTPS, here or at a proxy that says so; who lies loses the cookie alone."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
