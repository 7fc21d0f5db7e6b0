"""Replacements of Hypercorn's classes: a strict HTTP/1.1 parser, WebSocket messages within byte limits."""

import json
from contextlib import suppress
from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer
from hypercorn import protocol
from hypercorn.events import Closed, Event
from hypercorn.protocol import h11 as h11_protocol
from hypercorn.protocol import ws_stream
from hypercorn.protocol.events import Request, StreamClosed
from hypercorn.protocol.h11 import H11Protocol
from wsproto.events import Message
from wsproto.frame_protocol import CloseReason

from server.errors import Overloaded, TooManyRequests
from server.http.asgi.body_writer import BODY_WRITER, BodyWriter
from server.http.asgi.client_connections import CLIENT
from server.limits.shared_limit import SharedLimit

TRANSPORT = "transport"
"""The key of a connection's transport in its state."""
MESSAGE_BUFFER = "message_buffer"
"""The key of a WebSocket's buffer in its ASGI scope's state."""


_OF_HANDSHAKES = (b"connection", b"sec-websocket-")
"""How the names of headers begin that Hypercorn decodes as ASCII, or fails."""


class _Refused(Exception):
    """The request was refused and answered; the connection is closed."""


class StrictBuffer(ReceiveBuffer):
    """A request's head, whose lines must end in CR LF; proxies may parse what h11 accepts differently."""

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
    """HTTP/1.1 only; requests that a proxy might parse differently are refused (request smuggling).

    Examples are a Content-Length beside a Transfer-Encoding, or two Authorization headers. `Upgrade: h2c` is
    ignored, as RFC 9110 allows.
    """

    async def initiate(self) -> None:
        await super().initiate()
        self.connection._receive_buffer = StrictBuffer()  # type: ignore[union-attr]

    async def handle(self, event: Event) -> None:
        with suppress(_Refused):
            await super().handle(event)

    async def _create_stream(self, request: h11.Request) -> None:
        assert isinstance(self.connection, h11.Connection)
        authorization = next((value for name, value in request.headers if name == b"authorization"), b"")
        await self.connection_state[CLIENT].wait_for_turn(request.target, authorization)
        transport = self.connection_state[TRANSPORT]
        self.connection_state[BODY_WRITER] = BodyWriter(self.connection, transport)
        await super()._create_stream(request)

    async def _check_protocol(self, event: h11.Request) -> None:
        if event.http_version not in (b"1.0", b"1.1"):
            await self._refuse(505, "This server speaks HTTP/1.1 only.")
        names = [name for name, _ in event.headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            await self._refuse(400, "A request has either a Content-Length or a Transfer-Encoding, not both.")
        if names.count(b"authorization") > 1:
            await self._refuse(400, "A request has one Authorization header.")
        if not all(value.isascii() for name, value in event.headers if name.startswith(_OF_HANDSHAKES)):
            await self._refuse(400, "The headers of a WebSocket's handshake are ASCII.")

    async def _send_error_response(self, status_code: int) -> None:
        await self._send_error(status_code, "The request is not valid HTTP/1.1.")

    async def _refuse(self, status: int, message: str) -> None:
        """Answers, closes the connection and raises _Refused."""
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
    """A handshake that offers no extensions: a message can decompress to a thousand times its length."""

    def __init__(self, headers: list[tuple[bytes, bytes]], http_version: str) -> None:
        super().__init__(headers, http_version)
        self.extensions = None


class ReceivedBytes:
    """The bytes of one WebSocket's messages that count for its tenant: arriving, queued or in progress."""

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
        """Releases the remaining bytes; their messages are dropped."""
        self.release(self._reserved)


class MessageBuffer(ws_stream.WebsocketBuffer):
    """A WebSocket's incoming message, whose reader releases its bytes. It stops growing at the size limit or
    at its tenant's; Hypercorn's keeps all that a client sends.
    """

    received: ReceivedBytes | None = None

    def extend(self, event: Message[Any]) -> None:
        if self.length > self.max_length:
            raise ws_stream.FrameTooLargeError
        if self.received is not None:
            try:
                data = event.data
                self.received.reserve(len(data.encode() if isinstance(data, str) else data))
            except (TooManyRequests, Overloaded) as error:
                self.length = self.max_length + 1
                raise ws_stream.FrameTooLargeError from error
        super().extend(event)


class WebSocketStream(ws_stream.WSStream):
    """A WebSocket whose message buffer is in its ASGI scope's state.

    One that is refused here is closed, and the application hears of it: Hypercorn 0.18 leaves both waiting.
    """

    async def handle(self, event: object) -> None:
        if isinstance(event, Request):
            event.state[MESSAGE_BUFFER] = self.buffer
        was_closed = self.closed
        await super().handle(event)  # type: ignore[arg-type]
        if self.closed and not was_closed and not isinstance(event, StreamClosed):
            if self.app_put is not None:
                await self.app_put({"type": "websocket.disconnect", "code": CloseReason.PROTOCOL_ERROR.value})
            await self.send(StreamClosed(stream_id=self.stream_id))


def install_patches() -> None:
    """Makes Hypercorn use the replacements for every connection from now on."""
    protocol.H11Protocol = Http1  # type: ignore[attr-defined]
    ws_stream.Handshake = Handshake  # type: ignore[misc]
    ws_stream.WebsocketBuffer = MessageBuffer  # type: ignore[misc]
    h11_protocol.WSStream = WebSocketStream  # type: ignore[attr-defined]
