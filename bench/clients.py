"""Many streams read by one thread: what each of them received, and when.

As cheap as a client can be, for it shares the machine with the server that is measured.
"""

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 600.0
_DONE = b"[DONE]"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
"""Of a chunked body: not every server says that it is done."""


@dataclass(slots=True)
class Capture:
    """What was received, piece by piece, each with the time at which it came."""

    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    sent_at: float = 0.0
    """When its request was sent, of `monotonic`."""

    @property
    def raw(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    def events(self) -> list[tuple[float, dict[str, Any]]]:
        """The events, each with the time at which its last byte came."""
        found = []
        received = b""
        for moment, piece in self.pieces:
            received += piece
            whole, _, received = received.rpartition(b"\n\n")
            found += [
                (moment, json.loads(line.removeprefix(b"data: ")))
                for line in whole.split(b"\n")
                if line.startswith(b"data: {")
            ]
        return found


def read_streams(
    port: int,
    bodies: Sequence[Mapping[str, object]],
    path: str = "/v1/responses",
    key: str = "none",
    at_once: int | None = None,
) -> list[Capture]:
    """POSTs every body to the path at the same time and reads to the ends of all streams.

    With `at_once` there are at most so many streams at a time: each that ends is followed by the next one.
    """
    captures = [Capture() for _ in bodies]
    waiting = deque(zip(bodies, captures, strict=True))
    with selectors.DefaultSelector() as selector:

        def send_next() -> None:
            if waiting:
                body, capture = waiting.popleft()
                connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
                capture.sent_at = time.monotonic()
                connection.sendall(_request(path, body, key))
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, capture)

        for _ in range(at_once or len(bodies)):
            send_next()
        while selector.get_map():
            ready = selector.select(PATIENCE_S)
            assert ready, "the server says nothing"
            for registered, _ in ready:
                if _receive(selector, registered):
                    send_next()
    return captures


def _receive(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
    """Takes what has come; whether the stream has ended with it."""
    connection: Any = key.fileobj
    piece = connection.recv(1 << 18)
    key.data.pieces.append((time.monotonic(), piece))
    end = b"".join(each for _, each in key.data.pieces[-2:])
    if piece and _DONE not in piece and not end.endswith(_LAST_CHUNK):
        return False
    assert piece, f"a stream was cut off: {key.data.raw[-300:]!r}"
    selector.unregister(connection)
    connection.close()
    return True


def _request(path: str, body: Mapping[str, object], key: str) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    head += f"Authorization: Bearer {key}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + content
