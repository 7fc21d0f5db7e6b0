"""Thread pools in which handlers run, one for each kind of work, each shared out fairly among tenants.

The pools share no threads, so neither writes nor streams delay a read, a cancel or a health check. A queue is
served round robin: a tenant's thousand requests delay another's by the time of one.
"""

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from starlette.types import Scope

from engine.fair_limit import FairLimit, NoSlot
from server.errors import Overloaded, TooManyRequests
from server.protocol import input_files

T = TypeVar("T")

WAIT_S = 10.0
"""Seconds that a request waits for a thread of its pool before it is refused."""
_EXIT_S = 10.0
"""Seconds for which the process' end waits for a call; longer than any statement of the database takes."""
_STORE_READER = "store_reads"
"""The key, in an ASGI scope's state, of the function that runs an answer's reads from the store."""


@dataclass(frozen=True, slots=True)
class ThreadShare:
    """The queue that a call waits in. With `unlimited`, the tenant may use every thread of the pool."""

    tenant: str
    unlimited: bool = False


ANY_TENANT = ThreadShare("", unlimited=True)
"""The share of pools that are not shared out by tenant."""


class RunInThread(Protocol):
    """Calls a blocking function in a thread; returns its result, raises its exception."""

    async def __call__(self, function: Callable[..., T], *arguments: object) -> T: ...


def _work(calls: "SimpleQueue[Callable[[], None] | None]") -> None:
    """The body of a pool's threads, which all end after None."""
    while (call := calls.get()) is not None:
        call()
        del call  # a thread that waits keeps nothing of its last call
    calls.put(None)


class Threads:
    """Threads that begin when they are needed, and end with this object. Use it on the event loop only.

    They take calls from a C queue: in a ThreadPoolExecutor a call costs twice the CPU time.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._begun: list[threading.Thread] = []
        self._unfinished = 0
        """Calls that have not ended, among them those that nobody waits for any more."""
        weakref.finalize(self, self._calls.put, None)
        _in_use.add(self)

    def call(self, function: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """The function's result, of a copy of this context. Raises Overloaded if there is no thread."""
        loop, context = asyncio.get_running_loop(), copy_context()
        future: asyncio.Future[T] = loop.create_future()

        def end(result: Any, error: BaseException | None) -> None:
            self._unfinished -= 1
            if future.done():  # cancelled
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def call() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = context.run(function, *arguments)
            except StopIteration:  # which no future takes: it would never be done
                error = RuntimeError("A function in a thread raised StopIteration.")
            except BaseException as raised:  # noqa: BLE001 - it is raised where the call is waited for
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(end, result, error)
            del error  # its traceback has this frame

        if len(self._begun) <= self._unfinished:
            self._begin_thread()
        self._unfinished += 1
        self._calls.put(call)
        return future

    def _begin_thread(self) -> None:
        thread = threading.Thread(target=_work, args=(self._calls,), name="handler", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._begun:
                raise Overloaded(
                    "The server can begin no more threads; try again.", limit="threads"
                ) from error
        else:
            self._begun.append(thread)

    def close(self) -> None:
        """Ends the threads, and waits for what they are calling."""
        self._calls.put(None)
        for thread in self._begun:
            thread.join(_EXIT_S)


_in_use: "weakref.WeakSet[Threads]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A call that is cut off while it computes outside of Python would abort the process as it ends."""
    for threads in list(_in_use):
        threads.close()


async def run_in_thread(threads: Threads, function: Callable[..., T], *arguments: object) -> T:
    return await threads.call(function, *arguments)


class ThreadPool:
    """Runs at most `threads` functions at a time, half of them (rounded up) of one tenant; loop only."""

    def __init__(self, threads: int, wait_seconds: float = WAIT_S) -> None:
        self.size = threads
        self._wait_seconds = wait_seconds
        self._slots = FairLimit(threads, (threads + 1) // 2)
        self._threads = Threads()

    async def run(self, share: ThreadShare, function: Callable[..., T], *arguments: object) -> T:
        """`function(*arguments)` in a thread of this pool; raises its exceptions.

        After the waiting time raises TooManyRequests where the tenant's share is in use, Overloaded where all
        threads are.
        """
        limits: dict[Hashable, int] | None = {share.tenant: self.size} if share.unlimited else None
        try:
            async with self._slots.holding(share.tenant, self._wait_seconds, limits):
                # The thread has a copy of this context.
                input_files.TENANT.set(None if share.unlimited else share.tenant)
                return await run_in_thread(self._threads, function, *arguments)
        except NoSlot:
            if self.busy < self.size:
                message = "Your other requests are still being worked on; try again later."
                raise TooManyRequests(message, limit="threads") from None
            raise Overloaded("Too many requests are waiting; try again.", limit="threads") from None

    @property
    def busy(self) -> int:
        return self._slots.used


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
    scope.setdefault("state", {})[_STORE_READER] = run


def store_reader(scope: Scope) -> RunInThread:
    """The function that runs the store reads of the answer in this scope."""
    run: RunInThread = scope.get("state", {}).get(_STORE_READER, asyncio.to_thread)
    return run
