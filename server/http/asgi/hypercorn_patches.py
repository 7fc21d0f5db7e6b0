"""Hypercorn's connection, made to let go of clients that have closed it or will never read on.

Hypercorn 0.18 waits for its keep-alive timer before it closes what its client has closed, so that every
client leaves a file descriptor behind for a minute: some hundreds of them and the server can open no more.
And it takes the kernel's word that a client does not read for a mistake of ours, with a traceback each.
Of a WebSocket's message it keeps all that a client goes on to send after the limit, and it offers
compression, by which a short message can be a thousand times as long.
"""

import asyncio
import json
from contextlib import suppress
from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer
from hypercorn import protocol
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, Event, Updated
from hypercorn.protocol import h11 as h11_protocol
from hypercorn.protocol import ws_stream
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import H11Protocol
from wsproto.events import Message

from server.errors import Overloaded, TooManyRequests
from server.limits.concurrency import SharedLimit

BUFFER = "message_buffer"
"""The name of a WebSocket's buffer in its scope's state."""
UNSENT_BYTES = 16 * 1024
"""What is kept of a client's answer beyond what the kernel takes, before whoever writes it has to wait."""


class Connections:
    """Those that are open, and which of them are idle: no request of theirs has arrived or is answered."""

    def __init__(self) -> None:
        self.open = 0
        self._idle: dict[Connection, None] = {}
        """The longest idle first."""
        self._changed = asyncio.Event()

    def add(self, connection: "Connection") -> None:
        """It begins idle."""
        self.open += 1
        self._idle[connection] = None

    def remove(self, connection: "Connection") -> None:
        self.open -= 1
        self._idle.pop(connection, None)
        self._changed.set()

    def set_idle(self, connection: "Connection", idle: bool) -> None:
        self._idle.pop(connection, None)
        if idle:
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

    async def changed(self) -> None:
        """Waits until a connection was closed or became idle."""
        self._changed.clear()
        await self._changed.wait()


class Connection(TCPServer):
    """One client's, from accept to close."""

    _connections: Connections | None = None

    def join(self, connections: Connections) -> None:
        """Says there when it is idle."""
        self._connections = connections
        connections.add(self)

    async def run(self) -> None:
        self.writer.transport.set_write_buffer_limits(UNSENT_BYTES)
        await super().run()

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated) and self._connections is not None:
            self._connections.set_idle(self, event.idle)
        try:
            await super().protocol_send(event)
        except TimeoutError:
            await self.protocol.handle(Closed())

    async def _close(self) -> None:
        with suppress(TimeoutError):
            await super()._close()


class _Refused(Exception):
    """The request was answered, and the connection is of no more use."""


class StrictBuffer(ReceiveBuffer):
    """What has come of a request, whose lines must end in CR LF and not be continued on the next line.

    h11 takes a bare LF and folded headers, which proxies may read otherwise.
    """

    def maybe_extract_lines(self) -> list[bytearray] | None:
        before = bytes(self._data)
        lines: list[bytearray] | None = super().maybe_extract_lines()
        if lines:
            head = before[: len(before) - len(self._data)]
            if head.count(b"\n") != head.count(b"\r\n"):
                raise h11.RemoteProtocolError("a line ends in a bare LF")
            if any(line.startswith((b" ", b"\t")) for line in lines):
                raise h11.RemoteProtocolError("a folded header")
        return lines


class Http1(H11Protocol):
    """HTTP/1.1 and nothing else; what proxies might read otherwise than we do is refused.

    A Content-Length beside a Transfer-Encoding, or a key named twice, is how a request is hidden in another
    one's body, or another caller's key is used. An `Upgrade: h2c` is answered in HTTP/1.1, as it may be.
    """

    async def initiate(self) -> None:
        await super().initiate()
        self.connection._receive_buffer = StrictBuffer()  # type: ignore[union-attr]

    async def handle(self, event: Event) -> None:
        with suppress(_Refused):
            await super().handle(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        if event.http_version not in (b"1.0", b"1.1"):
            await self._refuse(505, "This server speaks HTTP/1.1 only.")
        names = [name for name, _ in event.headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            await self._refuse(400, "A request has either a Content-Length or a Transfer-Encoding, not both.")
        if names.count(b"authorization") > 1:
            await self._refuse(400, "A request has one Authorization header.")

    async def _send_error_response(self, status_code: int) -> None:
        """What is no HTTP, as an error object like every other refusal."""
        await self._send_error(status_code, "The request is not valid HTTP/1.1.")

    async def _refuse(self, status: int, message: str) -> None:
        """Raises _Refused."""
        await self._send_error(status, message)
        await self.send(Closed())
        raise _Refused

    async def _send_error(self, status: int, message: str) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": "bad_request"}
        body = json.dumps({"error": error}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=status, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class Handshake(ws_stream.Handshake):
    """A WebSocket's, without extensions."""

    def __init__(self, headers: list[tuple[bytes, bytes]], http_version: str) -> None:
        super().__init__(headers, http_version)
        self.extensions = None


class Inbox:
    """The bytes of one WebSocket's messages: those that arrive, that wait and that are worked on."""

    def __init__(self, limit: SharedLimit, tenant: str) -> None:
        self._limit = limit
        self._tenant = tenant
        self._reserved = 0

    def reserve(self, size: int) -> None:
        """Raises TooManyRequests or Overloaded."""
        self._limit.acquire(self._tenant, size)
        self._reserved += size

    def release(self, size: int) -> None:
        size = min(size, self._reserved)
        self._limit.release(self._tenant, size)
        self._reserved -= size

    def close(self) -> None:
        """Releases what is left: nobody will read it."""
        self.release(self._reserved)


class MessageBuffer(ws_stream.WebsocketBuffer):
    """A WebSocket's message as it comes, which grows no more once it is too long or its tenant has too much.

    What it has reserved is released by whoever reads the message.
    """

    inbox: Inbox | None = None

    def extend(self, event: Message[Any]) -> None:
        if self.length > self.max_length:
            raise ws_stream.FrameTooLargeError
        if self.inbox is not None:
            try:
                self.inbox.reserve(message_size(event.data))
            except (TooManyRequests, Overloaded) as error:
                self.length = self.max_length + 1
                raise ws_stream.FrameTooLargeError from error
        super().extend(event)


class SocketStream(ws_stream.WSStream):
    """A WebSocket's, whose buffer the application finds in its scope."""

    async def handle(self, event: object) -> None:
        if isinstance(event, Request):
            event.state[BUFFER] = self.buffer
        await super().handle(event)  # type: ignore[arg-type]


def message_size(data: str | bytes | bytearray) -> int:
    """Its bytes as they are sent."""
    return len(data.encode()) if isinstance(data, str) and not data.isascii() else len(data)


def install() -> None:
    """Has Hypercorn use them for every connection that comes from now on."""
    protocol.H11Protocol = Http1  # type: ignore[attr-defined]
    ws_stream.Handshake = Handshake  # type: ignore[misc]
    ws_stream.WebsocketBuffer = MessageBuffer  # type: ignore[misc]
    h11_protocol.WSStream = SocketStream  # type: ignore[attr-defined]
