"""Hypercorn's connection, made to let go of clients that have closed it or will never read on.

Hypercorn 0.18 waits for its keep-alive timer before it closes what its client has closed, so that every
client leaves a file descriptor behind for a minute: some hundreds of them and the server can open no more.
And it takes the kernel's word that a client does not read for a mistake of ours, with a traceback each.
"""

from contextlib import suppress

from hypercorn.asyncio import run
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, Event

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


def install() -> None:
    """Has Hypercorn use it for every connection that comes from now on."""
    run.TCPServer = Connection  # type: ignore[attr-defined]
