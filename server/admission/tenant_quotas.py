"""A tenant's quotas: stored bytes (`StorageQuota`), and background responses that wait (`QueueLimits`).

Stored bytes are checked before a response is accepted. Accepted responses still grow, and other replicas
accept more, so a tenant may exceed its quota by running responses and by the requests of a few seconds.
Stored content remains readable. Waiting responses are counted by the accept transaction before it adds
its row. Concurrent transactions do not see each other's rows, so that limit may be exceeded by as many
rows as there are threads.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from server.caller import Caller
from server.errors import Overloaded, StorageQuotaExceeded, TooManyRequests
from server.store.cluster import claims
from server.store.content import storage_usage
from server.store.database import Connection, Database

DEFAULT_TENANT_BYTES: Final = 100 * 1024**3
"""Of a tenant with a key. The tenant of a server without keys has the whole disk."""
FRESH_SECONDS: Final = 2.0
"""How long a tenant's sum is cached."""
_MAX_TENANTS: Final = 4096
QUEUED: Final = "queued background responses"


class StorageQuota:
    """Stored bytes per tenant, read from the database at most once in `FRESH_SECONDS`. Thread-safe."""

    def __init__(
        self, database: Database, per_tenant: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`per_tenant` is the setting in bytes; None for the default."""
        self._database = database
        self._per_tenant = per_tenant
        self._clock = clock
        self._lock = threading.Lock()
        self._read: dict[str, tuple[float, int]] = {}

    def share(self, key_id: str | None) -> int | None:
        """A tenant's quota in bytes, None for no quota. `key_id` is None on a server without keys."""
        if self._per_tenant is not None:
            return self._per_tenant
        return DEFAULT_TENANT_BYTES if key_id is not None else None

    def check(self, caller: Caller) -> None:
        """Raises StorageQuotaExceeded if this caller's tenant may store no more, or DatabaseError."""
        share = self.share(caller.key_id)
        if share is not None and self._stored(caller.tenant) >= share:
            raise StorageQuotaExceeded(share)

    def _stored(self, tenant: str) -> int:
        now = self._clock()
        with self._lock:
            read_at, size = self._read.get(tenant, (None, 0))
            if read_at is not None and now - read_at < FRESH_SECONDS:
                return size
            if read_at is not None:  # other threads use the old sum while this one reads
                self._read[tenant] = (now, size)
        size = self._database.autocommit(lambda connection: storage_usage.total(connection, tenant))
        with self._lock:
            if len(self._read) >= _MAX_TENANTS:
                self._read.clear()
            self._read[tenant] = (now, size)
        return size


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """At most `total` queued background responses, and `per_tenant` of one tenant."""

    total: int
    per_tenant: int | None

    def share(self, caller: Caller) -> int:
        """The caller's limit. A server without keys has one tenant, whose limit is the total."""
        if self.per_tenant is not None:
            return min(self.per_tenant, self.total)
        return self.total if caller.key_id is None else max(1, self.total // 2)

    def check(self, connection: Connection, caller: Caller) -> None:
        """Raises TooManyRequests or Overloaded if no background response may be added."""
        share = self.share(caller)
        if share < self.total and claims.count_waiting_of_tenant(connection, caller.tenant, share) >= share:
            raise TooManyRequests(
                f"You may have {share} background responses waiting at a time; try again later.",
                limit=QUEUED,
            )
        if claims.count_waiting(connection, self.total) >= self.total:
            raise Overloaded("Too many background responses are waiting; try again later.", limit=QUEUED)
