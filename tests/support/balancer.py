"""`Balancer`: forwards connections to servers that say they are ready, as a balancer of TCP does.

It knows nothing of HTTP but the status of `/health/ready`, tries no second server, and repairs no stream.
"""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Self

PROBE_S = 0.25
"""Between two questions for a server's readiness."""
BLOCK = 65536
PATIENCE_S = 60.0


class Balancer:
    """Listens on loopback while its block lasts. Its methods are for other threads."""

    def __init__(self, ports: Sequence[int], *, probe_seconds: float = PROBE_S) -> None:
        self._ports = tuple(ports)
        self._probe_seconds = probe_seconds
        self._ready: frozenset[int] = frozenset()
        self._turns = count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="balancer", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server
        self.carried = dict.fromkeys(self._ports, 0)
        """By port: connections."""
        self.refused = 0
        """Connections that no server took."""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    @property
    def ready(self) -> frozenset[int]:
        """The ports that new connections go to."""
        return self._ready

    async def _open(self) -> None:
        self._listener = await asyncio.start_server(self._take, "127.0.0.1", 0, backlog=512)
        for port in self._ports:
            self._keep(asyncio.ensure_future(self._watch(port)))

    async def _close(self) -> None:
        self._listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, port: int) -> None:
        while True:
            ready = False
            with suppress(OSError):  # it is not there
                ready = await _is_ready(port)
            self._ready = self._ready | {port} if ready else self._ready - {port}
            await asyncio.sleep(self._probe_seconds)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        candidates = sorted(self._ready)
        try:
            if not candidates:
                raise ConnectionRefusedError
            port = candidates[next(self._turns) % len(candidates)]
            answers, requests = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            self.refused += 1
            writer.transport.abort()
            return
        self.carried[port] += 1
        ways = [
            asyncio.ensure_future(_carry(reader, requests)),
            asyncio.ensure_future(_carry(answers, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (requests, writer):
                end.close()  # sends what is left first


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until either end hangs up."""
    with suppress(ConnectionError):
        while block := await reader.read(BLOCK):
            writer.write(block)
            await writer.drain()


async def _is_ready(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        return (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    finally:
        writer.close()
