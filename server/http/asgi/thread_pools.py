"""Threads for plain functions, in classes of work that never wait for each other.

Each class has threads of its own and a queue in which tenants take turns. So neither slow writes nor a
crowd of streams delays a read, a cancel or a health check, and a tenant with a thousand requests in the
queue delays another tenant's request by one request's time.
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
from server.protocol.files import pdf_extraction

T = TypeVar("T")

WAIT_S = 10.0
"""How long a request waits for a thread of its class before it is refused."""
_STORE_READS = "store_reads"
"""The name, in a scope's state, of what runs a stream's reads from the store."""


@dataclass(frozen=True, slots=True)
class ThreadShare:
    """Whose turn it is in a class's queue. With `whole`, no thread is left for others: there are none."""

    tenant: str
    whole: bool = False


ALONE = ThreadShare("", whole=True)
"""For classes that do not tell tenants apart."""


class RunInThread(Protocol):
    """Calls a plain function in some thread and returns what it returns. Raises what it raises."""

    async def __call__(self, function: Callable[..., T], *arguments: object) -> T: ...


async def run_in_thread(
    function: Callable[..., T], *arguments: object, limiter: CapacityLimiter | None = None
) -> T:
    """`function(*arguments)` in a thread; `limiter` is whose thread it is."""
    return await to_thread.run_sync(function, *arguments, limiter=limiter)


class ThreadClass:
    """At most `threads` functions at a time, at most half of them one tenant's, the others queued.

    To be used on the event loop only.
    """

    def __init__(self, threads: int, wait_seconds: float = WAIT_S) -> None:
        self.size = threads
        self._share = (threads + 1) // 2
        self._wait_seconds = wait_seconds
        self._limiter: CapacityLimiter | None = None
        self._running: Counter[str] = Counter()
        self._queues: dict[str, deque[tuple[ThreadShare, asyncio.Future[None]]]] = {}
        """By tenant; the first tenant with a turn due is the next. None is empty."""

    async def run(self, lane: ThreadShare, function: Callable[..., T], *arguments: object) -> T:
        """`function(*arguments)` in a thread of this class.

        Raises what it raises, TooManyRequests when no thread of the tenant's share became free in time, and
        Overloaded when none became free at all.
        """
        await self._acquire(lane)
        try:
            if self._limiter is None:
                self._limiter = CapacityLimiter(self.size)
            pdf_extraction.TENANT.set(
                None if lane.whole else lane.tenant
            )  # the thread has a copy of this context
            return await run_in_thread(function, *arguments, limiter=self._limiter)
        finally:
            self._release(lane)

    def on(self, lane: ThreadShare) -> RunInThread:
        """`run` for one lane."""
        return partial(self.run, lane)

    @property
    def busy(self) -> int:
        """The threads in use."""
        return self._running.total()

    async def _acquire(self, lane: ThreadShare) -> None:
        if lane.tenant not in self._queues and self._may_run(lane):
            self._running[lane.tenant] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (lane, turn)
        self._queues.setdefault(lane.tenant, deque()).append(waiting)
        try:
            async with asyncio.timeout(self._wait_seconds):
                await turn
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
        """Leaves the queue, or gives back the turn that came at the last moment."""
        lane, turn = waiting
        if turn.done() and not turn.cancelled():
            self._release(lane)
            return
        queue = self._queues.get(lane.tenant, deque())
        with suppress(ValueError):
            queue.remove(waiting)
        if not queue:
            self._queues.pop(lane.tenant, None)

    def _release(self, lane: ThreadShare) -> None:
        self._running[lane.tenant] -= 1
        if not self._running[lane.tenant]:
            del self._running[lane.tenant]
        while (following := self._next()) is not None:
            lane, turn = following
            if not turn.cancelled():
                self._running[lane.tenant] += 1
                turn.set_result(None)

    def _next(self) -> tuple[ThreadShare, asyncio.Future[None]] | None:
        """Takes the first of the first tenant that may run out of its queue; that tenant goes to the end."""
        for tenant, queue in self._queues.items():
            if self._may_run(queue[0][0]):
                following = queue.popleft()
                del self._queues[tenant]
                if queue:
                    self._queues[tenant] = queue
                return following
        return None

    def _may_run(self, lane: ThreadShare) -> bool:
        share = self.size if lane.whole else self._share
        return self.busy < self.size and self._running[lane.tenant] < share


@dataclass(frozen=True, slots=True)
class ThreadClasses:
    """The classes that use the database, which share out the connections for requests."""

    auth: ThreadClass
    """Looks keys up."""
    read: ThreadClass
    write: ThreadClass
    cancel: ThreadClass
    """Cancels and deletes, which never wait behind what they are to end."""
    stream: ThreadClass
    """Reads stored events for open streams, and final responses for whoever waits for them."""
    health: ThreadClass
    """Asks the database whether it answers, on a connection that is not a request's."""
    document: ThreadClass
    """Makes /openapi.json; uses no connection."""


def thread_classes(connections: int) -> ThreadClasses:
    """Classes with so many threads in all, but one each at least; `health` and `document` come on top."""
    few, some = max(1, connections // 8), max(1, connections // 4)
    return ThreadClasses(
        auth=ThreadClass(few),
        read=ThreadClass(some),
        write=ThreadClass(max(1, connections - 3 * few - some)),
        cancel=ThreadClass(few),
        stream=ThreadClass(few),
        health=ThreadClass(1),
        document=ThreadClass(1),
    )


LEAST_CONNECTIONS = 5
"""One for each class that uses a request's connection."""


def set_store_reads(scope: Scope, run: RunInThread) -> None:
    """Says who runs the reads of the answer that is sent in this scope."""
    scope.setdefault("state", {})[_STORE_READS] = run


def store_reads(scope: Scope) -> RunInThread:
    """Who runs the answer's reads from the store."""
    run: RunInThread = scope.get("state", {}).get(_STORE_READS, run_in_thread)
    return run
