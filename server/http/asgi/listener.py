"""Listener: accepts client connections up to a limit, beyond which one is closed for each new one.

Hypercorn serves them. asyncio's server has no limit, and without file descriptors logs every retry.
"""

import asyncio
import errno
import logging
import resource
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from server.configuration.settings import Config
from server.http.asgi.client_connections import (
    CLIENT,
    Arrival,
    Arrivals,
    ClientConnection,
    ClientConnections,
    GoesFirst,
    is_health,
)
from server.http.asgi.hypercorn_patches import TRANSPORT
from server.http.asgi.tls import HANDSHAKE_SECONDS, ServerCertificate

log = logging.getLogger("holdfast.listener")

DEFAULT_CONNECTIONS = 4096
SPARE = 32
"""Connections beyond the limit, which those with a key leave to health checks and to who comes next."""
SEND_BUFFER_BYTES = 128 * 1024
"""SO_SNDBUF of a client's socket, which Linux doubles: at 100 ms round trip enough for 2.5 MB/s."""
_FIRST_SEND_BUFFER_BYTES = 16 * 1024
"""SO_SNDBUF until a valid key has come: with SEND_BUFFER_BYTES, 4,096 clients that do not read take 1 GB."""
_ACCEPTED_AT_ONCE = 64
"""Connections that are accepted in one turn of the event loop, of which an answer takes some twenty: a new
one waits behind all that came before it. At 25 us each they take as long as one request does."""
_PART_AT_ONCE = 16
"""At most a 16th of the limit: a request that waits for its turn is not driven out before that comes."""
_RESERVED_FILES = 96
"""File descriptors for everything except connections."""
MAX_FILES = 65536
"""The soft limit is not raised further: some child processes close or scan every possible descriptor."""
_PAUSE_S = 1.0
"""Pause before the next accept once file descriptors have run out."""
_LOG_INTERVAL_S = 60.0
"""Least time between two log lines about it."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def raise_file_limit() -> int:
    """Raises the soft limit of open files as far as is useful; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return MAX_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def connection_limit(requested: int | None, files: int, database: int) -> int:
    """The most client connections, given the limit of open files and the database connections; at least 8."""
    room = files - _RESERVED_FILES - database - SPARE - metrics_connection_limit(requested, files) - SPARE
    return max(8, min(requested or DEFAULT_CONNECTIONS, room))


def metrics_connection_limit(requested: int | None, files: int) -> int:
    """The most connections of the metrics port: as many as of clients, at most a quarter of the files."""
    return max(32, min(requested or DEFAULT_CONNECTIONS, files // 4))


def hypercorn_settings(config: Config) -> HypercornConfig:
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
    def __init__(
        self,
        app: ASGIApp,
        settings: HypercornConfig,
        max_connections: int,
        certificate: ServerCertificate | None = None,
        *,
        send_seconds: float = 30.0,
        goes_first: GoesFirst = is_health,
    ) -> None:
        """With a certificate every connection is TLS. A client has `send_seconds` to take `_BLOCK_BYTES`."""
        self._certificate = certificate
        self._app = wrap_app(app, settings.wsgi_max_body_size, "asgi")  # type: ignore[arg-type]
        self._settings = settings
        self._send_seconds = send_seconds
        self._connections = ClientConnections(max_connections + SPARE, SPARE, goes_first)
        self._accepted_at_once = min(_ACCEPTED_AT_ONCE, (max_connections + SPARE) // _PART_AT_ONCE)
        self._arrivals = Arrivals()
        self._context = WorkerContext(None)
        self._attaching: set[asyncio.Task[None]] = set()
        """Connections between their arrival and their service, most of them in the TLS handshake."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        """Set when a connection closes or its request ends."""
        self._warned_at = -_LOG_INTERVAL_S

    async def serve(self, listener: socket.socket, ended: Callable[[], Awaitable[object]]) -> None:
        """Accepts until `ended` returns; requests in progress then have `graceful_timeout` to finish."""
        self._bound_unsent(listener)
        accepting = asyncio.ensure_future(self._accept_all(listener))
        reading = asyncio.ensure_future(self._arrivals.read())
        ending = asyncio.ensure_future(ended())
        try:
            await asyncio.wait({accepting, reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            for task in (accepting, reading):
                if task.done():
                    task.result()
        finally:
            accepting.cancel()
            ending.cancel()
            listener.close()
            await self._context.terminated.set()
            self._connections.close_before_requests()
            reading.cancel()
            await self._finish()

    @property
    def busy(self) -> bool:
        """Whether a request with a key is in progress. Any thread."""
        return self._connections.busy

    def close_after_answers(self) -> None:
        """Put `Connection: close` into every answer from now on; nothing is closed before it was answered."""
        self._settings.keep_alive_max_requests = 0

    def close_idle(self) -> None:
        """Close connections between two requests from now on: the next one would be refused."""
        self._connections.close_between_requests()

    def _bound_unsent(self, listener: socket.socket) -> None:
        """Bounds unsent bytes of a client that does not read, and their time; connections inherit both."""
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _FIRST_SEND_BUFFER_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = min(int(self._send_seconds * 1000), 2**31 - 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    async def _finish(self) -> None:
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=self._settings.graceful_timeout)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _accept_all(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        count = 0
        while True:
            while self._connections.is_full and not self._connections.close_one():
                self._changed.clear()
                await self._changed.wait()
            try:
                accepted, _ = await loop.sock_accept(listener)  # which yields only where there is none
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    await self._recover(error)
                continue  # otherwise the client has disconnected already
            self._receive(accepted)
            count += 1
            if count % self._accepted_at_once == 0:
                await asyncio.sleep(0)

    async def _recover(self, error: OSError) -> None:
        if monotonic() - self._warned_at >= _LOG_INTERVAL_S:
            self._warned_at = monotonic()
            log.error("no connection can be accepted: %s", error.strerror)
        self._connections.close_one()
        await asyncio.sleep(_PAUSE_S)

    def _receive(self, accepted: socket.socket) -> None:
        """Has a connection's first request read; it is served when that has come and has its turn."""
        client = self._connections.add(accepted.close)
        is_encrypted = self._certificate is not None

        def begin(turn: "asyncio.Future[None] | None" = None) -> None:
            if turn is None or not turn.cancelled():
                client.begin(has_turn=not is_encrypted)
                task = asyncio.ensure_future(self._attach(arrival, client))
                self._attaching.add(task)
                task.add_done_callback(self._attaching.discard)

        def arrive(arrival: Arrival) -> None:
            if not is_encrypted and self._connections.goes_first(*arrival.target_and_key()):
                begin()
            else:
                self._connections.turn(client).add_done_callback(begin)

        arrival = Arrival(
            accepted,
            self._arrivals,
            is_encrypted=is_encrypted,
            on_whole=arrive,
            on_lost=lambda _: self._remove(client),
        )
        client.abort = client.close = arrival.close
        arrival.read()

    async def _attach(self, arrival: Arrival, client: ClientConnection) -> None:
        """Begins to serve a connection, after its TLS handshake. Closes one that is lost before."""
        loop, accepted = asyncio.get_running_loop(), arrival.socket
        task = asyncio.current_task()
        if task is None or accepted.fileno() < 0:  # it was closed for another one already
            return
        client.abort = task.cancel
        reader = asyncio.StreamReader(loop=loop)
        reader.feed_data(arrival.head)
        protocol = asyncio.StreamReaderProtocol(reader, partial(self._begin, client), loop=loop)
        try:
            # asyncio sets it only on sockets that were made with IPPROTO_TCP. Without it a small write waits
            # until the client has acknowledged the one before, for up to 40 ms.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            certificate = self._certificate
            await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=None if certificate is None else certificate.context(),
                ssl_handshake_timeout=None if certificate is None else HANDSHAKE_SECONDS,
            )
        except (OSError, asyncio.CancelledError):  # ssl.SSLError and a time-out are OSErrors
            accepted.close()
            self._remove(client)

    def _remove(self, client: ClientConnection) -> None:
        self._connections.remove(client)
        self._changed.set()

    def _begin(
        self, client: ClientConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Begins a task of its own: of asyncio's tasks, 3.11 logs each that is cancelled."""
        task = asyncio.ensure_future(self._run(client, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self, client: ClientConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        client.abort, client.close = partial(reset, writer.transport), writer.close
        client.on_authenticated = partial(_enlarge_send_buffer, writer.get_extra_info("socket"))
        loop = asyncio.get_running_loop()
        state = {TRANSPORT: writer.transport, CLIENT: client}
        connection = Connection(self._app, loop, self._settings, self._context, state, reader, writer)
        connection.client, connection.send_seconds = client, self._send_seconds
        connection.on_idle = self._changed.set
        try:
            await connection.run()
        finally:
            self._remove(client)


def reset(transport: asyncio.WriteTransport) -> None:
    """Closes a connection with TCP's RST: what was not sent is dropped at once, by the kernel, too."""
    with suppress(OSError):
        linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    transport.abort()


def _enlarge_send_buffer(connected: socket.socket) -> None:
    with suppress(OSError):  # it has been closed
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


WRITE_BUFFER_BYTES = 16 * 1024
"""Bytes of an answer that are buffered beyond the kernel's own buffer before `send` waits."""
_BLOCK_BYTES = 32 * 1024
"""Bytes of an answer for which a client has the send time: at 30 s, one that takes 1 kB/s is waited for."""
_RECEIVED_BYTES = 64 * 1024
"""Bytes that Hypercorn's parser gets at a time."""


class Connection(TCPServer):
    """One client's connection. Differs from Hypercorn's in five ways:

    - Parts of a body without a key take turns: 4,096 clients that send a byte a second each take little.
    - It is closed as soon as the client closes it. Hypercorn 0.18 waits for its keep-alive timer, a minute in
      which each client costs a file descriptor.
    - It is closed when the client does not take a block of an answer within the send time.
    - A timeout of the kernel while writing counts as a disconnect and is not logged as an error.
    - It reports when it is idle.
    """

    client: ClientConnection
    send_seconds: float
    on_idle: Callable[[], object]

    async def run(self) -> None:
        self.writer.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES, WRITE_BUFFER_BYTES)
        await super().run()

    async def _read_data(self) -> None:
        with suppress(OSError):  # ssl.SSLError is one
            while not self.reader.at_eof():
                data = await self.reader.read(_RECEIVED_BYTES)
                await self.client.wait_to_read()
                await self.protocol.handle(RawData(data))
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            async with self.send_lock:
                await self._send(event.data)
            return
        if isinstance(event, Updated):
            self.client.set_idle(event.idle)
            self.on_idle()
        await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        try:
            for start in range(0, len(data), _BLOCK_BYTES):
                if self.writer.is_closing():
                    raise ConnectionResetError  # asyncio would drop the block, and log the fifth
                self.writer.write(data[start : start + _BLOCK_BYTES])
                await self._drain()
        except (OSError, RuntimeError) as error:
            if isinstance(error, TimeoutError):
                reset(self.writer.transport)
            await self.protocol.handle(Closed())

    async def _drain(self) -> None:
        if self.writer.transport.get_write_buffer_size() <= WRITE_BUFFER_BYTES:
            await self.writer.drain()  # at once: it raises what has gone wrong
            return
        async with asyncio.timeout(self.send_seconds):
            await self.writer.drain()

    async def _close(self) -> None:
        with suppress(TimeoutError):
            await super()._close()
