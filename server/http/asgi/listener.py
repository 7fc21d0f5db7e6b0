"""Listener: accepts client connections up to a limit, beyond which the longest idle connection is closed.

Hypercorn serves each connection. They are accepted here because asyncio's server has no limit, and once file
descriptors have run out it retries and logs once for every pending connection.
"""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, Updated
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from server.configuration.settings import Config
from server.http.asgi.hypercorn_patches import TRANSPORT
from server.http.asgi.tls import HANDSHAKE_SECONDS, ServerCertificate

log = logging.getLogger("holdfast.listener")

DEFAULT_CONNECTIONS = 4096
_SPARE = 32
"""Connections beyond the limit, for health checks and for requests that are refused."""
_RESERVED_FILES = 96
"""File descriptors for everything except client and database connections."""
_MAX_FILES = 65536
"""The soft limit is not raised further: some child processes close or scan every possible descriptor."""
_PAUSE_S = 1.0
"""Pause before the next accept once file descriptors have run out."""
_LOG_INTERVAL_S = 60.0
"""Least time between two log lines about it."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def raise_file_limit() -> int:
    """Raises the soft limit of open files as far as is useful; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MAX_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def connection_limit(wanted: int | None, files: int, database: int) -> int:
    """The most client connections, given the limit of open files and the database connections; at least 8."""
    room = files - _RESERVED_FILES - database - _SPARE
    return max(8, min(wanted or DEFAULT_CONNECTIONS, room))


def hypercorn_settings(config: Config) -> HypercornConfig:
    """How Hypercorn serves each connection."""
    settings = HypercornConfig()
    settings.errorlog = logging.getLogger("hypercorn.error")  # keeps our log format
    settings.errorlog.setLevel("WARNING")
    settings.graceful_timeout = 5.0
    settings.keep_alive_timeout = 75.0
    settings.max_app_queue_size = 4  # ASGI messages of a body that are buffered before it is read
    settings.include_server_header = False
    settings.websocket_max_message_size = config.max_body_bytes
    settings.websocket_ping_interval = config.keep_alive_seconds
    return settings


class Listener:
    """Serves an ASGI application on a listening socket."""

    def __init__(
        self,
        app: ASGIApp,
        settings: HypercornConfig,
        max_connections: int,
        certificate: ServerCertificate | None = None,
    ) -> None:
        """With a certificate every connection is TLS."""
        self._certificate = certificate
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """TLS handshakes, oldest first. They are not connections yet, but count as such."""
        self._app = wrap_app(app, settings.wsgi_max_body_size, "asgi")  # type: ignore[arg-type]
        self._settings = settings
        self._max_connections = max_connections
        self._connections = OpenConnections()
        self._context = WorkerContext(None)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._warned_at = -_LOG_INTERVAL_S

    async def serve(self, listener: socket.socket, ended: Callable[[], Awaitable[object]]) -> None:
        """Accepts until `ended` returns; requests in progress then have `graceful_timeout` to finish."""
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
            while self._handshakes:
                self._close_idle()
            await self._finish()

    @property
    def busy(self) -> bool:
        """Whether a request is in progress. Any thread."""
        return self._connections.busy

    def close_after_answers(self) -> None:
        """From now on every answer has `Connection: close`; nothing is closed before it was answered."""
        self._settings.keep_alive_max_requests = 0

    def close_idle(self) -> None:
        """From now on closes connections between two requests: the next one would be refused."""
        self._connections.close_between_requests()

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
                continue  # otherwise the client has disconnected already
            if self._certificate is not None:
                task = asyncio.ensure_future(self._attach(accepted))
                self._handshakes[task] = None
                task.add_done_callback(self._forget_handshake)
            else:
                await self._attach(accepted)

    async def _make_room(self) -> None:
        """Closes the longest idle connection at the limit; waits at the hard limit if none is idle."""
        while self._open() >= self._max_connections + _SPARE:
            if not self._close_idle():
                await self._connections.changed()
            else:
                await asyncio.sleep(0)
        if self._open() >= self._max_connections:
            self._close_idle()

    def _open(self) -> int:
        return self._connections.open + len(self._handshakes)

    def _close_idle(self) -> bool:
        """Closes an idle connection, or the oldest handshake; False where there is neither."""
        if self._connections.close_idle():
            return True
        if not self._handshakes:
            return False
        task = next(iter(self._handshakes))
        del self._handshakes[task]
        task.cancel()
        return True

    def _forget_handshake(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)

    async def _recover(self, error: OSError) -> None:
        if monotonic() - self._warned_at >= _LOG_INTERVAL_S:
            self._warned_at = monotonic()
            log.error("no connection can be accepted: %s", error.strerror)
        self._close_idle()
        await asyncio.sleep(_PAUSE_S)

    async def _attach(self, accepted: socket.socket) -> None:
        """Begins to serve a connection, after its TLS handshake. Closes one that is lost before."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, self._run, loop=loop)
        try:
            # asyncio sets it only on sockets that were made with IPPROTO_TCP. Without it a small write waits
            # until the client has acknowledged the one before, for up to 40 ms.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._certificate is None:
                await loop.connect_accepted_socket(lambda: protocol, accepted)
            else:
                await loop.connect_accepted_socket(
                    lambda: protocol,
                    accepted,
                    ssl=self._certificate.context(),
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                )
        except OSError:  # ssl.SSLError and a time-out are OSErrors
            accepted.close()

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        loop = asyncio.get_running_loop()
        state = {TRANSPORT: writer.transport}
        connection = Connection(self._app, loop, self._settings, self._context, state, reader, writer)
        connection.track(self._connections)
        try:
            await connection.run()
        finally:
            self._connections.remove(connection)


WRITE_BUFFER_BYTES = 16 * 1024
"""Bytes of an answer that are buffered beyond the kernel's own buffer before `send` waits."""


class OpenConnections:
    """The open connections, and which of them are idle: between two requests, or before the first."""

    def __init__(self) -> None:
        self.open = 0
        self._idle: dict[Connection, None] = {}
        """In order: the one that has been idle for longest is first."""
        self._changed = asyncio.Event()
        self._keeps_idle = True

    @property
    def busy(self) -> bool:
        """Whether any is not idle. Any thread."""
        return self.open > len(self._idle)

    def add(self, connection: "Connection") -> None:
        """Adds a connection, which is idle until its first request."""
        self.open += 1
        self._idle[connection] = None

    def remove(self, connection: "Connection") -> None:
        self.open -= 1
        self._idle.pop(connection, None)
        self._changed.set()

    def set_idle(self, connection: "Connection", idle: bool) -> None:
        self._idle.pop(connection, None)
        if idle and not self._keeps_idle:
            connection.writer.close()  # sends what is left of an answer
        elif idle:
            self._idle[connection] = None
            self._changed.set()

    def close_idle(self) -> bool:
        """Closes the connection that has been idle for longest; False when none is."""
        if not self._idle:
            return False
        connection = next(iter(self._idle))
        del self._idle[connection]
        connection.writer.transport.abort()
        return True

    def close_between_requests(self) -> None:
        """From now on closes connections after their requests; the first one of others may be on its way."""
        self._keeps_idle = False
        for connection in [one for one in self._idle if one.had_request]:
            self.set_idle(connection, True)

    async def changed(self) -> None:
        """Waits until a connection closes or becomes idle."""
        self._changed.clear()
        await self._changed.wait()


class Connection(TCPServer):
    """One client's connection. Differs from Hypercorn's in three ways:

    - It is closed as soon as the client closes it. Hypercorn 0.18 waits for its keep-alive timer, a minute in
      which each client costs a file descriptor.
    - A timeout of the kernel while writing counts as a disconnect and is not logged as an error.
    - It reports to OpenConnections when it is idle.
    """

    _connections: OpenConnections | None = None
    had_request = False

    def track(self, connections: OpenConnections) -> None:
        """Registers with the open connections and reports to them when it is idle."""
        self._connections = connections
        connections.add(self)

    async def run(self) -> None:
        self.writer.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        await super().run()

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated) and self._connections is not None:
            self.had_request = True
            self._connections.set_idle(self, event.idle)
        try:
            await super().protocol_send(event)
        except TimeoutError:
            await self.protocol.handle(Closed())

    async def _close(self) -> None:
        with suppress(TimeoutError):
            await super()._close()
