"""Bare sockets as clients, which may stop reading or hang up rudely, and what the kernel knows of servers."""

import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from tests.support.server_process import ServerProcess

PATIENCE_S = 60.0
_LISTEN, _TIME_WAIT = "0A", "06"
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: `close` sends RST instead of FIN."""


class RawClient:
    """One open stream."""

    def __init__(
        self, server: ServerProcess, path: str, body: Mapping[str, object] | None = None, *, window: int = 0
    ) -> None:
        """POSTs the body, or GETs without one; `window` limits what the kernel takes for it unread."""
        self.received = b""
        self._socket = socket.socket()
        self._socket.settimeout(PATIENCE_S)
        if window:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self._socket.connect(("127.0.0.1", server.port))
        content = b"" if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        head = [
            f"{method} /v1{path} HTTP/1.1",
            f"host: 127.0.0.1:{server.port}",
            "content-type: application/json",
            f"content-length: {len(content)}",
        ]
        self._socket.sendall("\r\n".join([*head, "", ""]).encode() + content)

    def read_events(self, count: int) -> None:
        """Waits until so many events have come, or a few more."""
        while self.received.count(b"event: ") < count:
            piece = self._socket.recv(4096)
            assert piece, f"the stream ended: {self.received[-300:]!r}"
            self.received += piece

    def close(self, *, rudely: bool = False) -> None:
        if rudely:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()


def connections(server: ServerProcess) -> int:
    """How many connections of clients the server's end has, those that wait to be flushed among them."""
    here = f":{server.port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(here) and row[3] not in (_LISTEN, _TIME_WAIT) for row in rows)


def resident_bytes(server: ServerProcess) -> int:
    return _status(server, "VmRSS") * 1024


def threads(server: ServerProcess) -> int:
    return _status(server, "Threads")


def cpu_seconds(server: ServerProcess) -> float:
    """What its threads have used of the processor since it began."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(server: ServerProcess, name: str) -> int:
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name + ":")).split()[1])
