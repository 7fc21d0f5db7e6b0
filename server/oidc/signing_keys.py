"""`SigningKeys`: an issuer's keys, fetched when they are needed, at most once in a while. Thread-safe.

A fetch runs on a thread of its own: a caller that needs its result gets NotReady and waits on the event loop,
and callers with API keys wait for nothing. `KeyCache` decides; it is pure.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from server.errors import NotReady, Overloaded
from server.oidc.key_set import SigningKey, select_key
from server.oidc.token_claims import refused

log = logging.getLogger("holdfast.oidc")

REFRESH_S = 300.0
"""The age at which keys in use are fetched again: a key that the issuer has withdrawn is good no longer."""
KEEP_S = 6 * 3600.0
"""How long keys stay good while the issuer does not answer."""
PAUSE_S = 10.0
"""Between the starts of two fetches, whatever tokens arrive."""


@dataclass(slots=True)
class KeyCache:
    """The keys of the last fetch that succeeded. Times are seconds of one clock."""

    _keys: list[SigningKey] = field(default_factory=list)
    _fetched_at: float | None = None
    _began_at: float | None = None
    failed: bool = False
    """Whether the last fetch failed."""

    def find(self, kid: str | None, algorithm: str, now: float) -> SigningKey | None:
        """The key for a token; None if it is not known or its set is too old."""
        if self._fetched_at is None or now - self._fetched_at >= KEEP_S:
            return None
        return select_key(self._keys, kid, algorithm)

    def should_fetch(self, now: float, *, known: bool) -> bool:
        """Whether a fetch begins for a token whose key is `known` or is not."""
        if self._began_at is not None and now - self._began_at < PAUSE_S:
            return False
        return not known or self._fetched_at is None or now - self._fetched_at >= REFRESH_S

    def begin(self, now: float) -> None:
        self._began_at = now

    def store(self, keys: list[SigningKey], now: float) -> None:
        self._keys, self._fetched_at, self.failed = keys, now, False

    def fail(self) -> None:
        self.failed = True


class SigningKeys:
    """Finds the key of a token, and has the keys fetched."""

    def __init__(
        self, fetch: Callable[[], list[SigningKey]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`fetch` blocks for a bounded time and raises ValueError or OSError."""
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._cache = KeyCache()
        self._pending: Future[None] | None = None
        """Of the fetch under way."""

    def find(self, kid: str | None, algorithm: str) -> SigningKey:
        """Raises NotReady while the keys are fetched, NotAuthenticated for a key that does not exist, and
        Overloaded if that is not known because the issuer does not answer.
        """
        with self._lock:
            now = self._clock()
            found = self._cache.find(kid, algorithm, now)
            if self._pending is None and self._cache.should_fetch(now, known=found is not None):
                self._begin_fetch(now)
            pending, failed = self._pending, self._cache.failed
        if found is not None:
            return found
        if pending is not None:
            raise NotReady([pending])
        if failed:
            raise Overloaded("The issuer of access tokens does not answer at the moment; try again.")
        raise refused("its issuer has no such key")

    def _begin_fetch(self, now: float) -> None:
        """Begins a fetch, with the lock held. Where no thread can be made it has failed."""
        self._cache.begin(now)
        pending: Future[None] = Future()
        try:
            threading.Thread(target=self._run, args=[pending], name="issuer-keys", daemon=True).start()
        except RuntimeError as error:
            log.warning("the keys of the issuer of access tokens could not be fetched: %s", error)
            self._cache.fail()
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
                if keys is None:
                    self._cache.fail()
                else:
                    self._cache.store(keys, self._clock())
                self._pending = None
            pending.set_result(None)
