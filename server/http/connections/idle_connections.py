"""Open client connections: which of them are idle, and closing the longest idle one."""

import asyncio
from contextlib import suppress

from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, Event, Updated

WRITE_BUFFER_BYTES = 16 * 1024
"""Bytes of an answer that are buffered beyond the kernel's own buffer before `send` waits."""


class OpenConnections:
    """The open connections, and which of them are idle: between two requests, or before the first."""

    def __init__(self) -> None:
        self.open = 0
        self._idle: dict[Connection, None] = {}
        """In order: the one that has been idle for longest is first."""
        self._changed = asyncio.Event()

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
            self._connections.set_idle(self, event.idle)
        try:
            await super().protocol_send(event)
        except TimeoutError:
            await self.protocol.handle(Closed())

    async def _close(self) -> None:
        with suppress(TimeoutError):
            await super()._close()
