"""FairSlots: a bounded number of concurrent calls on an event loop; waiting tenants take turns, round robin.

Neither a tenant with many waiting calls nor one key of theirs (a server that never answers) delays others.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass


class NoSlot(Exception):
    """No slot was free within the time."""


@dataclass(eq=False, slots=True)
class _Waiter:
    limits: Mapping[Hashable, int]
    granted: asyncio.Future[None]


class FairSlots:
    """`total` slots, of which a tenant has at most its own limit. Use it on one event loop only."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._uses: Counter[Hashable] = Counter()
        """Slots in use by limited key."""
        self._waiting: dict[str, deque[_Waiter]] = {}
        """Waiters by tenant, in round-robin order: the next tenant is first. No queue is empty."""

    @asynccontextmanager
    async def slot(
        self, tenant: str, most: int, seconds: float, limits: Mapping[Hashable, int] | None = None
    ) -> AsyncIterator[None]:
        """A slot for as long as the block runs. Raises NoSlot when none is free within `seconds`.

        `most` is the tenant's limit; `limits` has further ones by key, of which each call of a key takes one.
        """
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter({(tenant,): most, **(limits or {})}, granted)
        self._waiting.setdefault(tenant, deque()).append(waiter)
        self._grant_free_slots()
        try:
            try:
                if not waiter.granted.done():
                    async with asyncio.timeout(seconds):
                        await waiter.granted
            except TimeoutError:
                raise NoSlot from None
            yield
        finally:
            if waiter.granted.done() and not waiter.granted.cancelled():
                self._count(waiter, -1)
            else:
                self._remove(tenant, waiter)
            self._grant_free_slots()

    def _grant_free_slots(self) -> None:
        """Grants free slots, one to each tenant in turn, while a waiter is within all limits."""
        granted = True
        while granted and self.used < self.total:
            granted = False
            for tenant in list(self._waiting):
                waiter = self._next(tenant)
                if waiter is None:
                    continue
                granted = True
                self._remove(tenant, waiter)
                self._count(waiter, 1)
                waiter.granted.set_result(None)
                if tenant in self._waiting:
                    self._waiting[tenant] = self._waiting.pop(tenant)  # now the last in order

    def _next(self, tenant: str) -> _Waiter | None:
        """The tenant's first waiter that is within all limits."""
        queue = self._waiting[tenant]
        if self.used >= self.total or self._uses[tenant,] >= queue[0].limits[tenant,]:
            return None
        return next((waiter for waiter in queue if self._fits(waiter)), None)

    def _fits(self, waiter: _Waiter) -> bool:
        return not waiter.granted.done() and all(
            self._uses[key] < most for key, most in waiter.limits.items()
        )

    def _count(self, waiter: _Waiter, change: int) -> None:
        self.used += change
        for key in waiter.limits:
            self._uses[key] += change
            if not self._uses[key]:
                del self._uses[key]

    def _remove(self, tenant: str, waiter: _Waiter) -> None:
        queue = self._waiting[tenant]
        queue.remove(waiter)
        if not queue:
            del self._waiting[tenant]
