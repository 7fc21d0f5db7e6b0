"""`BodyWriter`: writes parts of an answer's body to its connection at once, without ASGI's tasks and queues.

For streams of many small parts: through ASGI each costs two timeouts, a lock and a turn of the event loop.
"""

import asyncio

import h11
from starlette.types import Scope

BODY_WRITER = "body_writer"
"""The key of an answer's writer in its ASGI scope's state."""


class BodyWriter:
    """The body of an answer in progress; on the loop, while the application has no `send` in progress."""

    def __init__(self, connection: h11.Connection, transport: asyncio.WriteTransport) -> None:
        self._connection = connection
        self._transport = transport
        self.bytes = 0
        self.events = 0
        """Events written here, beside ASGI's `send`; `bytes` counts the same parts."""

    @property
    def is_ready(self) -> bool:
        """Whether the body has begun and the kernel has taken all of it; else ASGI waits for the client."""
        transport = self._transport
        is_free = not transport.is_closing() and not transport.get_write_buffer_size()
        return is_free and self._connection.our_state is h11.SEND_BODY

    def write(self, part: bytes) -> None:
        """Writes the part, whole events, which must not be empty, in the body's framing."""
        self.bytes += len(part)
        self.events += part.count(b"\n\n")
        if self._connection.their_http_version == b"1.0":
            self._transport.write(part)
        else:  # as `h11.Data` would be sent, at half of a small part's cost
            self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))


def body_writer(scope: Scope) -> BodyWriter | None:
    """The writer of the answer in this scope; None if the server has none, or the request is a HEAD."""
    return None if scope.get("method", "HEAD") == "HEAD" else scope.get("state", {}).get(BODY_WRITER)
