"""WebSocket messages within limits: no compression, and bytes counted for their tenant as they arrive."""

from typing import Any

from hypercorn.protocol import ws_stream
from hypercorn.protocol.events import Request
from wsproto.events import Message

from server.errors import Overloaded, TooManyRequests
from server.limits import SharedLimit

MESSAGE_BUFFER = "message_buffer"
"""The key of a WebSocket's buffer in its ASGI scope's state."""


class Handshake(ws_stream.Handshake):
    """A WebSocket handshake that offers no extensions: a compressed message can decompress to a
    thousand times its length.
    """

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
    """A WebSocket's incoming message. Stops growing at the size limit or at its tenant's limit of bytes;
    Hypercorn's buffer keeps everything that a client sends after the limit.

    The reader of a message releases its reserved bytes.
    """

    received: ReceivedBytes | None = None

    def extend(self, event: Message[Any]) -> None:
        if self.length > self.max_length:
            raise ws_stream.FrameTooLargeError
        if self.received is not None:
            try:
                self.received.reserve(message_size(event.data))
            except (TooManyRequests, Overloaded) as error:
                self.length = self.max_length + 1
                raise ws_stream.FrameTooLargeError from error
        super().extend(event)


class WebSocketStream(ws_stream.WSStream):
    """A WebSocket whose message buffer is in its ASGI scope's state, for the application."""

    async def handle(self, event: object) -> None:
        if isinstance(event, Request):
            event.state[MESSAGE_BUFFER] = self.buffer
        await super().handle(event)  # type: ignore[arg-type]


def message_size(data: str | bytes | bytearray) -> int:
    """The bytes of a message on the wire."""
    return len(data.encode()) if isinstance(data, str) and not data.isascii() else len(data)
