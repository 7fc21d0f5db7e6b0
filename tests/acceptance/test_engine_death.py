"""An engine that dies is told to every client at once; one that dies twice ends its process."""

from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import DONE, parse


def _stream(server: ServerProcess) -> bytes:
    body = {"model": MODEL, "input": "Go on.", "stream": True}
    answer = httpx.post(f"{server.api}/responses", json=body, timeout=60)
    assert answer.status_code == 200
    return answer.content


def _ready(server: ServerProcess) -> bool:
    return httpx.get(f"{server.url}/health/ready", timeout=60).status_code == 200


def test_every_client_is_told_and_the_process_ends_with_70_when_the_engine_dies_twice(
    start_server: StartServer,
) -> None:
    # Each of the eight comes before the step that the first of them has the engine die in.
    server = start_server(scripted_tokens=40, scripted_step_seconds=0.2, scripted_fault="crash@20")
    with ThreadPoolExecutor(8) as pool:
        first = [client.result() for client in [pool.submit(_stream, server) for _ in range(8)]]
    eventually(lambda: _ready(server))
    second = _stream(server)
    assert server.wait() == 70
    for received in [*first, second]:
        assert received.endswith(DONE)
        last = parse(received)[-1]
        assert last.event == "response.failed"
        assert last.json["response"]["error"]["code"] == "server_error"
