"""Behind nginx with the documented file: streams, WebSockets, large bodies, replicas that are gone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import httpx2
import pytest
from openai import OpenAI

from tests.fix_server import PACED, SCRIPTED, StartServer
from tests.support.certificates import Authority
from tests.support.nginx import Nginx, documented_server, program
from tests.support.server_process import MODEL, ServerProcess, free_port
from tests.support.websocket import WebSocket

pytestmark = pytest.mark.skipif(program() is None, reason="there is no nginx here")

Behind = Callable[..., str]
NAMED = {"allowed_hosts": "127.0.0.1, localhost"}


@pytest.fixture
def behind_nginx(tmp_path: Path) -> Iterator[Behind]:
    """The address of an nginx in front of these servers, which ends with the test."""
    running: list[Nginx] = []

    def start(*servers: ServerProcess, certificate: tuple[Path, Path] | None = None) -> str:
        port = free_port()
        file = documented_server(port, [server.port for server in servers], certificate)
        nginx = Nginx(tmp_path, port, file)
        nginx.start()
        running.append(nginx)
        return f"{'https' if certificate else 'http'}://localhost:{port}"

    yield start
    for nginx in running:
        nginx.stop()


def test_events_of_a_stream_arrive_one_by_one(start_server: StartServer, behind_nginx: Behind) -> None:
    url = behind_nginx(start_server(**PACED, **NAMED))
    body = {"model": MODEL, "input": "Hello", "stream": True, "max_output_tokens": 50}
    with httpx.stream("POST", f"{url}/v1/responses", json=body, timeout=30) as stream:
        pieces = list(stream.iter_raw())
    assert len(pieces) > 25, "not in the lumps of a buffer"


def test_the_official_client_speaks_tls_to_nginx(
    start_server: StartServer, behind_nginx: Behind, tmp_path: Path
) -> None:
    authority = Authority()
    certificate = (tmp_path / "server.pem", tmp_path / "server.key")
    authority.write(*certificate)
    url = behind_nginx(start_server(**SCRIPTED, **NAMED), certificate=certificate)
    with httpx2.Client(verify=authority.context()) as http:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http, max_retries=0)
        first = client.responses.create(model=MODEL, input="Hello")
        second = client.responses.create(model=MODEL, input="Go on", previous_response_id=first.id)
        assert client.responses.retrieve(second.id).status == "completed"


def test_websockets_are_passed_on_and_no_other_upgrade_is(
    start_server: StartServer, behind_nginx: Behind
) -> None:
    url = behind_nginx(start_server(**SCRIPTED, **NAMED))
    with WebSocket(url) as websocket:
        events = websocket.turn({"type": "response.create", "model": MODEL, "input": "Hello"})
        assert events[-1]["type"] == "response.completed"
    h2c = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    assert httpx.get(f"{url}/v1/models", headers=h2c).status_code == 200


def test_a_body_beyond_the_limit_is_refused_before_the_server_sees_it(
    start_server: StartServer, behind_nginx: Behind
) -> None:
    url = behind_nginx(start_server(**SCRIPTED, **NAMED))
    body = {"model": MODEL, "input": "x" * (11 * 1024 * 1024)}
    assert httpx.post(f"{url}/v1/responses", json=body, timeout=30).status_code == 413
    fits = {"model": MODEL, "input": "x" * (9 * 1024 * 1024)}
    assert httpx.post(f"{url}/v1/responses", json=fits, timeout=30).json()["error"]["code"] is not None


def test_what_is_the_operators_is_not_to_be_had_outside(
    start_server: StartServer, behind_nginx: Behind
) -> None:
    url = behind_nginx(start_server(**SCRIPTED, **NAMED))
    for path in ("/metrics", "/admin/v1/keys", "/console", "/console/sign-in"):
        answer = httpx.get(f"{url}{path}")
        assert (answer.status_code, "nginx" in answer.text) == (404, True)


def test_a_replica_that_is_gone_is_passed_over(start_server: StartServer, behind_nginx: Behind) -> None:
    servers = [start_server(**SCRIPTED, **NAMED) for _ in range(2)]
    url = behind_nginx(*servers)
    servers[0].kill()
    made = [httpx.post(f"{url}/v1/responses", json={"model": MODEL, "input": "Hello"}) for _ in range(8)]
    assert {answer.status_code for answer in made} == {200}


def test_the_id_of_a_request_is_the_clients(start_server: StartServer, behind_nginx: Behind) -> None:
    url = behind_nginx(start_server(**SCRIPTED, **NAMED))
    answer = httpx.get(f"{url}/v1/models", headers={"X-Request-Id": "from-the-client"})
    assert answer.headers["x-request-id"] == "from-the-client"
    assert httpx.get(f"{url}/v1/models").headers["x-request-id"]
