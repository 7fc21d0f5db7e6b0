"""A network between a server and Postgres that can be made bad: slow, silent, cut, or in small pieces.

The proxy listens on TCP and connects to the cluster's socket. What is done to it holds for the connections
that are there and for those that come, unless it says otherwise.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self, TypeVar

import pytest
from psycopg.conninfo import conninfo_to_dict

T = TypeVar("T")

BLOCK = 65536
PATIENCE_S = 60.0


class Proxy:
    """Carries bytes between the connections it takes and one Postgres. Its methods are for other threads."""

    def __init__(self, database_url: str) -> None:
        self._target = conninfo_to_dict(database_url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._port = 0
        self._latency = 0.0
        self._piece = BLOCK
        self._carries: asyncio.Event

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._open)
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """The way to the database through this proxy."""
        user, name = self._target["user"], self._target["dbname"]
        return f"postgresql://{user}@127.0.0.1:{self._port}/{name}?sslmode=disable&gssencmode=disable"

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._links)

    def lead_to(self, database_url: str) -> None:
        """New connections lead there, as a name does after a failover."""
        self._target = conninfo_to_dict(database_url)

    def delay(self, seconds: float) -> None:
        """Every answer arrives that much later, so that a round trip takes as long."""
        self._latency = seconds

    def slice(self, size: int) -> None:
        """Everything arrives in pieces of so many bytes."""
        self._piece = size

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """A black hole: nothing arrives on either side, and nobody is told. Afterwards it arrives."""
        self._do(self._be_deaf)
        try:
            yield
        finally:
            self._do(self._hear)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Connections are cut, and new ones refused."""
        self._do(self._close)
        try:
            yield
        finally:
            self._do(self._open)

    def strand(self) -> None:
        """The connections that are there stay silent for good; new ones are carried."""
        self._do(self._strand)

    def reset(self) -> None:
        """The connections that are there are answered by a reset."""
        self._do(self._reset)

    # --- on the loop ---

    def _do(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(act(), self._loop).result(PATIENCE_S)

    async def _open(self) -> None:
        self._carries = asyncio.Event()
        self._carries.set()
        self._listener = await asyncio.start_server(self._take, "127.0.0.1", self._port, backlog=512)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        links = list(self._links)
        for link in links:
            link.task.cancel()
        await asyncio.gather(*(link.task for link in links), return_exceptions=True)

    async def _be_deaf(self) -> None:
        self._carries.clear()

    async def _hear(self) -> None:
        self._carries.set()

    async def _strand(self) -> None:
        for link in self._links:
            link.carries = asyncio.Event()

    async def _reset(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        link = _Link(writer, task, self._carries)
        self._links.add(link)
        try:
            await link.carries.wait()
            upstream = await self._connect()
            link.ends.append(upstream[1])
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(link, reader, upstream[1], late=False))
                pumps.create_task(self._pump(link, upstream[0], writer, late=True))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(link)
            link.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._target["host"], self._target.get("port", 5432)
        if str(host).startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(str(host), int(port or 5432))

    async def _pump(
        self, link: "_Link", reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, late: bool
    ) -> None:
        while block := await reader.read(BLOCK):
            if late and self._latency:
                await asyncio.sleep(self._latency)
            for start in range(0, len(block), self._piece):
                await link.carries.wait()
                writer.write(block[start : start + self._piece])
                await writer.drain()
                if self._piece < BLOCK:
                    await asyncio.sleep(0)
        raise ConnectionResetError  # one end hung up: so does the other


class _Link:
    """One connection and where it leads."""

    def __init__(
        self, writer: asyncio.StreamWriter, task: "asyncio.Task[object]", carries: asyncio.Event
    ) -> None:
        self.ends = [writer]
        self.task = task
        self.carries = carries

    def reset(self) -> None:
        """A linger of no time makes the kernel answer by a reset instead of an orderly end."""
        for end in self.ends:
            raw = end.get_extra_info("socket")
            if raw.family != socket.AF_UNIX:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.task.cancel()

    def close(self) -> None:
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.transport.abort()


Through = Callable[[str], Proxy]


@pytest.fixture
def through() -> Iterator[Through]:
    """Puts a proxy before a database; it goes with the test."""
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(Proxy(url))


@pytest.fixture
def proxy(database_url: str, through: Through) -> Proxy:
    """A network between this test's database and whoever uses `proxy.url`."""
    return through(database_url)
