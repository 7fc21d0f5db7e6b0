"""What comes before a handler: the protocol, the key, the body, and a thread for each class of work."""

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import httpx
import psycopg
import pytest

from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command

PATIENCE_S = 60.0
HELLO = {"model": MODEL, "input": "Hello", "max_output_tokens": 3}
CROWD = 28
"""More than there are threads for requests of all classes together."""


@contextmanager
def connection(server: ServerProcess) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as made:
        yield made


def read_all(client: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    received = b""
    while piece := client.recv(65536):
        received += piece
    return received


def read_answer(client: socket.socket) -> tuple[int, bytes]:
    """The status and the body of one answer that has a length."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = client.recv(65536)
        assert piece, received
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(lines[b"content-length"]):
        body += client.recv(65536)
    return int(head.split()[1]), body


@pytest.fixture(autouse=True)
def _nothing_goes_wrong_inside(scripted_server: ServerProcess) -> Iterator[None]:
    before = len(scripted_server.said().encode())
    yield
    assert "Traceback" not in scripted_server.said(before)


def test_http2_without_tls_is_refused_with_prior_knowledge(scripted_server: ServerProcess) -> None:
    with connection(scripted_server) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 505 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


def test_an_upgrade_to_http2_is_not_taken(scripted_server: ServerProcess) -> None:
    with connection(scripted_server) as client:
        client.sendall(
            b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\n"
            b"upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n\r\n"
        )
        status, body = read_answer(client)
    assert (status, json.loads(body)) == (200, {"status": "live"})


@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"authorization: Bearer a\r\nauthorization: Bearer b\r\n",
        b"Authorization: Bearer a\r\nX: y\r\nAUTHORIZATION: Bearer a\r\n",
    ],
)
@pytest.mark.parametrize("path", [b"/v1/models", b"/health/live"])
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_its_connection_closed(
    scripted_server: ServerProcess, headers: bytes, path: bytes
) -> None:
    hidden = b"0\r\n\r\nGET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
    with connection(scripted_server) as client:
        client.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n" + hidden)
        answer = read_all(client)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health/live HTTP/1.1\nhost: x\n\n",
        b"GET /health/live HTTP/1.1\r\nhost: x\nx: y\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nhost: x\r\nx: y\r\n z\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\nGET /health/live HTTP/1.1\nhost: x\n\n",
    ],
    ids=["LF", "one LF", "folded", "LF in the second"],
)
def test_lines_that_proxies_read_otherwise_are_refused(scripted_server: ServerProcess, head: bytes) -> None:
    with connection(scripted_server) as client:
        client.sendall(head)
        answer = read_all(client)
    assert json.loads(answer.partition(b"HTTP/1.1 400 ")[2].partition(b"\r\n\r\n")[2])["error"]["message"]
    assert answer.count(b"HTTP/1.1 200 ") == head.count(b"GET") - 1


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/openapi.json"])
def test_what_is_open_to_all_is_answered_without_the_body_that_was_announced(
    scripted_server: ServerProcess, path: str
) -> None:
    with connection(scripted_server) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000\r\n\r\n".encode())
        assert read_answer(client)[0] == 200


def test_a_get_with_a_large_body_is_refused(scripted_server: ServerProcess) -> None:
    answer = httpx.request("GET", f"{scripted_server.api}/models", content=b"a" * 100_000)
    assert answer.status_code == 413
    assert httpx.request("GET", f"{scripted_server.api}/models", content=b"a").status_code == 200


@pytest.fixture
def keys(database_url: str) -> dict[str, str]:
    def make(tenant: str) -> str:
        made = run_command("keys", "create", "--tenant", tenant, database_url=database_url)
        return made.stdout.split()[-1]

    return {tenant: make(tenant) for tenant in ("loud", "quiet")}


def test_who_has_no_key_hears_so_before_sending_a_body(keyed_server: ServerProcess) -> None:
    with connection(keyed_server) as client:
        client.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n")
        status, body = read_answer(client)
    assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
    answer = httpx.post(f"{keyed_server.api}/responses", content=b"a" * 5_000_000, timeout=PATIENCE_S)
    assert answer.status_code == 401, "a client that sends all first hears it, too"


class Client:
    """One tenant's; to be closed."""

    def __init__(self, server: ServerProcess, key: str) -> None:
        self._http = httpx.Client(
            base_url=server.api,
            timeout=PATIENCE_S,
            headers={"authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=200),
        )

    def close(self) -> None:
        self._http.close()

    def __call__(self, method: str, path: str, body: object = None) -> httpx.Response:
        return self._http.request(method, path, json=body)

    def create(self, **wanted: object) -> str:
        made: str = self("POST", "/responses", {**HELLO, **wanted}).raise_for_status().json()["id"]
        return made


Own = Callable[[Client], Client]


@pytest.fixture
def own() -> Iterator[Own]:
    """Closes a client after the test."""
    with ExitStack() as stack:

        def own(client: Client) -> Client:
            return stack.enter_context(closing(client))

        yield own


@contextmanager
def crowd(
    send: Callable[[], httpx.Response], database_url: str, lock: str
) -> Iterator[list["Future[httpx.Response]"]]:
    """Requests that wait for what is locked in the database until the block ends; they fill the threads."""
    with (
        psycopg.connect(database_url) as blocker,
        psycopg.connect(database_url, autocommit=True) as observer,
        ThreadPoolExecutor(CROWD) as pool,
    ):
        blocker.execute(lock)
        sent = [pool.submit(send) for _ in range(CROWD)]
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        eventually(lambda: observer.execute(waiting).fetchone() != (0,))
        try:
            yield sent
        finally:
            blocker.rollback()
    for one in sent:
        assert one.result().status_code in (200, 404, 429, 503)


def check_still_waiting(sent: list["Future[httpx.Response]"]) -> None:
    """Some may have given up the lock; whoever had waited for the others would have come later than that."""
    assert len([one for one in sent if one.done()]) <= CROWD // 3


def test_health_is_answered_whatever_fills_the_threads(
    start_server: StartServer, keys: dict[str, str], database_url: str, own: Own
) -> None:
    server = start_server(lease_seconds=30)
    client = own(Client(server, keys["loud"]))
    there = client.create()
    lock = "lock table responses in access exclusive mode"
    with (
        ThreadPoolExecutor(CROWD) as pool,
        crowd(lambda: client("GET", f"/responses/{there}"), database_url, lock) as reads,
    ):
        writes = [pool.submit(client, "POST", "/responses", HELLO) for _ in range(CROWD)]
        for path in ("/health/live", "/health/ready"):
            assert httpx.get(server.url + path, timeout=PATIENCE_S).status_code == 200
        check_still_waiting(reads)
        check_still_waiting(writes)


def test_a_cancel_does_not_wait_behind_creates(
    start_server: StartServer, keys: dict[str, str], database_url: str, own: Own
) -> None:
    server = start_server(lease_seconds=30, scripted_tokens=5000, scripted_step_seconds=0.02)
    client = own(Client(server, keys["loud"]))
    hot, running = client.create(), client.create(background=True, max_output_tokens=5000)
    following = {**HELLO, "previous_response_id": hot}
    lock = f"select * from responses where id = '{hot.removeprefix('resp_')}' for update"  # noqa: S608
    with crowd(lambda: client("POST", "/responses", following), database_url, lock) as creates:
        assert client("POST", f"/responses/{running}/cancel").json()["status"] == "cancelled"
        check_still_waiting(creates)


def test_a_tenant_whose_requests_fill_its_threads_keeps_no_other_waiting(
    start_server: StartServer, keys: dict[str, str], database_url: str, own: Own
) -> None:
    server = start_server(lease_seconds=30)
    loud, quiet = own(Client(server, keys["loud"])), own(Client(server, keys["quiet"]))
    hot = loud.create()
    following = {**HELLO, "previous_response_id": hot}
    lock = f"select * from responses where id = '{hot.removeprefix('resp_')}' for update"  # noqa: S608
    with crowd(lambda: loud("POST", "/responses", following), database_url, lock) as creates:
        for _ in range(5):
            assert quiet("POST", "/responses", HELLO).status_code == 200
        check_still_waiting(creates)
