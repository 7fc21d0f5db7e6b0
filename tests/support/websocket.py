"""A client's end of a WebSocket, over plain sockets: every message is seen as it was sent."""

import contextlib
import json
import socket
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from tests.support.sse import PATIENCE_S

TERMINAL = ("response.completed", "response.failed", "response.incomplete")
Json = dict[str, Any]


class Refused(Exception):
    """The server did not accept the connection."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
        self.body = b""


class WebSocket:
    """Open from its beginning to the end of the block. Raises Refused."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        path: str = "/v1/responses",
        host: str | None = None,
    ) -> None:
        """`host` is what the Host header says, where that is not the URL's."""
        address = urlsplit(url)
        assert address.hostname is not None
        self.closed: int | None = None
        """The code that the server closed it with."""
        self._socket = socket.create_connection((address.hostname, address.port), PATIENCE_S)
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._messages: deque[str] = deque()
        self._cut = ""
        self._accepted = False
        self._refused: Refused | None = None
        extra = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        try:
            self._write(self._connection.send(Request(host or address.netloc, path, extra_headers=extra)))
            while not self._accepted:
                if not self._receive():
                    assert self._refused is not None, "no answer to the handshake"
                    raise self._refused
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up as a client that ends orderly."""
        with self._socket, contextlib.suppress(ConnectionError):  # a process that died hears nothing
            if self._connection.state is ConnectionState.OPEN:
                self._write(self._connection.send(CloseConnection(1000)))

    def send(self, message: Mapping[str, object]) -> None:
        self.send_text(json.dumps(message))

    def send_text(self, text: str, *, whole: bool = True) -> None:
        """Sends a message, or a part of one of which more will follow."""
        self._write(self._connection.send(TextMessage(text, message_finished=whole)))

    def receive_text(self) -> str:
        """The next message. Fails if the server closes the connection instead."""
        while not self._messages:
            assert self._receive() or self._messages, f"closed with {self.closed}"
        return self._messages.popleft()

    def receive(self) -> Json:
        body: Json = json.loads(self.receive_text())
        return body

    def wait_closed(self) -> int | None:
        """The code that the server closes with, once it does; no message may come before."""
        while self.closed is None and self._receive():
            assert not self._messages, self._messages[0]
        return self.closed

    def turn(self, message: Mapping[str, object]) -> list[Json]:
        """Sends it; all events up to the last of its response, or the error in place of them."""
        self.send({"type": "response.create", **message})
        return self.rest()

    def rest(self) -> list[Json]:
        """The events up to the next that ends a response, or an error."""
        events = [self.receive()]
        while events[-1]["type"] not in (*TERMINAL, "error"):
            events.append(self.receive())
        return events

    def _write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _receive(self) -> bool:
        """Takes in what has come; False once there will be nothing more."""
        data = self._socket.recv(1 << 16)
        if data or self._accepted:  # wsproto has no event for a handshake without an answer
            self._connection.receive_data(data or None)
        for event in self._connection.events():
            match event:
                case AcceptConnection():
                    self._accepted = True
                case RejectConnection(status_code=status):
                    self._refused = Refused(status)
                case RejectData(data=body):
                    assert self._refused is not None
                    self._refused.body += bytes(body)
                case TextMessage(data=text, message_finished=whole):
                    self._cut += text
                    if whole:
                        self._messages.append(self._cut)
                        self._cut = ""
                case Ping():
                    self._write(self._connection.send(event.response()))
                case CloseConnection(code=code):
                    self.closed = code
                    if self._connection.state is ConnectionState.REMOTE_CLOSING:
                        with contextlib.suppress(ConnectionError):  # a process that ends waits for no answer
                            self._write(self._connection.send(event.response()))
        return bool(data) and self.closed is None
