"""Hypercorn's connection, made to let go of clients that have closed it or will never read on.

Hypercorn 0.18 waits for its keep-alive timer before it closes what its client has closed, so that every
client leaves a file descriptor behind for a minute: some hundreds of them and the server can open no more.
And it takes the kernel's word that a client does not read for a mistake of ours, with a traceback each.
Of a WebSocket's message it keeps all that a client goes on to send after the limit, and it offers
compression, by which a short message can be a thousand times as long.
"""

from contextlib import suppress
from typing import Any

from hypercorn.asyncio import run
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, Event
from hypercorn.protocol import ws_stream
from wsproto.events import Message

UNSENT_BYTES = 16 * 1024
"""What is kept of a client's answer beyond what the kernel takes, before whoever writes it has to wait."""


class Connection(TCPServer):
    """One client's, from accept to close."""

    async def run(self) -> None:
        self.writer.transport.set_write_buffer_limits(UNSENT_BYTES)
        await super().run()

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        try:
            await super().protocol_send(event)
        except TimeoutError:
            await self.protocol.handle(Closed())

    async def _close(self) -> None:
        with suppress(TimeoutError):
            await super()._close()


class Handshake(ws_stream.Handshake):
    """A WebSocket's, without extensions."""

    def __init__(self, headers: list[tuple[bytes, bytes]], http_version: str) -> None:
        super().__init__(headers, http_version)
        self.extensions = None


class MessageBuffer(ws_stream.WebsocketBuffer):
    """A WebSocket's message as it comes, which grows no more once it is too long."""

    def extend(self, event: Message[Any]) -> None:
        if self.length > self.max_length:
            raise ws_stream.FrameTooLargeError
        super().extend(event)


def install() -> None:
    """Has Hypercorn use them for every connection that comes from now on."""
    run.TCPServer = Connection  # type: ignore[attr-defined]
    ws_stream.Handshake = Handshake  # type: ignore[misc]
    ws_stream.WebsocketBuffer = MessageBuffer  # type: ignore[misc]
