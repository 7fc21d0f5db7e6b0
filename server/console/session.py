"""Sessions of the console: a cookie that holds the sealed API key, and the token of its forms. Pure.

The key itself is checked with every request, as that of an API request is. So a revoked or expired key ends
its sessions on all replicas, and no table of sessions is needed.
"""

import secrets

import msgspec

from server.errors import InvalidRequest
from server.protocol.decode import decode_as
from server.sealing.cipher import Seal

COOKIE = "holdfast_console"
PATH = "/console"
SESSION_S = 12 * 3600
MAX_KEY_CHARS = 2500
"""Of an API key or an access token: sealed, it fits into the 4,096 bytes that browsers keep of a cookie."""
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
    """What a form that changes something must send back, which pages of other sites cannot know.

    `cookie` is empty on a server without keys.
    """
    return seal.tag("console", cookie)


def is_form_token(seal: Seal, token: str, cookie: str) -> bool:
    return seal.is_tag(token, "console", cookie)
