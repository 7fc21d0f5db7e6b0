"""Arrival: an accepted connection until the head of its first request is whole: a socket and some bytes.

A client that is silent, or sends a head byte by byte, costs no more. The head of a malformed request may be
whole earlier than it seems, or never; Hypercorn refuses it. Of TLS the ClientHello has to be whole.
"""

import asyncio
import selectors
import socket
from collections.abc import Callable

_MAX_HEAD_BYTES = 16 * 1024
"""Of a head that is waited for; Hypercorn refuses a longer one."""
_HANDSHAKE = 22
"""The type of a TLS record that a client begins with; OpenSSL refuses another one."""
_RECORD_HEAD_BYTES = 5
_READ_AT_ONCE = 64
"""Arrivals that are read in one turn of the event loop: about as long as one request takes of it."""


class Arrivals:
    """Watches arrivals on a selector of their own, where a socket costs a third of what it does in asyncio's.

    However many send at the same time, a turn of the event loop reads some of them only.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, accepted: socket.socket, read: Callable[[], object]) -> None:
        """Has `read` called whenever the socket can be read."""
        self._selector.register(accepted, selectors.EVENT_READ, read)

    def forget(self, accepted: socket.socket) -> None:
        """Ends that, before the socket is closed."""
        self._selector.unregister(accepted)

    async def read(self) -> None:
        """Reads arrivals until it is cancelled; none is watched from then on."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._selector.fileno(), ready.set)
        try:
            while True:
                await ready.wait()
                ready.clear()
                for number, (key, _) in enumerate(self._selector.select(0), 1):
                    key.data()  # reads a closed socket where it was closed meanwhile
                    if number % _READ_AT_ONCE == 0:
                        await asyncio.sleep(0)
        finally:
            loop.remove_reader(self._selector.fileno())
            self._selector.close()


class Arrival:
    """Reads a socket without blocking until there is a head; looks at one of TLS until there is a record."""

    __slots__ = ("_arrivals", "_flags", "_is_watched", "_on_lost", "_on_whole", "_seen", "head", "socket")

    def __init__(
        self,
        accepted: socket.socket,
        arrivals: Arrivals,
        *,
        is_encrypted: bool,
        on_whole: Callable[["Arrival"], object],
        on_lost: Callable[["Arrival"], object],
    ) -> None:
        """`on_whole` is called when there is a head, `on_lost` when the client has closed before."""
        self.socket = accepted
        self.head = bytearray()
        """What was read; nothing of a TLS connection."""
        self._arrivals = arrivals
        self._flags = socket.MSG_PEEK if is_encrypted else 0
        self._seen = 0
        """Bytes of the TLS record that had come at the last look."""
        self._on_whole, self._on_lost = on_whole, on_lost
        self._is_watched = False

    def read(self) -> None:
        """Reads what has come; again whenever more comes."""
        try:
            data = self.socket.recv(_MAX_HEAD_BYTES, self._flags)
        except (BlockingIOError, InterruptedError):
            data = None
        except OSError:
            data = b""
        if data == b"" or (data and len(data) == self._seen):  # it can be read, but no more has come
            self.close()
            self._on_lost(self)
        elif data is not None and self._is_whole(data):
            self._stop_reading()
            self._on_whole(self)
        elif not self._is_watched:
            self._is_watched = True
            self._arrivals.watch(self.socket, self.read)

    def _is_whole(self, data: bytes) -> bool:
        if self._flags:
            return self._is_whole_record(data)
        self.head += data
        last = self.head[-len(data) - 3 :]
        is_no_request = not self.head[:1].isalpha() or len(self.head) > _MAX_HEAD_BYTES
        return is_no_request or b"\n\r\n" in last or b"\n\n" in last

    def _is_whole_record(self, seen: bytes) -> bool:
        needed = _RECORD_HEAD_BYTES
        if len(seen) >= needed:
            needed += int.from_bytes(seen[3:needed])
        is_whole = seen[0] != _HANDSHAKE or len(seen) >= min(needed, _MAX_HEAD_BYTES)
        self._seen = 0 if is_whole else len(seen)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 if is_whole else needed)
        return is_whole

    def target_and_key(self) -> tuple[bytes, bytes]:
        """The request's target and its Authorization header; empty where there is none."""
        first, *lines = bytes(self.head).split(b"\n")
        headers = (line.partition(b":") for line in lines)
        keys = (value.strip() for name, _, value in headers if name.lower() == b"authorization")
        return first.partition(b" ")[2].partition(b" ")[0], next(keys, b"")

    def _stop_reading(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._arrivals.forget(self.socket)

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._stop_reading()
        self.socket.close()
