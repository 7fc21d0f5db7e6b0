"""What the listener does with the connections that it accepts."""

import asyncio
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypercorn.config import Config as HypercornConfig
from starlette.types import Receive, Scope, Send

from server.http.asgi.client_connections import is_health, set_authenticated
from server.http.asgi.hypercorn_patches import install_patches
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


LIMIT = 8
LONG = 4 * 1024 * 1024
"""Bytes of an answer that no kernel holds for a client."""
KEY = b"Bearer key"


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    """/long is answered at length, /wait when the client has sent its body; KEY is a valid key."""
    if dict(scope["headers"]).get(b"authorization") == KEY:
        set_authenticated(scope)
    if scope["path"] == "/wait":
        while (await receive()).get("more_body"):
            pass
    body = bytes(LONG if scope["path"] == "/long" else 4)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def port(caplog: pytest.LogCaptureFixture) -> Iterator[int]:
    """Of a listener with LIMIT connections, whose clients have half a second to take a block.

    It logs nothing, whatever becomes of them.
    """
    install_patches()
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listening.setblocking(False)
    listener = Listener(
        _app,
        HypercornConfig(),
        LIMIT,
        send_seconds=0.5,
        goes_first=lambda target, key: is_health(target) or key == KEY,
    )
    with asyncio.Runner() as runner:
        loop, ended = runner.get_loop(), asyncio.Event()
        thread = threading.Thread(target=runner.run, args=(listener.serve(listening, ended.wait),))
        thread.start()
        yield listening.getsockname()[1]
        loop.call_soon_threadsafe(ended.set)
        thread.join()
    assert caplog.messages == []


def _connect(port: int, sent: bytes) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(30)
    client.connect(("127.0.0.1", port))
    client.sendall(sent)
    return client


def _request(path: str, *headers: bytes) -> bytes:
    return b"\r\n".join([f"GET {path} HTTP/1.1".encode(), b"host: x", *headers, b"", b""])


def _answered(client: socket.socket) -> bool:
    with client:
        return client.recv(12) == b"HTTP/1.1 200"


WITH_KEY = b"authorization: " + KEY


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nx: ",
        _request("/long") * 9,
        _request("/wait", b"content-length: 9"),
        _request("/wait", b"content-length: 9", b"authorization: Bearer other"),
    ],
    ids=["silent", "half a head", "does not read", "half a body", "a wrong key"],
)
def test_clients_without_a_key_keep_nobody_out(port: int, sent: bytes) -> None:
    with ExitStack() as stack:
        begun = stack.enter_context(_connect(port, _request("/wait", WITH_KEY, b"content-length: 1")))
        for _ in range(20 * LIMIT):
            stack.enter_context(_connect(port, sent))
        assert _answered(_connect(port, _request("/health/live")))
        assert _answered(_connect(port, _request("/", WITH_KEY)))
        assert _answered(_connect(port, _request("/")))
        begun.sendall(b"a")
        assert _answered(begun), "a request with a key goes on"


def test_a_client_that_does_not_take_an_answer_is_disconnected_and_a_slow_one_is_not(port: int) -> None:
    ask = _request("/long", WITH_KEY)
    with _connect(port, ask) as slow, _connect(port, ask) as stalled:
        gone = select.poll()
        gone.register(stalled, 0)  # errors and hang-ups only
        received = 0
        while not gone.poll(20):
            received += len(slow.recv(8192))
        assert received < LONG, "it is in the middle of its answer"
        while received < LONG:
            received += len(slow.recv(65536))
