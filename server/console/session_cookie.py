"""Sessions of the console: a cookie that holds the sealed API key, on its way in and out; the token of forms.

The key is checked with every request, so a revoked one ends its sessions on all replicas, without a table.
"""

import secrets
from time import time

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

from server.errors import InvalidRequest
from server.http.handler_services import Services
from server.protocol.decode import decode_as
from server.sealing.cipher import Seal

COOKIE = "holdfast_console"
PATH = "/console"
SESSION_S = 12 * 3600
MAX_KEY_CHARS = 2500
"""Characters of an API key or access token: sealed, it fits into the 4,096 bytes that browsers store."""
_ANY_TENANT = ""


class _Session(msgspec.Struct, array_like=True):
    key: str
    ends_at: float
    """Unix seconds."""


def seal_session(seal: Seal, key: str, now: float) -> str:
    """The cookie's value. Raises InvalidRequest for a key that does not fit."""
    if len(key) > MAX_KEY_CHARS:
        raise InvalidRequest(f"A key or token of more than {MAX_KEY_CHARS} characters cannot sign in here.")
    text = msgspec.json.encode(_Session(key, now + SESSION_S)).decode()
    return seal.seal("console", _ANY_TENANT, secrets.token_hex(16), text)


def open_session(seal: Seal, cookie: str, now: float) -> str | None:
    """The API key in a cookie; None if this server did not make the cookie, or its time is over."""
    text = seal.open("console", _ANY_TENANT, cookie)
    if text is None:
        return None
    session = decode_as(text, _Session)
    return session.key if now < session.ends_at else None


def form_token(seal: Seal, cookie: str) -> str:
    """The token that a form sends back to change something, and that other sites' pages cannot know."""
    return seal.tag("console", cookie)


def is_form_token(seal: Seal, token: str, cookie: str) -> bool:
    return seal.is_tag(token, "console", cookie)


def with_key_of_cookie(services: Services, request: HTTPConnection) -> HTTPConnection:
    """The request with the cookie's key as its `Authorization`, unless it has a header of its own."""
    cookie = request.cookies.get(COOKIE)
    if cookie is None or "authorization" in request.headers:
        return request
    key = open_session(services.model.seal, cookie, time())
    return request if key is None else with_key(request, key)


def with_key(request: HTTPConnection, key: str) -> HTTPConnection:
    others = [header for header in request.scope["headers"] if header[0] != b"authorization"]
    headers = [*others, (b"authorization", b"Bearer " + key.encode("latin-1", "replace"))]
    return HTTPConnection({**request.scope, "headers": headers})


def set_session(services: Services, request: HTTPConnection, answer: Response, key: str) -> None:
    """Gives the browser a session of that key, for HTTPS where that is used. Raises InvalidRequest."""
    answer.set_cookie(
        COOKIE,
        seal_session(services.model.seal, key, time()),
        max_age=SESSION_S,
        path=PATH,
        secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),
        httponly=True,
        samesite="lax",
    )


def end_session(answer: Response) -> None:
    answer.delete_cookie(COOKIE, path=PATH, httponly=True, samesite="lax")
