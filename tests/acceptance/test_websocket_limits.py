"""What WebSockets may take at a time: connections, messages that arrive, responses that are kept."""

from socket import create_connection

import httpx
import pytest

from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.websocket import Refused, WebSocket

BODY = 64 * 1024
TOO_BIG = 1009


@pytest.fixture
def server(start_server: StartServer) -> ServerProcess:
    return start_server(max_connections=32, max_body_bytes=BODY, body_memory=2 * BODY)


def test_a_tenant_has_so_many_sockets_and_is_told_to_come_back(server: ServerProcess) -> None:
    sockets = [WebSocket(server.url) for _ in range(4)]
    with pytest.raises(Refused) as refused:
        WebSocket(server.url)
    assert refused.value.status == 429
    for socket in sockets:
        socket.close()
    eventually(lambda: opens(server))


def opens(server: ServerProcess) -> bool:
    try:
        WebSocket(server.url).close()
    except Refused:
        return False
    return True


def status_of_a_body(server: ServerProcess) -> int:
    """What is answered to 8 KiB that say that they are JSON and are not."""
    headers = {"content-type": "application/json"}
    return httpx.post(f"{server.api}/responses", content=b"a" * 8192, headers=headers).status_code


def test_messages_that_never_end_take_no_more_than_the_tenant_s_share(server: ServerProcess) -> None:
    with WebSocket(server.url) as first:
        first.send_text("a" * (BODY - 4096), whole=False)
        eventually(lambda: status_of_a_body(server) == 429)
        with WebSocket(server.url) as second:
            second.send_text("a" * 8192, whole=False)
            assert second.wait_closed() == TOO_BIG
    eventually(lambda: status_of_a_body(server) == 400)


def test_a_message_counts_no_more_once_it_was_answered(server: ServerProcess) -> None:
    with WebSocket(server.url) as socket:
        for _ in range(6):
            message = {"model": MODEL, "input": "a " * 10_000, "max_output_tokens": 1, "truncation": "auto"}
            assert socket.turn(message)[-1]["type"] in ("response.incomplete", "error")
            socket.send_text("no json " * 4000)
            assert socket.receive()["error"]["code"] == "invalid_json"


def test_what_a_connection_keeps_to_go_on_from_is_bounded_in_bytes(server: ServerProcess) -> None:
    about = {"model": MODEL, "store": False, "max_output_tokens": 1, "instructions": None}
    with WebSocket(server.url) as socket:
        metadata = {str(number): "a" * 512 for number in range(16)}
        names = []
        for _ in range(12):
            last = socket.turn({**about, "input": "Hello", "metadata": metadata})[-1]
            names.append(last["response"]["id"])
        going_on = {**about, "input": "Go on"}
        assert socket.turn({**going_on, "previous_response_id": names[0]})[-1]["type"] == "error"
        assert socket.turn({**going_on, "previous_response_id": names[-1]})[-1]["type"] != "error"


def test_a_stored_history_counts_among_what_a_connection_keeps(server: ServerProcess) -> None:
    about = {"model": MODEL, "max_output_tokens": 1, "truncation": "auto"}
    with WebSocket(server.url) as socket:
        previous = None
        for length, kept in ((1000, True), (10_000, True), (10_000, False)):
            stored = socket.turn({**about, "input": "a" * length, "previous_response_id": previous})[-1]
            previous = stored["response"]["id"]
            going_on = {**about, "input": "Go on", "store": False}
            unstored = socket.turn({**going_on, "previous_response_id": previous})[-1]["response"]["id"]
            last = socket.turn({**going_on, "previous_response_id": unstored})[-1]
            assert (last["type"] != "error") == kept


@pytest.mark.parametrize(
    ("more", "early"),
    [
        (b"sec-websocket-version: 13\r\n", b"\x81\x80"),
        (b"sec-websocket-version: 12\r\n", b""),
        (b"sec-websocket-version: 13\r\nsec-websocket-protocol: \xff\r\n", b""),
    ],
)
def test_a_handshake_that_is_refused_leaves_nothing_behind(
    more: bytes, early: bytes, server: ServerProcess
) -> None:
    handshake = (
        f"GET /v1/responses HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\nconnection: upgrade\r\n"
        "upgrade: websocket\r\nsec-websocket-key: AAAA\r\n"
    )
    for _ in range(4):
        with create_connection(("127.0.0.1", server.port), timeout=10) as client:
            client.sendall(handshake.encode() + more + b"\r\n" + early)
            answer = b"".join(iter(lambda: client.recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 400 ")
    eventually(lambda: opens(server))
    assert "Traceback" not in server.said()
