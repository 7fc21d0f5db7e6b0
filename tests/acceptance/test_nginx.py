"""Behind nginx with the documented file: streams, WebSockets, large bodies, replicas that are gone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import httpx2
import pytest
from openai import OpenAI

from tests.fix_server import PACED, StartServer, running
from tests.support.certificates import Authority
from tests.support.nginx import Nginx, documented_server, program
from tests.support.server_process import MODEL, ServerProcess, free_port
from tests.support.websocket import WebSocket

pytestmark = pytest.mark.skipif(program() is None, reason="there is no nginx here")
NAMED = {"allowed_hosts": "127.0.0.1, localhost"}


@contextmanager
def behind_nginx(
    folder: Path, *servers: ServerProcess, certificate: tuple[Path, Path] | None = None
) -> Iterator[str]:
    """The address of an nginx in front of these servers."""
    port = free_port()
    nginx = Nginx(folder, port, documented_server(port, [server.port for server in servers], certificate))
    try:
        nginx.start()
        yield f"{'https' if certificate else 'http'}://localhost:{port}"
    finally:
        nginx.stop()


@pytest.fixture(scope="module")
def server(module_database: str) -> Iterator[ServerProcess]:
    """Has the names that clients behind a proxy use; its answers of 50 tokens take a second."""
    yield from running(module_database, {**PACED, **NAMED, "scripted_tokens": 50})


@pytest.fixture(scope="module")
def url(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an nginx in front of the shared server."""
    with behind_nginx(tmp_path_factory.mktemp("nginx"), server) as address:
        yield address


def test_events_of_a_stream_arrive_one_by_one(server: ServerProcess, tmp_path: Path) -> None:
    body = {"model": MODEL, "input": "Hello", "stream": True, "max_output_tokens": 50}
    with (
        behind_nginx(tmp_path, server) as url,
        httpx.stream("POST", f"{url}/v1/responses", json=body, timeout=30) as stream,
    ):
        pieces = list(stream.iter_raw())
    assert len(pieces) > 25, "not in the lumps of a buffer"


def test_the_official_client_speaks_tls_to_nginx(server: ServerProcess, tmp_path: Path) -> None:
    authority = Authority()
    certificate = (tmp_path / "server.pem", tmp_path / "server.key")
    authority.write(*certificate)
    with (
        behind_nginx(tmp_path, server, certificate=certificate) as url,
        httpx2.Client(verify=authority.context()) as http,
    ):
        client = OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http, max_retries=0)
        first = client.responses.create(model=MODEL, input="Hello")
        second = client.responses.create(model=MODEL, input="Go on", previous_response_id=first.id)
        assert client.responses.retrieve(second.id).status == "completed"


def test_websockets_are_passed_on_and_no_other_upgrade_is(url: str) -> None:
    with WebSocket(url) as websocket:
        events = websocket.turn({"type": "response.create", "model": MODEL, "input": "Hello"})
        assert events[-1]["type"] == "response.completed"
    h2c = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    assert httpx.get(f"{url}/v1/models", headers=h2c).status_code == 200


def test_a_body_beyond_the_limit_is_refused_before_the_server_sees_it(url: str) -> None:
    body = {"model": MODEL, "input": "x" * (11 * 1024 * 1024)}
    assert httpx.post(f"{url}/v1/responses", json=body, timeout=30).status_code == 413
    fits = {"model": MODEL, "input": "x" * (9 * 1024 * 1024)}
    assert httpx.post(f"{url}/v1/responses", json=fits, timeout=30).json()["error"]["code"] is not None


def test_what_is_the_operators_is_not_to_be_had_outside(url: str) -> None:
    for path in ("/metrics", "/admin/v1/keys", "/console", "/console/sign-in"):
        answer = httpx.get(f"{url}{path}")
        assert (answer.status_code, "nginx" in answer.text) == (404, True)


def test_a_replica_that_is_gone_is_passed_over(
    start_server: StartServer, server: ServerProcess, tmp_path: Path
) -> None:
    gone = start_server(**NAMED)
    with behind_nginx(tmp_path, gone, server) as url:
        gone.kill()
        made = [httpx.post(f"{url}/v1/responses", json={"model": MODEL, "input": "Hello"}) for _ in range(8)]
    assert {answer.status_code for answer in made} == {200}


def test_the_id_of_a_request_is_the_clients(url: str) -> None:
    answer = httpx.get(f"{url}/v1/models", headers={"X-Request-Id": "from-the-client"})
    assert answer.headers["x-request-id"] == "from-the-client"
    assert httpx.get(f"{url}/v1/models").headers["x-request-id"]
