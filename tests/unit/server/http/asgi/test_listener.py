"""What the listener does with the connections that it accepts."""

import asyncio
import socket
from typing import Any

import pytest
from hypercorn.config import Config as HypercornConfig

from server.http.asgi.listener import Connection, Listener


async def _no_app(*_: Any) -> None:
    pass


def test_small_writes_do_not_wait_for_acknowledgements_of_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[int] = []

    async def run(connection: Connection) -> None:
        accepted = connection.writer.get_extra_info("socket")
        found.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        connection.writer.close()

    async def serve() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        ended = asyncio.Event()
        listener = Listener(_no_app, HypercornConfig(), 8)
        serving = asyncio.ensure_future(listener.serve(listening, ended.wait))
        reader, writer = await asyncio.open_connection(*listening.getsockname()[:2])
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        ended.set()
        await serving

    monkeypatch.setattr(Connection, "run", run)
    asyncio.run(serve())
    assert found == [1]
