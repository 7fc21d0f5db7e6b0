"""Accepting connections: so many at a time, and the longest idle one makes room for a new one.

Hypercorn drives each connection; accepting them is done here, because asyncio's own server knows no bound
and, once file descriptors have run out, tries and logs as often as its backlog is long.
"""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config as HypercornConfig
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from server.http.asgi.hypercorn_patches import Connection, Connections

log = logging.getLogger("holdfast.listener")

DEFAULT_CONNECTIONS = 4096
_SPARE = 32
"""Connections beyond the bound: those on which a health check, or a request to be refused, comes."""
_RESERVED_FILES = 96
"""File descriptors for everything but clients and the database's connections."""
_MOST_FILES = 65536
"""The soft limit is not raised beyond it: some programs that we start look at every possible descriptor."""
_PAUSE_S = 1.0
"""How long nothing is accepted once file descriptors have run out."""
_SILENT_S = 60.0
"""How often the log says that they have."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def raise_file_limit() -> int:
    """Raises the soft limit of open files as far as is useful; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def most_connections(wanted: int | None, files: int, database: int) -> int:
    """How many connections may be in use, with so many open files and database connections; 8 at least."""
    room = files - _RESERVED_FILES - database - _SPARE
    return max(8, min(wanted or DEFAULT_CONNECTIONS, room))


class Listener:
    """Serves an application on a listening socket until it is told to end."""

    def __init__(self, app: ASGIApp, settings: HypercornConfig, most: int) -> None:
        """`most` connections may be in use at a time."""
        self._app = wrap_app(app, settings.wsgi_max_body_size, "asgi")  # type: ignore[arg-type]
        self._settings = settings
        self._most = most
        self._connections = Connections()
        self._context = WorkerContext(None)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._warned_at = -_SILENT_S

    async def serve(self, listener: socket.socket, ended: Callable[[], Awaitable[object]]) -> None:
        """Until `ended` returns; then requests under way have the settings' graceful time to end."""
        accepting = asyncio.ensure_future(self._accept_all(listener))
        ending = asyncio.ensure_future(ended())
        try:
            await asyncio.wait({accepting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                accepting.result()
        finally:
            accepting.cancel()
            ending.cancel()
            listener.close()
            await self._context.terminated.set()
            await self._finish()

    async def _finish(self) -> None:
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=self._settings.graceful_timeout)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _accept_all(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._make_room()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    await self._recover(error)
                continue  # else the client has gone already
            try:
                await self._attach(accepted)
            except OSError:
                accepted.close()

    async def _make_room(self) -> None:
        """Closes the longest idle connection if there are too many, and waits if none is idle."""
        while self._connections.open >= self._most + _SPARE:
            if not self._connections.close_idle():
                await self._connections.changed()
            else:
                await asyncio.sleep(0)
        if self._connections.open >= self._most:
            self._connections.close_idle()

    async def _recover(self, error: OSError) -> None:
        if monotonic() - self._warned_at >= _SILENT_S:
            self._warned_at = monotonic()
            log.error("no connection can be accepted: %s", error.strerror)
        self._connections.close_idle()
        await asyncio.sleep(_PAUSE_S)

    async def _attach(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, self._run, loop=loop)
        await loop.connect_accepted_socket(lambda: protocol, accepted)

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        loop = asyncio.get_running_loop()
        connection = Connection(self._app, loop, self._settings, self._context, {}, reader, writer)
        connection.join(self._connections)
        try:
            await connection.run()
        finally:
            self._connections.remove(connection)
