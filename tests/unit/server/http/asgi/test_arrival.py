"""Accepted connections until their first request, or their first TLS record, has come."""

import asyncio
import socket
from contextlib import closing, suppress

import pytest

from server.http.asgi.client_connections import Arrival, Arrivals

HELLO = b"\x16\x03\x01\x02\x00" + bytes(512)
"""As long as a ClientHello's record says that it is."""
HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Counted(Arrivals):
    """Arrivals that count how often they have been read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def watch(self, accepted: socket.socket, read: object) -> None:
        def count() -> None:
            self.reads += 1
            read()  # type: ignore[operator]

        super().watch(accepted, count)


async def _outcome(parts: list[bytes], *, is_encrypted: bool, closes: bool) -> tuple[str, int]:
    """What has become of a client that sent these parts; how often it was read after it was accepted."""
    outcome, arrivals = ["waits"], Counted()
    reading = asyncio.ensure_future(arrivals.read())
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    accepted.setblocking(False)
    arrival = Arrival(
        accepted,
        arrivals,
        is_encrypted=is_encrypted,
        on_whole=lambda _: outcome.append("whole"),
        on_lost=lambda _: outcome.append("lost"),
    )
    with client:
        arrival.read()
        for part in parts:
            client.sendall(part)
            for _ in range(5):
                await asyncio.sleep(0.002)
        if closes:
            client.shutdown(socket.SHUT_WR)
            for _ in range(5):
                await asyncio.sleep(0.002)
    arrival.close()
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    return outcome[-1], arrivals.reads


@pytest.mark.parametrize(
    ("whole", "is_encrypted"), [(HEAD, False), (HELLO, True)], ids=["a request", "a TLS record"]
)
def test_an_arrival_is_whole_with_its_last_byte(whole: bytes, is_encrypted: bool) -> None:
    for cut in (1, 4, 5, 6, len(whole) - 1):
        parts = [whole[:cut], whole[cut:]]
        assert asyncio.run(_outcome(parts[:1], is_encrypted=is_encrypted, closes=False))[0] == "waits"
        assert asyncio.run(_outcome(parts, is_encrypted=is_encrypted, closes=False))[0] == "whole"


@pytest.mark.parametrize(
    ("half", "is_encrypted"),
    [(b"", False), (HEAD[:-1], False), (b"", True), (HELLO[:3], True), (HELLO[:-1], True)],
)
def test_half_an_arrival_is_read_once_and_is_lost_when_the_client_closes(
    half: bytes, is_encrypted: bool
) -> None:
    parts = [half] if half else []
    _, reads = asyncio.run(_outcome(parts, is_encrypted=is_encrypted, closes=False))
    assert reads <= 2
    outcome, reads = asyncio.run(_outcome(parts, is_encrypted=is_encrypted, closes=True))
    assert outcome == "lost"
    assert reads <= 3


def test_who_does_not_begin_with_a_handshake_is_left_to_openssl() -> None:
    assert asyncio.run(_outcome([b"GET"], is_encrypted=True, closes=False))[0] == "whole"
