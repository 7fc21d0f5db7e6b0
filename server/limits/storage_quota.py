"""A quota of stored bytes per tenant, checked before a response is accepted. Thread-safe.

Accepted responses still grow, and other replicas accept more, so a tenant may exceed its quota by running
responses and by the requests of a few seconds. Stored content remains readable.
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

DEFAULT_TENANT_BYTES: Final = 100 * 1024**3
"""Of a tenant with a key. The tenant of a server without keys has the whole disk."""
FRESH_SECONDS: Final = 2.0
"""How long a tenant's sum is cached."""
_MAX_TENANTS: Final = 4096


class StorageQuota:
    """Reads a tenant's sum from the database at most once in `FRESH_SECONDS`."""

    def __init__(
        self, database: Database, per_tenant: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`per_tenant` is the setting in bytes; None for the default."""
        self._database = database
        self._per_tenant = per_tenant
        self._clock = clock
        self._lock = threading.Lock()
        self._read: dict[str, tuple[float, int]] = {}

    @staticmethod
    def from_config(config: Config, database: Database) -> "StorageQuota":
        """The quota of the settings."""
        return StorageQuota(database, config.max_stored_bytes_of_tenant)

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
        size = self._database.ask(lambda connection: storage_usage.total(connection, tenant))
        with self._lock:
            if len(self._read) >= _MAX_TENANTS:
                self._read.clear()
            self._read[tenant] = (now, size)
        return size
