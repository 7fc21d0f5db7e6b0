"""Bearer authentication: the check of a request's API key or access token, and the caller it stands for.

A key is `hk_<id>_<secret>`. The id selects the row; the SHA-256 digest of the whole key is compared with the
stored one. Any other bearer's text is an access token, where an issuer of such is set.
"""

import hmac
import threading
from collections.abc import Sequence
from functools import partial
from time import monotonic

from starlette.requests import HTTPConnection

from server.caller import DEFAULT_TENANT, KEY_PREFIX, Caller, digest_of
from server.configuration import origins
from server.configuration.settings import Config
from server.errors import NotAuthenticated
from server.oidc.access_tokens import AccessTokens, check_form
from server.store.administration import audit_trail, stored_keys, tenants
from server.store.administration.stored_keys import StoredKey
from server.store.database import Connection, Database

_USE_RECORDED_S = 20.0
"""Seconds between two writes of a key's `last_used_at` by this process; the store writes once a minute."""
_KEYLESS_S = 1.0
_MAX_CACHED_KEYS = 4096
"""Valid keys whose caller is cached, so that requests queue by tenant before the key lookup."""


class Authenticator:
    """Identifies callers. While no key was ever made, every caller is the default tenant."""

    def __init__(
        self,
        database: Database,
        allowed_hosts: Sequence[origins.Host] = (),
        allowed_origins: origins.AllowedOrigins = origins.AllowedOrigins(),  # noqa: B008 - frozen
        tokens: AccessTokens | None = None,
    ) -> None:
        """With `tokens` every request needs a key or a token from the start."""
        self._database = database
        self._tokens = tokens
        self._allowed_hosts = allowed_hosts
        self._allowed_origins = allowed_origins
        self._key_required = threading.Event()
        """Set once a key was made or tokens are issued: then every request needs one. Never cleared."""
        if tokens is not None:
            self._key_required.set()
        self._valid: dict[bytes, Caller] = {}
        """Callers by the digest of their key or token, which was valid when it was last used."""
        self._keyless: tuple[float, Caller] = (-_KEYLESS_S, Caller(DEFAULT_TENANT, None))
        """When the settings of the tenant without keys were read, and its caller."""
        self._use_recorded_at: dict[str, float] = {}
        """When this process last wrote `last_used_at`, by key id; seconds of `monotonic`."""

    @classmethod
    def from_config(cls, config: Config, database: Database) -> "Authenticator":
        hosts = origins.read_allowed_hosts(config.allowed_hosts)
        pages = origins.read_cors_origins(config.cors_origins)
        return cls(database, hosts, pages, AccessTokens.from_settings(config))

    def expected_tenant(self, request: HTTPConnection) -> str | None:
        """The tenant of a known key; None for keys that this process has not validated. As `known_caller`."""
        if not self._key_required.is_set():
            self._check_origin(request, key_exists=True)
            return DEFAULT_TENANT
        caller = self.known_caller(request)
        return None if caller is None else caller.tenant

    def known_caller(self, request: HTTPConnection) -> Caller | None:
        """The caller as the key's last lookup here had it; None for keys that this process has not validated,
        and while no key exists after `_KEYLESS_S`. Raises WrongHost, and NotAuthenticated for a malformed
        key.
        """
        self._check_origin(request, key_exists=True)
        if not self._key_required.is_set():
            read_at, caller = self._keyless
            return caller if monotonic() - read_at < _KEYLESS_S else None
        key = _bearer_token(request.headers.get("authorization"))
        if self._is_token(key):
            check_form(key)
        else:
            _key_id(key)
        return self._valid.get(digest_of(key))

    def is_known(self, authorization: str) -> bool:
        """Whether this header was valid when it was last used here; any one, while none is needed."""
        return not self._key_required.is_set() or digest_of(_bearer_token(authorization)) in self._valid

    def authenticate(self, request: HTTPConnection) -> Caller:
        """The caller of a request or of a WebSocket.

        Raises NotAuthenticated, WrongHost or WrongOrigin; of a token also NotReady or Overloaded.
        """
        key = _bearer_token(request.headers.get("authorization"))
        if not self._is_key_required():
            caller = self._keyless_caller()
        elif self._tokens is not None and self._is_token(key):
            caller = self._caller_of_token(self._tokens, key)
        else:
            caller = self._database.autocommit(lambda connection: self._look_up(connection, key))
        self._check_origin(request, key_exists=caller.key_id is not None)
        return caller

    def _is_key_required(self) -> bool:
        """Asks the database until there is a key, which any process may make at any time."""
        if not self._key_required.is_set() and self._database.scalar(stored_keys.KEY_REQUIRED):
            self._key_required.set()
        return self._key_required.is_set()

    def _is_token(self, text: str) -> bool:
        """Whether a bearer's text is, or should be, an access token."""
        return self._tokens is not None and not text.startswith(f"{KEY_PREFIX}_")

    def _caller_of_token(self, tokens: AccessTokens, text: str) -> Caller:
        try:
            identity = tokens.verify(text)
        except NotAuthenticated:
            self._valid.pop(digest_of(text), None)
            raise
        settings = self._database.autocommit(partial(tenants.settings_of, tenant=identity.tenant))
        caller = Caller(identity.tenant, identity.key_id, scopes=identity.scopes, settings=settings)
        self._remember(digest_of(text), caller)
        return caller

    def _check_origin(self, request: HTTPConnection, *, key_exists: bool) -> None:
        server = request.scope.get("server")
        port = server[1] if server else None
        allowed = (self._allowed_hosts, self._allowed_origins)
        error = origins.origin_error(request.headers, port, *allowed, key_exists=key_exists)
        if error is not None:
            raise error

    def _look_up(self, connection: Connection, key: str) -> Caller:
        key_id = _key_id(key)
        stored = stored_keys.get_valid(connection, key_id)
        digest = stored.digest if stored else bytes(32)
        if not hmac.compare_digest(digest, digest_of(key)) or stored is None:
            self._valid.pop(digest_of(key), None)
            raise NotAuthenticated("The API key is not valid.")
        caller = caller_of(stored)
        self._remember(digest, caller)
        if monotonic() - self._use_recorded_at.get(stored.id, -_USE_RECORDED_S) >= _USE_RECORDED_S:
            if stored_keys.record_use(connection, stored.tenant, stored.id):
                actor = f"key:{stored.id}"
                audit_trail.record(connection, actor, "key.first_use", stored.tenant, stored.id, {}, None)
            self._use_recorded_at[stored.id] = monotonic()
        return caller

    def _keyless_caller(self) -> Caller:
        """The caller while no key exists, whose tenant's settings are read once a second."""
        read_at, caller = self._keyless
        if monotonic() - read_at >= _KEYLESS_S:
            settings = self._database.autocommit(partial(tenants.settings_of, tenant=DEFAULT_TENANT))
            caller = Caller(DEFAULT_TENANT, None, settings=settings)
            self._keyless = (monotonic(), caller)
        return caller

    def _remember(self, digest: bytes, caller: Caller) -> None:
        if digest not in self._valid:
            for known in (self._valid, self._use_recorded_at):
                if len(known) >= _MAX_CACHED_KEYS:
                    known.clear()
        self._valid[digest] = caller


def caller_of(key: StoredKey) -> Caller:
    chosen = key.properties
    return Caller(
        key.tenant,
        key.id,
        chosen.priority_floor,
        scopes=chosen.scopes,
        models=chosen.models,
        tools=chosen.tools,
        first_key=key.first_key,
        limits=chosen.limits,
        settings=key.settings,
    )


def _bearer_token(authorization: str | None) -> str:
    """The bearer's token in an Authorization header; empty without one."""
    scheme, _, text = (authorization or "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _key_id(key: str) -> str:
    """The id within a key. Raises NotAuthenticated for a missing or malformed key."""
    if not key:
        raise NotAuthenticated("Send an API key: `Authorization: Bearer <key>`.")
    prefix, _, rest = key.partition("_")
    key_id = rest.partition("_")[0]
    if prefix != KEY_PREFIX or not key_id.isalnum():
        raise NotAuthenticated("The API key is not valid.")
    return key_id
