"""Thread pools for handlers, one for each kind of work, each with a fair queue by tenant.

The pools do not share threads, so neither slow writes nor many streams delay a read, a cancel or a health
check. A queue is served round robin: a tenant with a thousand queued requests delays another tenant's request
by the time of one.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.types import Scope

from server.errors import Overloaded, TooManyRequests
from server.protocol import input_files

T = TypeVar("T")

WAIT_S = 10.0
"""Seconds that a request waits for a thread of its pool before it is refused."""
_STORE_READER = "store_reads"
"""The key, in an ASGI scope's state, of the function that runs an answer's reads from the store."""


@dataclass(frozen=True, slots=True)
class ThreadShare:
    """The queue that a call waits in. With `unlimited`, the tenant may use every thread of the pool."""

    tenant: str
    unlimited: bool = False


ANY_TENANT = ThreadShare("", unlimited=True)
"""For pools that are not shared out by tenant."""


class RunInThread(Protocol):
    """Calls a blocking function in a thread; returns its result, raises its exception."""

    async def __call__(self, function: Callable[..., T], *arguments: object) -> T: ...


async def run_in_thread(
    function: Callable[..., T], *arguments: object, limiter: CapacityLimiter | None = None
) -> T:
    """`function(*arguments)` in a thread of `limiter`, or of anyio's default pool."""
    return await to_thread.run_sync(function, *arguments, limiter=limiter)


class ThreadPool:
    """Runs at most `threads` functions at a time, at most half of them (rounded up) of one tenant.

    Use it on the event loop only.
    """

    def __init__(self, threads: int, wait_seconds: float = WAIT_S) -> None:
        self.size = threads
        self._tenant_share = (threads + 1) // 2
        self._wait_seconds = wait_seconds
        self._limiter: CapacityLimiter | None = None
        self._running: Counter[str] = Counter()
        self._queues: dict[str, deque[tuple[ThreadShare, asyncio.Future[None]]]] = {}
        """Waiting calls by tenant, in round-robin order of the tenants. No queue is empty."""

    async def run(self, share: ThreadShare, function: Callable[..., T], *arguments: object) -> T:
        """`function(*arguments)` in a thread of this pool.

        Raises the function's exceptions; TooManyRequests when the tenant's share stayed in use for the whole
        waiting time, Overloaded when all threads did.
        """
        await self._acquire(share)
        try:
            if self._limiter is None:
                self._limiter = CapacityLimiter(self.size)
            input_files.TENANT.set(
                None if share.unlimited else share.tenant
            )  # the thread has a copy of this context
            return await run_in_thread(function, *arguments, limiter=self._limiter)
        finally:
            self._release(share)

    def bind(self, share: ThreadShare) -> RunInThread:
        """`run` for one tenant."""
        return partial(self.run, share)

    @property
    def busy(self) -> int:
        """Threads in use."""
        return self._running.total()

    async def _acquire(self, share: ThreadShare) -> None:
        if share.tenant not in self._queues and self._may_run(share):
            self._running[share.tenant] += 1
            return
        permit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (share, permit)
        self._queues.setdefault(share.tenant, deque()).append(waiting)
        try:
            async with asyncio.timeout(self._wait_seconds):
                await permit
        except TimeoutError:
            self._abandon(waiting)
            if self.busy < self.size:
                raise TooManyRequests(
                    "Your other requests are still being worked on; try again later."
                ) from None
            raise Overloaded("Too many requests are waiting; try again.") from None
        except asyncio.CancelledError:
            self._abandon(waiting)
            raise

    def _abandon(self, waiting: tuple[ThreadShare, asyncio.Future[None]]) -> None:
        """Leaves the queue, or releases a permit that was granted at the same moment."""
        share, permit = waiting
        if permit.done() and not permit.cancelled():
            self._release(share)
            return
        queue = self._queues.get(share.tenant, deque())
        with suppress(ValueError):
            queue.remove(waiting)
        if not queue:
            self._queues.pop(share.tenant, None)

    def _release(self, share: ThreadShare) -> None:
        self._running[share.tenant] -= 1
        if not self._running[share.tenant]:
            del self._running[share.tenant]
        while (following := self._next()) is not None:
            share, permit = following
            if not permit.cancelled():
                self._running[share.tenant] += 1
                permit.set_result(None)

    def _next(self) -> tuple[ThreadShare, asyncio.Future[None]] | None:
        """Removes the next call: the first of the first tenant below its share, which moves to the end."""
        for tenant, queue in self._queues.items():
            if self._may_run(queue[0][0]):
                following = queue.popleft()
                del self._queues[tenant]
                if queue:
                    self._queues[tenant] = queue
                return following
        return None

    def _may_run(self, share: ThreadShare) -> bool:
        limit = self.size if share.unlimited else self._tenant_share
        return self.busy < self.size and self._running[share.tenant] < limit


@dataclass(frozen=True, slots=True)
class ThreadPools:
    """The pools. Those that use the database divide the connections for requests among them."""

    auth: ThreadPool
    """Key lookups."""
    read: ThreadPool
    write: ThreadPool
    cancel: ThreadPool
    """Cancels and deletes, apart from the writes whose responses they end."""
    stream: ThreadPool
    """Reads of stored events for open streams, and of final responses."""
    health: ThreadPool
    """Pings the database, on a connection beyond the requests' ones."""
    document: ThreadPool
    """Renders /openapi.json; uses no connection."""


def make_thread_pools(connections: int) -> ThreadPools:
    """Pools with `connections` threads in all, at least one each; `health` and `document` come on top."""
    few, some = max(1, connections // 8), max(1, connections // 4)
    return ThreadPools(
        auth=ThreadPool(few),
        read=ThreadPool(some),
        write=ThreadPool(max(1, connections - 3 * few - some)),
        cancel=ThreadPool(few),
        stream=ThreadPool(few),
        health=ThreadPool(1),
        document=ThreadPool(1),
    )


MIN_CONNECTIONS = 5
"""One for each pool that uses a request's connection."""


def set_store_reader(scope: Scope, run: RunInThread) -> None:
    """Sets the function that runs the store reads of the answer in this scope."""
    scope.setdefault("state", {})[_STORE_READER] = run


def store_reader(scope: Scope) -> RunInThread:
    """The function that runs the store reads of the answer in this scope."""
    run: RunInThread = scope.get("state", {}).get(_STORE_READER, run_in_thread)
    return run
