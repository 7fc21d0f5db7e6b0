"""`SharedLimit`: a counter of what is in use at a time, in all and per tenant, which never waits. A tenant at
its own limit gets 429, and only a full server answers 503. `docs/limits.md` lists all.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from server.errors import Overloaded, TooManyRequests

UNBOUNDED = 2**31


class SharedLimit:
    """At most `total` units, and first at most `per_tenant` of one tenant, in use. Thread-safe."""

    def __init__(self, what: str, *, total: int, per_tenant: int) -> None:
        """`what` is the plural noun of the error's sentence: "open streams", "bytes of request bodies"."""
        self.what = what
        self.total = total
        self.per_tenant = min(per_tenant, total)
        self._lock = threading.Lock()
        self._used = 0
        self._by_tenant: Counter[str] = Counter()

    def acquire(self, tenant: str, amount: int = 1) -> None:
        """Take `amount` units, or none. Raises TooManyRequests at the tenant's bound, else Overloaded."""
        with self._lock:
            if self._by_tenant[tenant] + amount > self.per_tenant:
                self._forget_if_unused(tenant)
                raise TooManyRequests(
                    f"You may have {self.per_tenant} {self.what} at a time; try again later.", limit=self.what
                )
            if self._used + amount > self.total:
                self._forget_if_unused(tenant)
                raise Overloaded(
                    f"The server has {self.total} {self.what}, its limit; try again later.", limit=self.what
                )
            self._used += amount
            self._by_tenant[tenant] += amount

    def release(self, tenant: str, amount: int = 1) -> None:
        with self._lock:
            self._used -= amount
            self._by_tenant[tenant] -= amount
            self._forget_if_unused(tenant)

    @contextmanager
    def hold(self, tenant: str, amount: int = 1) -> Iterator[None]:
        """`acquire` for the duration of the block. Raises as it does."""
        self.acquire(tenant, amount)
        try:
            yield
        finally:
            self.release(tenant, amount)

    def used(self, tenant: str | None = None) -> int:
        """The units in use, of one tenant or in all."""
        with self._lock:
            return self._used if tenant is None else self._by_tenant.get(tenant, 0)

    def _forget_if_unused(self, tenant: str) -> None:
        if self._by_tenant[tenant] <= 0:
            del self._by_tenant[tenant]
