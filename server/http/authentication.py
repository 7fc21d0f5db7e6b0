"""Who is calling: API keys, how they are made and checked. Keys are never stored, only their digests.

A key is `hk_<id>_<secret>`: the id finds it, the SHA-256 of the whole key proves it. 256 random bits need no
slow hash.
"""

import hashlib
import hmac
import secrets
import threading
from dataclasses import dataclass
from time import monotonic

from starlette.requests import HTTPConnection

from server.caller import DEFAULT_TENANT, Caller
from server.configuration.origins import (
    AllowedHosts,
    AllowedOrigins,
    read_allowed_hosts,
    read_cors_origins,
    refusal,
)
from server.configuration.settings import Config
from server.errors import NotAuthenticated
from server.store import api_keys
from server.store.database import Connection, Database

_PREFIX = "hk"


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


_TOUCH_S = 20.0
"""How often this process notes the use of a key; the table itself takes a note once a minute."""
_MOST_KNOWN = 4096
"""Keys that were valid not long ago, whose callers are told apart before they are looked up."""


class Authenticator:
    """Lets callers in. With no key ever made, everybody is the default tenant."""

    def __init__(
        self,
        database: Database,
        allowed_hosts: AllowedHosts = AllowedHosts(),  # noqa: B008 - frozen
        allowed_origins: AllowedOrigins = AllowedOrigins(),  # noqa: B008 - frozen
    ) -> None:
        self._database = database
        self._allowed_hosts = allowed_hosts
        self._allowed_origins = allowed_origins
        self._closed = threading.Event()
        """A key exists, so every call needs one; never reopened."""
        self._known: dict[bytes, str] = {}
        """The tenants of digests that were valid when they were last looked up."""
        self._touched: dict[str, float] = {}
        """When this process last noted the use of a key, by its id."""

    @classmethod
    def of(cls, config: Config, database: Database) -> "Authenticator":
        """With the hosts and origins that the settings list."""
        return cls(database, read_allowed_hosts(config.allowed_hosts), read_cors_origins(config.cors_origins))

    def expect(self, request: HTTPConnection) -> str | None:
        """The tenant that the caller will most likely be; None for keys not seen before.

        Uses no database. Raises WrongHost, and once keys are needed NotAuthenticated for what cannot be one.
        """
        self._refuse_foreign(request, key_exists=True)
        if not self._closed.is_set():
            return DEFAULT_TENANT
        given = _bearer_token(request)
        _key_id(given)
        return self._known.get(_digest(given))

    def identify(self, request: HTTPConnection) -> Caller:
        """The caller of a request or of a WebSocket. Raises NotAuthenticated, WrongHost or WrongOrigin."""
        given = _bearer_token(request)
        caller = self._database.ask(lambda connection: self._look_up(connection, given))
        self._refuse_foreign(request, key_exists=caller.key_id is not None)
        return caller

    def _refuse_foreign(self, request: HTTPConnection, *, key_exists: bool) -> None:
        server = request.scope.get("server")
        port = server[1] if server else None
        error = refusal(
            request.headers, port, self._allowed_hosts, self._allowed_origins, key_exists=key_exists
        )
        if error is not None:
            raise error

    def _look_up(self, connection: Connection, given: str) -> Caller:
        if not self._closed.is_set():
            if not api_keys.any_exist(connection):
                return Caller(DEFAULT_TENANT, None)
            self._closed.set()
        key_id = _key_id(given)
        stored = api_keys.find(connection, key_id)
        digest = stored.digest if stored else bytes(32)
        if not hmac.compare_digest(digest, _digest(given)) or stored is None:
            self._known.pop(_digest(given), None)
            raise NotAuthenticated("The API key is not valid.")
        self._remember(digest, stored.tenant)
        if monotonic() - self._touched.get(stored.id, -_TOUCH_S) >= _TOUCH_S:
            api_keys.touch(connection, stored.tenant, stored.id)
            self._touched[stored.id] = monotonic()
        return Caller(stored.tenant, stored.id, stored.priority_floor)

    def _remember(self, digest: bytes, tenant: str) -> None:
        if digest in self._known:
            return
        for known in (self._known, self._touched):
            if len(known) >= _MOST_KNOWN:
                known.clear()
        self._known[digest] = tenant


def _bearer_token(request: HTTPConnection) -> str:
    """What the request calls its key; empty if it names none."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _key_id(given: str) -> str:
    """The id in a key. Raises NotAuthenticated for what no key looks like."""
    if not given:
        raise NotAuthenticated("Send an API key: `Authorization: Bearer <key>`.")
    prefix, _, rest = given.partition("_")
    key_id = rest.partition("_")[0]
    if prefix != _PREFIX or not key_id.isalnum():
        raise NotAuthenticated("The API key is not valid.")
    return key_id
