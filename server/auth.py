"""Who is calling: API keys, how they are made and checked. Keys are never stored, only their digests.

A key is `hk_<id>_<secret>`: the id finds it, the SHA-256 of the whole key proves it. 256 random bits need no
slow hash.
"""

import hashlib
import hmac
import secrets
import threading
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from server.errors import ApiError, NotAuthenticated
from server.origins import AllowedHosts, refusal
from server.store import keys
from server.store.database import Connection, Database

DEFAULT_TENANT = "default"
_PREFIX = "hk"


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is; `key_id` is None while the server has no key."""

    tenant: str
    key_id: str | None
    priority_floor: int = 0
    """The most urgent priority that its requests may have; a lower number is more urgent."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made; `text` is shown once and kept nowhere."""

    id: str
    text: str
    digest: bytes


def make_key() -> NewKey:
    key_id = secrets.token_hex(8)
    text = f"{_PREFIX}_{key_id}_{secrets.token_hex(32)}"
    return NewKey(key_id, text, _digest(text))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class Gate:
    """Lets callers in. With no key ever made, everybody is the default tenant."""

    def __init__(self, database: Database, allowed_hosts: AllowedHosts = AllowedHosts()) -> None:  # noqa: B008 - frozen
        self._database = database
        self._allowed_hosts = allowed_hosts
        self._closed = threading.Event()
        """A key exists, so every call needs one; never reopened."""

    def identify(self, request: HTTPConnection) -> Caller:
        """The caller of a request or of a WebSocket. Raises NotAuthenticated, WrongHost or WrongOrigin."""
        self._refuse_foreign(request, key_exists=True)
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        given = text.strip() if scheme.lower() == "bearer" else ""
        caller = self._database.ask(lambda connection: self._look_up(connection, given))
        if caller.key_id is None:
            self._refuse_foreign(request, key_exists=False)
        return caller

    def check_origin(self, request: HTTPConnection) -> None:
        """For an address that needs no key. Raises WrongHost or WrongOrigin.

        Asks the database only about a request that no server without a key would serve.
        """
        try:
            self._refuse_foreign(request, key_exists=False)
        except ApiError:
            if not self._database.ask(self._key_exists):
                raise
            self._refuse_foreign(request, key_exists=True)

    def _refuse_foreign(self, request: HTTPConnection, *, key_exists: bool) -> None:
        server = request.scope.get("server")
        port = server[1] if server else None
        if (error := refusal(request.headers, port, self._allowed_hosts, key_exists=key_exists)) is not None:
            raise error

    def _key_exists(self, connection: Connection) -> bool:
        if not self._closed.is_set() and keys.any_exist(connection):
            self._closed.set()
        return self._closed.is_set()

    def _look_up(self, connection: Connection, given: str) -> Caller:
        if not self._key_exists(connection):
            return Caller(DEFAULT_TENANT, None)
        if not given:
            raise NotAuthenticated("Send an API key: `Authorization: Bearer <key>`.")
        prefix, _, rest = given.partition("_")
        key_id = rest.partition("_")[0]
        stored = keys.find(connection, key_id) if prefix == _PREFIX and key_id.isalnum() else None
        digest = stored.digest if stored else bytes(32)
        if not hmac.compare_digest(digest, _digest(given)) or stored is None:
            raise NotAuthenticated("The API key is not valid.")
        keys.touch(connection, stored.tenant, stored.id)
        return Caller(stored.tenant, stored.id, stored.priority_floor)
