"""Concurrency limits of MCP calls: in all, per tenant, per server, and per tenant and server.

A call beyond a limit waits in its tenant's queue. Free slots go to the tenants round-robin, so neither a
server that never answers nor a tenant with many calls delays others. Used by one event loop.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

MAX_CALLS = 64
MAX_PER_TENANT = 32
MAX_PER_SERVER = 32
MAX_PER_TENANT_AND_SERVER = 16


class NoSlot(Exception):
    """No slot was free within the time."""


@dataclass(eq=False, slots=True)
class _Waiter:
    server: str
    granted: asyncio.Future[None]


class CallSlots:
    def __init__(
        self,
        total: int = MAX_CALLS,
        per_tenant: int = MAX_PER_TENANT,
        per_server: int = MAX_PER_SERVER,
        per_pair: int = MAX_PER_TENANT_AND_SERVER,
    ) -> None:
        """`per_pair` limits one tenant's calls of one server."""
        self._total = total
        self._per_tenant = per_tenant
        self._per_server = per_server
        self._per_pair = per_pair
        self._used = 0
        self._tenants: Counter[str] = Counter()
        self._servers: Counter[str] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._waiting: dict[str, deque[_Waiter]] = {}
        """Waiters by tenant, in round-robin order: the next tenant is first."""

    @asynccontextmanager
    async def slot(self, tenant: str, server: str, seconds: float) -> AsyncIterator[None]:
        """A slot for as long as the block runs. Raises NoSlot when none is free within `seconds`."""
        await self._wait_for_slot(tenant, server, seconds)
        try:
            yield
        finally:
            self._count(tenant, server, -1)
            self._grant_free_slots()

    async def _wait_for_slot(self, tenant: str, server: str, seconds: float) -> None:
        waiter = _Waiter(server, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(tenant, deque()).append(waiter)
        self._grant_free_slots()
        try:
            async with asyncio.timeout(seconds):
                await waiter.granted
        except BaseException as error:
            if (
                waiter.granted.done() and not waiter.granted.cancelled()
            ):  # granted at the same moment: give the slot back
                self._count(tenant, server, -1)
            else:
                self._remove_waiter(tenant, waiter)
            self._grant_free_slots()
            if isinstance(error, TimeoutError):
                raise NoSlot from None
            raise

    def _grant_free_slots(self) -> None:
        """Grant free slots, one to each tenant in turn, while a waiter is within all limits."""
        granted = True
        while granted and self._used < self._total:
            granted = False
            for tenant in list(self._waiting):
                waiter = next((one for one in self._waiting[tenant] if self._fits(tenant, one)), None)
                if waiter is None:
                    continue
                granted = True
                self._remove_waiter(tenant, waiter)
                self._count(tenant, waiter.server, 1)
                waiter.granted.set_result(None)
                if tenant in self._waiting:
                    self._waiting[tenant] = self._waiting.pop(tenant)  # now the last in order

    def _fits(self, tenant: str, waiter: _Waiter) -> bool:
        return (
            not waiter.granted.done()
            and self._used < self._total
            and self._tenants[tenant] < self._per_tenant
            and self._servers[waiter.server] < self._per_server
            and self._pairs[tenant, waiter.server] < self._per_pair
        )

    def _count(self, tenant: str, server: str, change: int) -> None:
        self._used += change
        counts: list[tuple[Counter[object], object]] = [
            (self._tenants, tenant),  # type: ignore[list-item]
            (self._servers, server),  # type: ignore[list-item]
            (self._pairs, (tenant, server)),  # type: ignore[list-item]
        ]
        for counter, name in counts:
            counter[name] += change
            if counter[name] <= 0:
                del counter[name]

    def _remove_waiter(self, tenant: str, waiter: _Waiter) -> None:
        waiting = self._waiting.get(tenant)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            if not waiting:
                del self._waiting[tenant]
