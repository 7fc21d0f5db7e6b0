"""`SigningKeys`: an issuer's keys, fetched when they are needed, at most once in a while. Thread-safe.

A fetch has a thread of its own: who needs it gets NotReady and waits on the event loop, and nobody else.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec
from jwt import InvalidKeyError
from jwt.algorithms import get_default_algorithms

from server.configuration.token_settings import is_safe_url
from server.errors import NotAuthenticated, NotReady, Overloaded
from server.outbound_http.allowed_addresses import Refused, allow_host_of
from server.outbound_http.guarded_http import FetchLimits, Unreachable, fetch
from server.protocol.decode import decode_as

MAX_KEYS = 64
"""Keys of a set; more are not read."""
MAX_KID = 256
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
"""Larger keys take long to verify with."""
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",), "Ed25519": ("EdDSA",)}
ALGORITHMS = frozenset({*_RSA, *(name for names in _CURVES.values() for name in names)})
"""Only asymmetric ones, each with keys of its own kind: neither `none` nor an HMAC over a public key."""
_PUBLIC_MEMBERS = ("kty", "n", "e", "crv", "x", "y")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key of the issuer, and the algorithms that it may verify."""

    kid: str | None
    key: Any
    algorithms: frozenset[str]


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


def read_keys(document: bytes) -> list[SigningKey]:
    """The keys of a set that can verify tokens; others are skipped. Raises ValueError for what is no set."""
    try:
        keys = decode_as(document, _KeySet).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("it is not a set of keys") from error
    readable = (_read_key(entry) for entry in keys[:MAX_KEYS])
    return [key for key in readable if key is not None]


def _read_key(jwk: Mapping[str, Any]) -> SigningKey | None:
    kid, use, kind = jwk.get("kid"), jwk.get("use", "sig"), jwk.get("kty")
    if use != "sig" or not (kid is None or (isinstance(kid, str) and len(kid) <= MAX_KID)):
        return None
    algorithms = frozenset(_RSA if kind == "RSA" else _CURVES.get(str(jwk.get("crv")), ()))
    if (only := jwk.get("alg")) is not None:
        algorithms &= {only} if isinstance(only, str) else set()
    if not algorithms:
        return None
    public = {name: jwk[name] for name in _PUBLIC_MEMBERS if name in jwk}
    try:
        key = get_default_algorithms()[min(algorithms)].from_jwk(public)
    except (InvalidKeyError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    bits = getattr(key, "key_size", MIN_RSA_BITS) if kind == "RSA" else MIN_RSA_BITS
    return SigningKey(kid, key, algorithms) if MIN_RSA_BITS <= bits <= MAX_RSA_BITS else None


def select_key(keys: list[SigningKey], kid: str | None, algorithm: str) -> SigningKey | None:
    """The key with that id for that algorithm; without an id the only key for it."""
    fitting = [key for key in keys if algorithm in key.algorithms and kid in (None, key.kid)]
    if kid is None and len(fitting) > 1:
        return None
    return fitting[0] if fitting else None


log = logging.getLogger("holdfast.oidc")

REFRESH_S = 300.0
"""The age at which keys in use are fetched again: a key that the issuer has withdrawn is good no longer."""
KEEP_S = 6 * 3600.0
"""How long keys stay good while the issuer does not answer."""
PAUSE_S = 10.0
"""Least time between the starts of two fetches, whatever tokens arrive."""


def refused(why: str) -> NotAuthenticated:
    return NotAuthenticated(f"The access token is not valid: {why}.")


class SigningKeys:
    """Finds the key of a token, and has the keys fetched."""

    def __init__(
        self, fetch: Callable[[], list[SigningKey]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`fetch` blocks for a bounded time and raises ValueError or OSError."""
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: list[SigningKey] = []
        """The keys of the last fetch that succeeded."""
        self._fetched_at: float | None = None
        self._began_at: float | None = None
        self._failed = False
        """Whether the last fetch failed."""
        self._pending: Future[None] | None = None
        """The fetch under way."""

    def find(self, kid: str | None, algorithm: str) -> SigningKey:
        """Raises NotReady while the keys are fetched, NotAuthenticated for a key that does not exist, and
        Overloaded if that is not known because the issuer does not answer.
        """
        with self._lock:
            now = self._clock()
            age = math.inf if self._fetched_at is None else now - self._fetched_at
            key = select_key(self._keys, kid, algorithm) if age < KEEP_S else None
            pauses = self._began_at is not None and now - self._began_at < PAUSE_S
            if self._pending is None and not pauses and (key is None or age >= REFRESH_S):
                self._begin_fetch(now)
            pending, failed = self._pending, self._failed
        if key is not None:
            return key
        if pending is not None:
            raise NotReady([pending])
        if failed:
            raise Overloaded("The issuer of access tokens does not answer at the moment; try again.")
        raise refused("its issuer has no such key")

    def _begin_fetch(self, now: float) -> None:
        """Begins a fetch, with the lock held. Where no thread can be made it has failed."""
        self._began_at = now
        pending: Future[None] = Future()
        try:
            threading.Thread(target=self._run, args=[pending], name="issuer-keys", daemon=True).start()
        except RuntimeError as error:
            log.warning("the keys of the issuer of access tokens could not be fetched: %s", error)
            self._failed = True
        else:
            self._pending = pending

    def _run(self, pending: "Future[None]") -> None:
        keys: list[SigningKey] | None = None
        try:
            keys = self._fetch()
        except (ValueError, OSError) as error:
            log.warning("the keys of the issuer of access tokens could not be fetched: %s", error)
        finally:
            with self._lock:
                self._failed = keys is None
                if keys is not None:
                    self._keys, self._fetched_at = keys, self._clock()
                self._pending = None
            pending.set_result(None)


FETCH = FetchLimits(size=512 * 1024, seconds=4.0, redirects=0)
_CONFIGURATION = "/.well-known/openid-configuration"


class _Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str


def fetch_keys(issuer: str) -> list[SigningKey]:
    """The issuer's keys by OpenID Connect Discovery: its configuration names the address of its key set.

    Blocks for at most twice FETCH.seconds. Raises ValueError with a reason.
    """
    try:
        discovered = decode_as(_get(issuer.rstrip("/") + _CONFIGURATION), _Discovery)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("its configuration has no issuer and jwks_uri") from None
    if discovered.issuer != issuer:
        raise ValueError(f"its configuration is that of the issuer {discovered.issuer[:200]!r}")
    if not is_safe_url(discovered.jwks_uri):
        raise ValueError("its jwks_uri is neither https nor on loopback")
    return read_keys(_get(discovered.jwks_uri))


def _get(url: str) -> bytes:
    """Fetch a URL of the operator's issuer, at any address."""
    try:
        answer = fetch(url, allow_host_of(url), FETCH)
    except (Refused, Unreachable) as error:
        raise ValueError(f"{url[:200]}: {error}") from error
    if answer.status != 200:
        raise ValueError(f"{url[:200]} answered with status {answer.status}")
    return answer.body
