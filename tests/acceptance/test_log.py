"""The log: an object a line, a line a request and a line an end, ids by which they are found again."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, LiteralString

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.acceptance.test_keys import make_key
from tests.fix_server import PACED, SCRIPTED, Connect, StartServer, running
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create
from tests.support.websocket import WebSocket

SECRET = "a-word-of-a-prompt"
BARE_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
HELLO = {"model": MODEL, "input": SECRET}
HAS_EVENTS = "select 1 from response_events_hot where first_seq > 4"

Line = dict[str, Any]


def lines(server: ServerProcess) -> list[Line]:
    return [json.loads(line) for line in server.said().splitlines() if line.startswith("{")]


def found(server: ServerProcess, logger: str, **fields: object) -> list[Line]:
    return [
        line
        for line in lines(server)
        if line["logger"] == logger and all(line.get(name) == value for name, value in fields.items())
    ]


def wait_for(server: ServerProcess, logger: str, **fields: object) -> Line:
    return eventually(lambda: found(server, logger, **fields))[0]


@pytest.fixture(scope="module")
def server(module_database: str) -> Iterator[ServerProcess]:
    """One for all tests that find their lines by ids of their own."""
    settings = {**SCRIPTED, "log_format": "json", "log_level": "debug", "max_body_bytes": 10_000}
    yield from running(module_database, settings)


def test_every_line_is_an_object_with_a_time_a_level_and_this_replicas_id(server: ServerProcess) -> None:
    httpx.post(f"{server.api}/responses", json=HELLO).raise_for_status()
    wait_for(server, "holdfast.access", route="/v1/responses")
    said = [line for line in server.said().splitlines() if line]
    assert all(line.startswith("{") for line in said), said
    for line in map(json.loads, said):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
        assert line["level"] in ("debug", "info", "warning", "error", "critical")
        assert line["msg"]
    access = found(server, "holdfast.access", route="/v1/responses")[0]
    assert BARE_UUID.fullmatch(access["replica"])
    (start,) = [line["msg"] for line in found(server, "holdfast.serve") if "is process" in line["msg"]]
    assert start.startswith(f"replica {access['replica']} is process {server.pid} of ")


def test_a_request_and_the_end_of_its_response_are_a_line_each_with_the_same_ids(
    server: ServerProcess,
) -> None:
    headers = {"x-request-id": "mine-1"}
    answer = httpx.post(f"{server.api}/responses", json=HELLO, headers=headers)
    response = answer.json()
    assert answer.headers["x-request-id"] == "mine-1"
    access = wait_for(server, "holdfast.access", request_id="mine-1")
    assert access["msg"] == "POST /v1/responses 200"
    assert (access["method"], access["route"], access["status"]) == ("POST", "/v1/responses", 200)
    assert (access["tenant"], access["response_id"]) == ("default", response["id"])
    assert access["bytes"] == len(answer.content)
    assert access["ms"] > 0
    end = wait_for(server, "holdfast.responses", request_id="mine-1")
    usage = response["usage"]
    assert (end["response_id"], end["status"], end["model"]) == (response["id"], "completed", MODEL)
    assert (end["input_tokens"], end["output_tokens"]) == (usage["input_tokens"], usage["output_tokens"])
    cached = usage["input_tokens_details"]["cached_tokens"]
    assert (end["cached_tokens"], end["reasoning_tokens"], end["attempt"]) == (cached, 0, 1)
    assert 0 <= end["ttft_ms"] <= end["ms"]


def test_a_request_for_a_response_names_it(server: ServerProcess) -> None:
    response = httpx.post(f"{server.api}/responses", json=HELLO).json()["id"]
    httpx.delete(f"{server.api}/responses/{response}").raise_for_status()
    line = wait_for(server, "holdfast.access", method="DELETE")
    assert (line["route"], line["response_id"]) == ("/v1/responses/{response_id}", response)


def test_a_stream_has_its_line_when_it_ends_with_its_events(server: ServerProcess) -> None:
    headers = {"x-request-id": "streamed-1"}
    body = httpx.post(f"{server.api}/responses", json={**HELLO, "stream": True}, headers=headers).content
    access = wait_for(server, "holdfast.access", request_id="streamed-1")
    assert (access["bytes"], access["events"]) == (len(body), body.count(b"\n\n"))


def test_each_message_over_a_websocket_is_a_request_that_shares_the_connections_id(
    server: ServerProcess,
) -> None:
    with WebSocket(server.url, headers={"x-request-id": "socket-1"}) as socket:
        first, second = (socket.turn(HELLO)[0]["response"]["id"] for _ in range(2))
        socket.turn({**HELLO, "model": "unknown"})
    wait_for(server, "holdfast.access", request_id="socket-1", status=101)
    done = found(server, "holdfast.access", request_id="socket-1", method="MESSAGE")
    assert [(line["status"], line.get("response_id")) for line in done] == [
        (200, first),
        (200, second),
        (404, None),
    ]
    assert [line["response_id"] for line in found(server, "holdfast.responses", request_id="socket-1")] == [
        first,
        second,
    ]


@pytest.mark.parametrize("sent", ["two words", "a" * 129, "ünï"])
def test_an_id_that_is_too_long_or_not_visible_ascii_is_replaced(server: ServerProcess, sent: str) -> None:
    answer = httpx.get(f"{server.api}/models", headers={b"x-request-id": sent.encode()})
    assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])
    wait_for(server, "holdfast.access", request_id=answer.headers["x-request-id"])


def test_an_address_that_is_not_there_and_a_preflight_have_a_line_without_their_path(
    server: ServerProcess,
) -> None:
    answer = httpx.get(f"{server.url}/{SECRET}")
    line = wait_for(server, "holdfast.access", request_id=answer.headers["x-request-id"])
    assert (line["status"], "route" in line, line["error_code"]) == (404, False, "not_found")
    assert SECRET not in server.said()


def test_probes_are_logged_at_debug(server: ServerProcess) -> None:
    httpx.get(f"{server.url}/health/live")
    assert wait_for(server, "holdfast.access", route="/health/live")["level"] == "debug"
    httpx.get(f"{server.api}/models")
    assert wait_for(server, "holdfast.access", route="/v1/models")["level"] == "info"


def test_no_word_of_a_prompt_or_an_answer_and_no_key_is_logged_even_at_debug(
    start_server: StartServer, database_url: str
) -> None:
    answers = json.dumps([["b-word-of-", "an-answer"]])
    server = start_server(log_format="json", log_level="debug", scripted_answers=answers)
    key = make_key(database_url).text
    headers = {"authorization": f"Bearer {key}"}
    for body in ({**HELLO}, {**HELLO, "stream": True}, {**HELLO, "metadata": {SECRET: SECRET}}):
        assert httpx.post(f"{server.api}/responses", json=body, headers=headers).status_code == 200
    chat = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}], "user": SECRET}
    httpx.post(f"{server.api}/chat/completions", json=chat, headers=headers).raise_for_status()
    refused = httpx.post(f"{server.api}/responses", json={**HELLO, "temperature": SECRET}, headers=headers)
    assert refused.status_code == 400
    assert httpx.get(f"{server.api}/models", headers={"authorization": f"Bearer {key}x"}).status_code == 401
    wait_for(server, "holdfast.access", status=401)
    wait_for(server, "holdfast.errors", level="warning")
    said = server.said()
    assert SECRET not in said
    assert "b-word-of" not in said
    assert key.rpartition("_")[2][:16] not in said
    assert found(server, "holdfast.access", key_id=key.split("_")[1])


def test_the_request_id_is_stored_with_responses_of_every_api(
    server: ServerProcess, module_database: str
) -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    for name, path, body in (
        ("r-1", "responses", HELLO),
        ("r-2", "responses", {**HELLO, "background": True}),
        ("r-3", "responses", {**HELLO, "store": False}),
        ("r-4", "chat/completions", chat),
        ("r-5", "completions", {"model": MODEL, "prompt": "Hi"}),
    ):
        httpx.post(f"{server.api}/{path}", json=body, headers={"x-request-id": name}).raise_for_status()
    with WebSocket(server.url, headers={"x-request-id": "r-6"}) as socket:
        socket.turn(HELLO)
        socket.turn({**HELLO, "request_id": "r-7"})
        socket.turn(HELLO)
    names = {f"r-{number}" for number in range(1, 8)}
    with psycopg.connect(module_database, autocommit=True) as connection:

        def of(query: LiteralString) -> set[str]:
            return {row[0] for row in connection.execute(query)}

        eventually(lambda: of("select request_id from usage_ledger where request_id like 'r-%'") == names)
        assert (
            {"r-1", "r-2", "r-6", "r-7"}
            <= of("select request_id from responses where request_id like 'r-%'")
            <= names
        )
    eventually(lambda: {line["request_id"] for line in found(server, "holdfast.responses")} >= names)


def test_the_request_id_is_kept_when_another_replica_takes_a_response_over(
    start_server: StartServer, database_url: str
) -> None:
    first = start_server(**PACED, log_format="json")
    body = {**HELLO, "background": True, "max_output_tokens": 100}
    made = httpx.post(f"{first.api}/responses", json=body, headers={"x-request-id": "moved-1"}).json()
    with psycopg.connect(database_url, autocommit=True) as connection:
        eventually(lambda: connection.execute(HAS_EVENTS).fetchone())
    second = start_server(**PACED, log_format="json")
    first.kill()
    end = eventually(lambda: found(second, "holdfast.responses", request_id="moved-1"), within=30)[0]
    assert (end["response_id"], end["status"], end["attempt"]) == (made["id"], "incomplete", 2)
    assert "took over 1 responses" in wait_for(second, "holdfast.claimer", level="warning")["msg"]
    released = wait_for(second, "holdfast.heartbeat", level="warning")
    replica = found(first, "holdfast.access")[0]["replica"]
    for server in (first, second):  # responses have their public ids, everywhere
        assert set(BARE_UUID.findall(server.said())) <= {replica, end["replica"]}
    assert released["msg"] == f"released 1 unfinished responses of replica {replica}, which is gone"


def test_without_access_lines_the_ends_of_responses_are_logged_all_the_same(
    start_server: StartServer,
) -> None:
    server = start_server(log_format="json", access_log="off")
    httpx.post(f"{server.api}/responses", json=HELLO).raise_for_status()
    wait_for(server, "holdfast.responses")
    assert found(server, "holdfast.access") == []


def test_an_outage_is_a_line_at_its_beginning_and_one_at_its_end(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(log_format="json", **PACED)
    name = str(conninfo_to_dict(database_url)["dbname"])
    with psycopg.connect(make_conninfo(database_url, dbname="postgres"), autocommit=True) as connection:
        connection.execute(f"alter database {name} allow_connections false")
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
        )
        began = wait_for(server, "holdfast.database")["msg"]
        connection.execute(f"alter database {name} allow_connections true")
    eventually(lambda: len(found(server, "holdfast.database")) == 2)
    ended = found(server, "holdfast.database")[-1]["msg"]
    assert began.startswith("the database does not answer: ")
    assert re.fullmatch(r"the database is back after \d+\.\d s", ended)


def test_a_limit_that_is_reached_and_a_key_that_is_refused_are_one_line_however_often(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(log_format="json", max_of_tenant=1, **PACED)
    key = make_key(database_url)
    headers = {"authorization": f"Bearer {key.text}"}
    with create(server.url, HELLO, key=key.text) as stream:
        stream.take(3)
        for _ in range(5):
            assert httpx.post(f"{server.api}/responses", json=HELLO, headers=headers).status_code == 429
            assert httpx.get(f"{server.api}/models").status_code == 401
    eventually(lambda: len(found(server, "holdfast.access", status=401)) == 5)
    (limit,) = found(server, "holdfast.errors", limit="unfinished responses")
    assert (limit["tenant"], limit["level"]) == ("default", "warning")
    refused = [line for line in found(server, "holdfast.errors") if "API key" in line["msg"]]
    assert len(refused) == 1
    assert key.text.rpartition("_")[2] not in server.said()


def test_a_server_whose_standard_error_nobody_reads_goes_on_answering(
    database_url: str, connect: Connect
) -> None:
    server = ServerProcess(database_url, settings={"engine": "scripted", "log_format": "json"})
    read, write = os.pipe()
    try:
        server.launch(standard_error=write)
        eventually(lambda: is_ready(server), within=60)
        client = connect(server)
        for _ in range(400):  # some 250 bytes a line, and a pipe has 64 KiB
            client.models.list()
        assert client.responses.create(model=MODEL, input="Hello").status == "completed"
    finally:
        server.stop()
        os.close(write)
        os.close(read)


def is_ready(server: ServerProcess) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{server.url}/health/ready").status_code == 200
    return False
