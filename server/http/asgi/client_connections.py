"""ClientConnections: which connections are open, and which of them is closed when a new one needs its place.

A connection on which no valid key has come holds its place only until somebody else needs it: the oldest is
closed first, whatever it does. One with a key is closed only between two requests, and only where hardly any
without a key are left.
"""

from collections.abc import Callable, MutableMapping
from typing import Any

CLIENT = "client_connection"
"""The key of a request's ClientConnection in its ASGI scope's state."""


class ClientConnection:
    """One connection, from when it is accepted on: while it shakes hands, between requests and in one."""

    def __init__(self, connections: "ClientConnections", abort: Callable[[], object]) -> None:
        self.abort = abort
        """Closes it at once."""
        self.close = abort
        """Closes it when all that was written has been sent."""
        self.on_authenticated: Callable[[], object] = lambda: None
        """Called when a valid key has come."""
        self.is_idle = True
        """It is between two requests, or before the first."""
        self.had_request = False
        self.has_key = False
        self._connections = connections

    def set_idle(self, idle: bool) -> None:
        """Says whether a request is in progress."""
        self.is_idle = idle
        self.had_request = True
        self._connections.sort_in(self)

    def set_authenticated(self, valid: bool) -> None:
        """Says that a request here has had a valid key, or that the key is not valid any more."""
        if valid is not self.has_key:
            self.has_key = valid
            self._connections.sort_in(self)
            if valid:
                self.on_authenticated()


def set_authenticated(scope: MutableMapping[str, Any], valid: bool = True) -> None:
    """Says so of the connection of this ASGI scope."""
    client: ClientConnection | None = scope.get("state", {}).get(CLIENT)
    if client is not None:
        client.set_authenticated(valid)


class ClientConnections:
    """The open connections, `most` at a time. Use it on the event loop only."""

    def __init__(self, most: int, reserved: int) -> None:
        """As many connections without a key as are `reserved` are closed only where nothing else can be."""
        self._most = most
        self._reserved = reserved
        self._open: dict[ClientConnection, None] = {}
        self._unauthenticated: dict[ClientConnection, None] = {}
        """Those without a key, oldest first."""
        self._idle: dict[ClientConnection, None] = {}
        """Those with a key that are between two requests; the one that has been so for longest is first."""
        self._keeps_idle = True

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self._most

    @property
    def busy(self) -> bool:
        """Whether a request with a key is in progress. Any thread."""
        return len(self._open) > len(self._unauthenticated) + len(self._idle)

    def add(self, abort: Callable[[], object]) -> ClientConnection:
        """Adds a connection that was accepted, which `abort` closes."""
        client = ClientConnection(self, abort)
        self._open[client] = self._unauthenticated[client] = None
        return client

    def remove(self, client: ClientConnection) -> None:
        """Removes a connection that has ended. Idempotent."""
        for connections in (self._open, self._unauthenticated, self._idle):
            connections.pop(client, None)

    def sort_in(self, client: ClientConnection) -> None:
        """Puts an open connection where it belongs, now that its state has changed."""
        if client not in self._open:
            return
        if client.is_idle and client.had_request and not self._keeps_idle:
            client.close()
        if client.has_key:
            self._unauthenticated.pop(client, None)
        elif client not in self._unauthenticated:
            self._unauthenticated[client] = None
        self._idle.pop(client, None)
        if client.has_key and client.is_idle:
            self._idle[client] = None

    def close_one(self) -> bool:
        """Closes a connection for a new one; False where each is in a request with a key."""
        strangers = self._unauthenticated
        client = next(
            iter(strangers if len(strangers) > self._reserved or not self._idle else self._idle), None
        )
        if client is None:
            return False
        self.remove(client)
        client.abort()
        return True

    def close_between_requests(self) -> None:
        """From now on closes connections after their requests; the first one of others may be on its way."""
        self._keeps_idle = False
        for client in list(self._open):
            self.sort_in(client)
