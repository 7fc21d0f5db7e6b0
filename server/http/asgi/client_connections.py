"""ClientConnections: the open connections, which of them is closed for a new one, and whose request is next.

A connection on which no valid key has come holds its place only until somebody else needs it: the oldest is
closed first, whatever it does. One with a key is closed only between two requests, and only where hardly any
without a key are left. A request without a key waits for its turn, the newest first, and so does each part
of its body. Health waits for none, nor do a key that was valid when it was last used and the request that
follows one with a key.
"""

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

GoesFirst = Callable[[bytes, bytes], bool]
"""Whether a request with this target and Authorization header waits for no turn."""
_HEALTH = frozenset({b"/health/live", b"/health/ready", b"/health", b"/ping"})
_TURN_S = 0.002
"""Least pause between two requests without a key, or parts of their bodies: twice what a request takes of the
event loop's time."""
_TURNS = 10
"""The same in turns of the loop, of which a request takes some twenty: a busy loop begins fewer."""

CLIENT = "client_connection"
"""The key of a request's ClientConnection in its ASGI scope's state."""


def is_health(target: bytes, _authorization: bytes = b"") -> bool:
    """Whether a request's target is a health check."""
    return target in _HEALTH


def _nothing() -> None:
    pass


class ClientConnection:
    """One connection, from when it is accepted on: while it shakes hands, between requests and in one."""

    __slots__ = (
        "_connections",
        "abort",
        "close",
        "had_request",
        "has_begun",
        "has_key",
        "has_turn",
        "is_idle",
        "on_authenticated",
    )

    def __init__(self, connections: "ClientConnections", abort: Callable[[], object]) -> None:
        self.abort = abort
        """Closes it at once."""
        self.close = abort
        """Closes it when all that was written has been sent."""
        self.on_authenticated: Callable[[], object] = _nothing
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
        """As many connections without a key as are `reserved` are closed only where nothing else can be."""
        self.goes_first = goes_first
        self._waiting: dict[ClientConnection, asyncio.Future[None]] = {}
        """Requests that wait for their turn, the newest last."""
        self._turns: asyncio.Task[None] | None = None
        self._most = most
        self._reserved = reserved
        self._open: dict[ClientConnection, None] = {}
        self._arriving: dict[ClientConnection, None] = {}
        """Those without a key whose first request has not begun, oldest first."""
        self._served: dict[ClientConnection, None] = {}
        """Those without a key whose first request has begun, in this order."""
        self._idle: dict[ClientConnection, None] = {}
        """Those with a key that are between two requests; the one that has been so for longest is first."""
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
        """Has a connection that waits for its turn go on."""
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

        Of those without a key, arrivals and served ones, the larger group gives up its oldest. So neither of
        them is closed faster because more come of the other.
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
        """Closes connections on which no request has come yet."""
        for client in [one for one in self._open if not one.had_request]:
            self.remove(client)
            client.abort()

    def close_between_requests(self) -> None:
        """From now on closes connections after their requests; the first one of others may be on its way."""
        self._keeps_idle = False
        for client in list(self._open):
            self.sort_in(client)
