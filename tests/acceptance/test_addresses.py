"""Addresses that tools look for, and what is answered at those that are none."""

import http.client
import json
from pathlib import Path

import httpx
import pytest

from server.configuration.shipped_files import demo_model_folder
from server.version import VERSION
from tests.acceptance.error_object import check_error
from tests.fix_server import StartServer
from tests.support.server_process import MODEL, ServerProcess

HELLO = {"model": MODEL, "input": "Hello"}
TOO_LONG_TO_DROP = 3 * 1024 * 1024


@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")])
def test_health_is_told_where_other_servers_tell_it(
    scripted_server: ServerProcess, method: str, path: str
) -> None:
    answer = httpx.request(method, scripted_server.url + path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_version_is_told(scripted_server: ServerProcess) -> None:
    assert httpx.get(f"{scripted_server.url}/version").json() == {"version": VERSION}


def test_model_says_how_much_it_reads(scripted_server: ServerProcess) -> None:
    (model,) = httpx.get(f"{scripted_server.api}/models").json()["data"]
    tokenized = httpx.post(f"{scripted_server.url}/tokenize", json={"prompt": "Hi"}).json()
    assert model["max_model_len"] == tokenized["max_model_len"]
    assert (model["root"], model["parent"]) == (MODEL, None)
    (permission,) = model["permission"]
    assert (permission["object"], permission["allow_sampling"]) == ("model_permission", True)


def test_tokenizer_is_told_where_the_operator_wants_it(start_server: StartServer) -> None:
    server = start_server(tokenizer_info="on")
    told = httpx.get(f"{server.url}/tokenizer_info").json()
    config = json.loads((demo_model_folder() / "tokenizer_config.json").read_text())
    assert told["eos_token"] == config["eos_token"]
    assert told["chat_template"] == Path(demo_model_folder(), "chat_template.jinja").read_text()
    assert told["tokenizer_class"]


def test_tokenizer_is_told_to_nobody_by_default(scripted_server: ServerProcess) -> None:
    check_error(httpx.get(f"{scripted_server.url}/tokenizer_info"), 404, "invalid_request_error")


@pytest.mark.parametrize("path", ["/responses/", "/responses//", "/chat/completions/", "/completions/"])
def test_slash_at_the_end_of_an_address_changes_nothing(scripted_server: ServerProcess, path: str) -> None:
    by_path: dict[str, dict[str, object]] = {
        "/chat/completions/": {"messages": [{"role": "user", "content": "Hello"}]},
        "/completions/": {"prompt": "Hello"},
    }
    body = {"model": MODEL, **by_path.get(path, {"input": "Hello"})}
    answer = httpx.post(scripted_server.api + path, json=body, follow_redirects=False)
    assert answer.status_code == 200, answer.text


def test_slash_at_the_end_of_an_address_changes_nothing_of_what_is_read(
    scripted_server: ServerProcess,
) -> None:
    response = httpx.post(f"{scripted_server.api}/responses", json=HELLO).json()["id"]
    for path in ("models/", f"models/{MODEL}/", "responses/?limit=1", f"responses/{response}/"):
        assert httpx.get(f"{scripted_server.api}/{path}", follow_redirects=False).status_code == 200, path
    for path in ("nothing", "nothing/", "responses/x/nothing/"):
        check_error(httpx.get(f"{scripted_server.api}/{path}"), 404, "invalid_request_error")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/embeddings", 404),
        ("PUT", "/v1/files", 404),
        ("POST", "/v1/models", 405),
        ("DELETE", "/v1/models/x", 405),
        ("PATCH", "/v1/responses", 405),
    ],
)
def test_connection_is_of_use_after_a_body_that_nobody_reads(
    scripted_server: ServerProcess, method: str, path: str, status: int
) -> None:
    """The body may come after the answer could be sent, as it does on a real network."""
    body = json.dumps({"input": "x" * 300_000}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", scripted_server.port, timeout=60)
    for _ in range(5):
        connection.putrequest(method, path)
        connection.putheader("content-length", str(len(body)))
        connection.endheaders()
        connection.send(body)
        answer = connection.getresponse()
        assert (answer.status, answer.headers["connection"]) == (status, None)
        assert json.loads(answer.read())["error"]["type"] == "invalid_request_error"
    connection.close()


def test_body_too_long_to_be_dropped_ends_the_connection_and_says_so(scripted_server: ServerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", scripted_server.port, timeout=60)
    connection.request("POST", "/v1/embeddings", bytes(TOO_LONG_TO_DROP))
    answer = connection.getresponse()
    assert (answer.status, answer.headers["connection"]) == (404, "close")
    assert json.loads(answer.read())["error"]["code"] == "not_found"
    connection.close()
