"""ClientConnections: open connections, which of them is closed for a new one, whose request is next; Arrival.

A connection on which no valid key has come holds its place only until somebody else needs it: the oldest is
closed first, whatever it does. One with a key is closed only between two requests, and only where hardly any
without a key are left. A request without a key waits for its turn, the newest first, and so does each part
of its body. Health waits for none, nor do a key that was valid when it was last used and the request that
follows one with a key.
"""

import asyncio
import selectors
import socket
from collections.abc import Callable, MutableMapping
from typing import Any

_READ_BYTES = 4 * 1024
"""Bytes of a connection that are read at a time until its first head is whole."""
_MAX_HEAD_BYTES = 16 * 1024
"""Bytes of a head that is waited for; Hypercorn refuses a longer one."""
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
    """An accepted connection until the head of its first request is whole: a socket and some bytes.

    The head of a malformed request may be whole earlier, or never; Hypercorn refuses it. Of TLS the
    ClientHello has to be whole: it is looked at, and left to be read.
    """

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
        """Bytes that were read; empty for a TLS connection."""
        self._arrivals = arrivals
        self._flags = socket.MSG_PEEK if is_encrypted else 0
        self._seen = 0
        """Bytes of the TLS record that had come at the last look."""
        self._on_whole, self._on_lost = on_whole, on_lost
        self._is_watched = False

    def read(self) -> None:
        """Reads what has come; again whenever more comes."""
        try:
            data = self.socket.recv(_MAX_HEAD_BYTES if self._flags else _READ_BYTES, self._flags)
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
        """The first request's target and its Authorization header; empty where there is none.

        Only searches: a pipeline of 400 requests, or a head of as many lines, took ten times an acceptance.
        """
        head = bytes(self.head[: self.head.find(b"\n\r\n")])
        named = head.lower().find(b"\nauthorization:")
        key = head[named:].partition(b":")[2].partition(b"\n")[0].strip() if named >= 0 else b""
        return head.partition(b" ")[2].partition(b" ")[0], key

    def _stop_reading(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._arrivals.forget(self.socket)

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._stop_reading()
        self.socket.close()


GoesFirst = Callable[[bytes, bytes], bool]
"""Whether a request with this target and Authorization header waits for no turn."""
_HEALTH = frozenset({b"/health/live", b"/health/ready", b"/health", b"/ping"})
_TURN_S = 0.002
"""Least pause between two requests without a key, or parts of their bodies: twice what a request takes."""
_TURNS = 10
"""Least pause in turns of the event loop, of which a request takes some twenty: a busy loop begins fewer."""

CLIENT = "client_connection"
"""The key of a request's ClientConnection in its ASGI scope's state."""


def is_health(target: bytes, _authorization: bytes = b"") -> bool:
    return target in _HEALTH


class ClientConnection:
    """One connection, from when it is accepted on: while it shakes hands, between requests and in one."""

    __slots__ = (
        *("_connections", "abort", "close", "had_request", "has_begun"),
        *("has_key", "has_turn", "is_idle", "on_authenticated"),
    )

    def __init__(self, connections: "ClientConnections", abort: Callable[[], object]) -> None:
        self.abort = abort
        """Closes it at once."""
        self.close = abort
        """Closes it when all that was written has been sent."""
        self.on_authenticated: Callable[[], object] = lambda: None
        """Called when a valid key has come."""
        self.is_idle = True
        """It is between two requests, or before the first."""
        self.has_begun = False
        """Its first request has had its turn, or has come."""
        self.had_request = False
        self.has_key = False
        self.has_turn = False
        """Its next request waits for none."""
        self._connections = connections

    def set_idle(self, idle: bool) -> None:
        """Says whether a request is in progress. Each has to show its key: a proxy's connection has many."""
        if not idle:
            self.has_turn, self.has_key = self.has_turn or self.has_key, False
        self.is_idle = idle
        self.had_request = self.has_begun = True
        self._connections.sort_in(self)

    def begin(self, has_turn: bool) -> None:
        """Says that its service begins; with `has_turn` its first request has had its turn."""
        self.has_begun = self.has_turn = has_turn
        self._connections.sort_in(self)

    async def wait_for_turn(self, target: bytes, authorization: bytes) -> None:
        """Returns when this request may begin; is cancelled when the connection is closed before."""
        if not self.has_turn and not self._connections.goes_first(target, authorization):
            await self._connections.turn(self)
        self.has_turn = False

    async def wait_to_read(self) -> None:
        """Returns when more of a request's body may be read, of one with a valid key at once; as above."""
        if not (self.is_idle or self.has_key):
            await self._connections.turn(self)

    def set_authenticated(self, valid: bool) -> None:
        """Says that a request here has had a valid key, or that the key is not valid any more."""
        if valid is not self.has_key:
            self.has_key = valid
            self._connections.sort_in(self)
            if valid:
                self._connections.end_turn(self)
                self.on_authenticated()


def set_authenticated(scope: MutableMapping[str, Any], valid: bool = True) -> None:
    """Says so of the connection of this ASGI scope."""
    client: ClientConnection | None = scope.get("state", {}).get(CLIENT)
    if client is not None:
        client.set_authenticated(valid)


class ClientConnections:
    """The open connections, `most` at a time. Use it on the event loop only."""

    def __init__(self, most: int, reserved: int, goes_first: GoesFirst) -> None:
        """`reserved` connections without a key are closed only where nothing else can be closed."""
        self.goes_first = goes_first
        self._waiting: dict[ClientConnection, asyncio.Future[None]] = {}
        """Requests that wait for their turn, the newest last."""
        self._turns: asyncio.Task[None] | None = None
        self._most = most
        self._reserved = reserved
        self._open: dict[ClientConnection, None] = {}
        self._arriving: dict[ClientConnection, None] = {}
        """Connections without a key whose first request has not begun, oldest first."""
        self._served: dict[ClientConnection, None] = {}
        """Connections without a key whose first request has begun, in the order of those beginnings."""
        self._idle: dict[ClientConnection, None] = {}
        """Connections with a key that are between two requests, the longest idle first."""
        self._keeps_idle = True

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self._most

    @property
    def busy(self) -> bool:
        """Whether a request with a key is in progress. Any thread."""
        return len(self._open) > len(self._arriving) + len(self._served) + len(self._idle)

    def add(self, abort: Callable[[], object]) -> ClientConnection:
        """Adds a connection that was accepted, which `abort` closes."""
        client = ClientConnection(self, abort)
        self._open[client] = self._arriving[client] = None
        return client

    def remove(self, client: ClientConnection) -> None:
        """Removes a connection that has ended. Idempotent."""
        for connections in (self._open, self._arriving, self._served, self._idle):
            connections.pop(client, None)
        if (turn := self._waiting.pop(client, None)) is not None:
            turn.cancel()

    def end_turn(self, client: ClientConnection) -> None:
        if (turn := self._waiting.pop(client, None)) is not None and not turn.done():
            turn.set_result(None)

    def turn(self, client: ClientConnection) -> "asyncio.Future[None]":
        """Done when the next request on this connection may begin; cancelled when the connection closes."""
        turn = self._waiting[client] = asyncio.get_running_loop().create_future()
        if self._turns is None or self._turns.done():
            self._turns = asyncio.ensure_future(self._take_turns())
        return turn

    async def _take_turns(self) -> None:
        while self._waiting:
            _, turn = self._waiting.popitem()
            if not turn.done():
                turn.set_result(None)
                await asyncio.sleep(_TURN_S)
                for _ in range(_TURNS):
                    await asyncio.sleep(0)

    def sort_in(self, client: ClientConnection) -> None:
        """Puts an open connection where it belongs, now that its state has changed."""
        if client not in self._open:
            return
        if client.is_idle and client.had_request and not self._keeps_idle:
            client.close()
        if client.has_begun:
            self._arriving.pop(client, None)
        if client.has_key:
            self._served.pop(client, None)
        elif client.has_begun and client not in self._served:
            self._served[client] = None
        self._idle.pop(client, None)
        if client.has_key and client.is_idle:
            self._idle[client] = None

    def close_one(self) -> bool:
        """Closes a connection for a new one; False where each is in a request with a key.

        The larger group without a key, arrivals or served ones, gives up its oldest, so that neither drives
        out the other.
        """
        strangers = max(self._served, self._arriving, key=len)
        closes_idle = len(self._arriving) + len(self._served) <= self._reserved and bool(self._idle)
        client = next(iter(self._idle if closes_idle else strangers), None)
        if client is None:
            return False
        self.remove(client)
        client.abort()
        return True

    def close_before_requests(self) -> None:
        for client in [client for client in self._open if not client.had_request]:
            self.remove(client)
            client.abort()

    def close_between_requests(self) -> None:
        """Close connections from now on after their requests; the first one of others may be on its way."""
        self._keeps_idle = False
        for client in list(self._open):
            self.sort_in(client)
