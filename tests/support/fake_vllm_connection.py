"""`Connection`: one client of the fake vLLM server; HTTP/1.1 that may be cut, reset or flooded."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.fake_vllm_engine import FakeEngine, Stream

REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    413: "Request Entity Too Large", 429: "Too Many Requests", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, one request at a time."""

    def __init__(
        self,
        engine: "FakeEngine",
        handle: Callable[["Connection", str, str, bytes], None],
        *,
        is_data: bool = True,
    ) -> None:
        """`is_data`: it can be cut, and counts as one of the engine's."""
        self._is_data = is_data
        self.engine = engine
        self.is_full = False
        self.is_stranded = False
        self.stream: Stream | None = None
        self.key: str | None = None
        self._handle = handle
        self._received = bytearray()
        self._flood: bytes | None = None
        self._is_busy = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._is_data:
            self.engine.connections.add(self)
            if self.engine.cut:
                self.strand()

    def connection_lost(self, _error: Exception | None) -> None:
        self.engine.connections.discard(self)
        self._flood = None
        if self.stream is not None:
            self.engine.end(self.stream, "disconnected")

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._continue_flood()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._take()

    def _take(self) -> None:
        while not self._is_busy and (end := self._received.find(b"\r\n\r\n")) >= 0:
            lines = self._received[:end].decode("latin-1").split("\r\n")
            fields = (line.partition(":") for line in lines[1:])
            headers = {name.lower(): value.strip() for name, _, value in fields}
            size = int(headers.get("content-length", 0))
            if len(self._received) < end + 4 + size:
                return
            body = bytes(self._received[end + 4 : end + 4 + size])
            del self._received[: end + 4 + size]
            self.key = headers.get("authorization")
            method, path, _ = lines[0].split(" ", 2)
            self._is_busy = True
            self._handle(self, method, path.partition("?")[0], body)

    def write(self, data: bytes) -> None:
        if data and not self.is_stranded and not self._transport.is_closing():
            self._transport.write(data)

    def write_event(self, events: bytes) -> None:
        self.write(chunk(events))

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        head = f"HTTP/1.1 {status} {REASONS.get(status, 'Other')}\r\nserver: uvicorn\r\n"
        head += f"content-length: {len(body)}\r\n"
        head += f"content-type: {kind}\r\n\r\n" if body else "\r\n"
        self.write(head.encode() + body)
        self._end()

    def end_stream(self) -> None:
        self.write(b"0\r\n\r\n")
        self._end()

    def _end(self) -> None:
        self.stream = None
        self._is_busy = False
        if self._received:
            asyncio.get_running_loop().call_soon(self._take)

    def close(self, *, reset: bool = False) -> None:
        self.stream = None
        if reset:
            raw: socket.socket = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def strand(self) -> None:
        """Nothing is read or written any more, and the other side hears of no end."""
        self.is_stranded = True
        self.is_full = False
        self._transport.pause_reading()

    def flood(self, data: bytes) -> None:
        """Sends `data` again and again, as fast as it is read."""
        self._flood = data
        self._continue_flood()

    def _continue_flood(self) -> None:
        """One write in a turn of the loop, so that others have theirs."""
        if self._flood and not self.is_full and not self.is_stranded and not self._transport.is_closing():
            self.write(self._flood)
            asyncio.get_running_loop().call_soon(self._continue_flood)
