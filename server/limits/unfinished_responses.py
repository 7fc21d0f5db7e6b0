"""Limits on the unfinished responses of this process, in all and per tenant.

A response is counted from before its row exists until its end is committed, also while it waits for a
tool. The total is the engine's own limit of running and waiting requests, and a response has one engine
request at a time. So the engine has room for each counted response, and overload is known before a
response is accepted.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from server.configuration.settings import Config
from server.errors import InvalidRequest, Overloaded, TooManyRequests

UNBOUNDED = 2**31


class UnfinishedResponses:
    """The unfinished responses here, by id. Thread-safe."""

    def __init__(self, *, total: int = UNBOUNDED, per_tenant: int | None = None) -> None:
        """`per_tenant` defaults to half of the total on a server with keys, and to the total without."""
        self.total = total
        self._per_tenant = per_tenant
        self._lock = threading.Lock()
        self._tenants: dict[UUID, str] = {}
        self._counts: Counter[str] = Counter()

    @staticmethod
    def from_config(config: Config) -> "UnfinishedResponses":
        """The limits of the settings."""
        return UnfinishedResponses(
            total=config.max_running + config.max_waiting, per_tenant=config.max_of_tenant
        )

    def share(self, key_id: str | None) -> int:
        """The limit of one tenant. `key_id` is None on a server without keys."""
        if self._per_tenant is not None:
            return min(self._per_tenant, self.total)
        return self.total if key_id is None else max(1, self.total // 2)

    def check(self, tenant: str, key_id: str | None, count: int) -> None:
        """Raises TooManyRequests or Overloaded if `reserve` would; InvalidRequest if `count` never fits."""
        with self._lock:
            self._check(tenant, key_id, count)

    def reserve(self, tenant: str, key_id: str | None, responses: Sequence[UUID]) -> None:
        """Count these responses, or none of them. Raises as `check` does."""
        with self._lock:
            self._check(tenant, key_id, len(responses))
            for response in responses:
                self._add(response, tenant)

    def add(self, response: UUID, tenant: str) -> None:
        """Count a response regardless of the limits; idempotent."""
        with self._lock:
            self._add(response, tenant)

    def discard(self, response: UUID) -> None:
        """Stop counting a response that has ended or was released; idempotent."""
        with self._lock:
            tenant = self._tenants.pop(response, None)
            if tenant is None:
                return
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]

    def full_tenants(self) -> set[str]:
        """Tenants at the limit of the setting; empty if only the default limits them.

        The claimer skips their background responses. It claims only while there is room, and fairly, so that
        the default limit is not needed there.
        """
        most = self._per_tenant
        with self._lock:
            return {tenant for tenant, count in self._counts.items() if most is not None and count >= most}

    def __contains__(self, response: UUID) -> bool:
        return response in self._tenants

    def __len__(self) -> int:
        return len(self._tenants)

    def _add(self, response: UUID, tenant: str) -> None:
        if response not in self._tenants:
            self._tenants[response] = tenant
            self._counts[tenant] += 1

    def _check(self, tenant: str, key_id: str | None, count: int) -> None:
        share = self.share(key_id)
        if count > share:
            raise InvalidRequest(
                f"A request may ask for at most {share} answers at a time here, not {count}.",
                param="n",
                code="invalid_value",
            )
        if share < self.total and self._counts.get(tenant, 0) + count > share:
            raise TooManyRequests(
                f"You may have {share} unfinished responses here at a time; try again later."
            )
        if len(self._tenants) + count > self.total:
            raise Overloaded("The server has more requests than it can take; try again later.")
