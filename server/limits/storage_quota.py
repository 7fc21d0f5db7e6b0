"""How many bytes a tenant may have stored. Thread-safe.

What is stored grows by requests that were admitted before, too, and other replicas admit as well. So a tenant
may pass its bound by what is under way and by what a few seconds bring; what it has stays, and is readable.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from server.caller import Caller
from server.configuration.settings import Config
from server.errors import StorageQuotaExceeded
from server.store.content import storage_usage
from server.store.database import Database

DEFAULT_BYTES: Final = 100 * 1024**3
"""Of a tenant with a key. Without a key there is one tenant, which has the whole disk."""
FRESH_SECONDS: Final = 2.0
"""For how long a tenant's sum is not read again."""
_MOST_TENANTS: Final = 4096


class StorageQuota:
    """Reads a tenant's sum at most once in `FRESH_SECONDS`."""

    def __init__(
        self, database: Database, per_tenant: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`per_tenant` is the setting; None for its default."""
        self._database = database
        self._per_tenant = per_tenant
        self._clock = clock
        self._lock = threading.Lock()
        self._read: dict[str, tuple[float, int]] = {}

    @staticmethod
    def of(config: Config, database: Database) -> "StorageQuota":
        """What these settings allow."""
        return StorageQuota(database, config.max_stored_bytes_of_tenant)

    def share(self, key_id: str | None) -> int | None:
        """A tenant's bound in bytes, None for none; `key_id` is None while the server has no key."""
        if self._per_tenant is not None:
            return self._per_tenant
        return DEFAULT_BYTES if key_id is not None else None

    def check(self, caller: Caller) -> None:
        """Raises StorageQuotaExceeded if this caller's tenant may store no more, or DatabaseError."""
        share = self.share(caller.key_id)
        if share is not None and self._stored(caller.tenant) >= share:
            raise StorageQuotaExceeded(share)

    def _stored(self, tenant: str) -> int:
        now = self._clock()
        with self._lock:
            at, found = self._read.get(tenant, (None, 0))
            if at is not None and now - at < FRESH_SECONDS:
                return found
            if at is not None:  # others go by what was read before, and do not read it, too
                self._read[tenant] = (now, found)
        found = self._database.autocommit(lambda connection: storage_usage.total(connection, tenant))
        with self._lock:
            if len(self._read) >= _MOST_TENANTS:
                self._read.clear()
            self._read[tenant] = (now, found)
        return found
