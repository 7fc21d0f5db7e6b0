"""`python -m tests.support.flood KIND PORT COUNT`: connections without a key, opened again when closed.

Prints a line when all of them were opened once; at the end of its input, how many were opened again.
"""

import itertools
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

from server.http.asgi.listener import raise_file_limit

UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n"
)
SENT = {
    "readers": b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 8,
    "trickles": b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 8,
    "forms": b"POST /console/sign-in HTTP/1.1\r\nhost: x\r\ncontent-length: 4000\r\n\r\nkey=",
    "expecting": b"POST /console/sign-in HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
    b"content-length: 4000\r\n\r\n",
    "chunks": b"POST /console/sign-in HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
    "heads": b"GET /v1/models HTTP/1.1\r\nx: ",
    "bodies": b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 4000\r\n\r\n{",
    "pipelines": b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 400,
    "h2c": b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\n"
    b"upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n\r\n",
    "scrapes": b"GET /metrics HTTP/1.1\r\nx: ",
    "whole scrapes": b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n",
    "upgrades": UPGRADE,
    "handshakes": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "visits": b"GET /v1/models HTTP/1.1\r\nx: ",
    "silent": b"",
}
"""What a connection sends at once. None of them reads, but for the trickles, a byte a second."""
_DROPS = dict.fromkeys(("forms", "expecting", "heads", "bodies", "scrapes", "handshakes"), b"a") | {
    "chunks": b"1\r\na\r\n"
}
"""What it sends every second."""
_GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_ADDRESSES = 200
_VISITS_PER_S = 2_000
"""Connections that are opened, and closed as soon as they are made."""


class Flood:
    """`count` connections to one port, from many addresses of this machine."""

    def __init__(self, kind: str, port: int, count: int) -> None:
        self.kind, self.port, self.count = kind, port, count
        self.opened = 0
        self._open: dict[int, socket.socket] = {}
        self._epoll = select.epoll()
        self._sources = itertools.cycle(f"127.0.1.{number}" for number in range(1, _ADDRESSES + 1))

    def open(self) -> None:
        """Begins to connect; what it sends follows."""
        client = socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        client.bind((next(self._sources), 0))
        with suppress(BlockingIOError):
            client.connect(("127.0.0.1", self.port))
        self._open[client.fileno()] = client
        self._epoll.register(client.fileno(), select.EPOLLOUT | _GONE)
        self.opened += 1

    def turn(self) -> None:
        """Sends where a connection was made, and opens again where one was closed."""
        for number, events in self._epoll.poll(0.2):
            if events & select.EPOLLOUT and not events & _GONE:
                with suppress(OSError):
                    self._open[number].send(SENT[self.kind])
                self._epoll.modify(number, _GONE)
            if events & _GONE or self.kind == "visits":
                self._epoll.unregister(number)
                self._open.pop(number).close()
                self.open()

    def drip(self) -> None:
        """A byte more of what is sent, or of what is read."""
        if self.kind == "trickles":
            self._each(lambda client: client.recv(1))
        elif drop := _DROPS.get(self.kind):
            self._each(lambda client: client.send(drop))

    def _each(self, turn: Callable[[socket.socket], object]) -> None:
        for client in self._open.values():
            with suppress(OSError):
                turn(client)


def main() -> None:
    """Floods until its input ends."""
    raise_file_limit()
    flood = Flood(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    ended = select.poll()
    ended.register(sys.stdin, select.POLLIN | select.POLLHUP)
    began = dripped = monotonic()
    first = 0
    while not ended.poll(0):
        if first < flood.count:
            more = min(200, flood.count - first)
            first += more
            for _ in range(more):
                flood.open()
            if first == flood.count:
                sys.stdout.write("all are open\n")
                sys.stdout.flush()
        flood.turn()
        while flood.kind == "visits" and flood.opened > flood.count + _VISITS_PER_S * (monotonic() - began):
            sleep(0.01)
        if monotonic() - dripped > 1:
            dripped = monotonic()
            flood.drip()
    sys.stdout.write(f"{flood.opened - flood.count}\n")


if __name__ == "__main__":
    main()
