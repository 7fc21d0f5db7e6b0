"""SIGTERM: what runs may finish, what cannot is told so, and the exit code is 0."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPMessage

import httpx
import psycopg

from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import DONE, create, parse

HELLO = {"model": MODEL, "input": "Hello"}


def is_draining(server: ServerProcess) -> bool:
    return httpx.get(f"{server.url}/health/ready").status_code == 503


def test_running_stream_finishes_and_new_responses_are_refused_when_server_is_asked_to_end(
    start_server: StartServer,
) -> None:
    server = start_server(scripted_tokens=60, scripted_step_seconds=0.02)
    with create(server.url, HELLO) as stream:
        stream.take(5)
        server.ask_to_end()
        eventually(lambda: is_draining(server))
        refused = httpx.post(f"{server.api}/responses", json=HELLO)
        raw = stream.read()
    assert server.wait() == 0
    assert raw.endswith(DONE)
    assert parse(raw)[-1].event == "response.completed"
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["type"] == "server_error"


def test_stream_that_is_too_long_ends_failed_when_server_is_asked_to_end(start_server: StartServer) -> None:
    server = start_server(scripted_tokens=5000, scripted_step_seconds=0.02, drain_seconds=0.5)
    with create(server.url, HELLO) as stream:
        stream.take(5)
        server.ask_to_end()
        raw = stream.read()
    assert server.wait() == 0
    assert raw.endswith(DONE)
    final = parse(raw)[-1]
    assert final.event == "response.failed"
    server.start()
    kept = httpx.get(f"{server.api}/responses/{final.json['response']['id']}").json()
    assert kept == final.json["response"]
    assert "Traceback" not in server.said()


def test_response_that_is_being_accepted_when_server_is_asked_to_end_may_finish(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(scripted_tokens=60, scripted_step_seconds=0.02)
    first = httpx.post(f"{server.api}/responses", json={**HELLO, "max_output_tokens": 1}).json()
    follow_up = {**HELLO, "previous_response_id": first["id"]}

    def read() -> bytes:
        with create(server.url, follow_up) as stream:
            return stream.read()

    with ThreadPoolExecutor(1) as pool, psycopg.connect(database_url) as holder:
        holder.execute("select from responses for update")
        raw = pool.submit(read)
        eventually(lambda: waits_for_a_lock(database_url))
        server.ask_to_end()
        eventually(lambda: is_draining(server))
        refused = httpx.post(f"{server.api}/responses", json=HELLO)
        assert refused.status_code == 503, "what is being accepted keeps the server from its end"
        holder.rollback()
        assert parse(raw.result())[-1].event == "response.completed"
    assert server.wait() == 0


def waits_for_a_lock(database_url: str) -> bool:
    query = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with psycopg.connect(database_url) as connection:
        return connection.execute(query).fetchone() is not None


def test_responses_are_accepted_during_the_shutdown_delay_and_refused_after_it(
    start_server: StartServer,
) -> None:
    server = start_server(scripted_tokens=100, scripted_step_seconds=0.02, shutdown_delay_seconds=1)
    with create(server.url, HELLO) as first:
        first.take(5)
        server.ask_to_end()
        eventually(lambda: is_draining(server))
        with create(server.url, HELLO) as second:
            second.take(1)
            eventually(lambda: httpx.post(f"{server.api}/responses", json=HELLO | {"max_output_tokens": 1})
                       .status_code == 503)  # fmt: skip
            for stream in (first, second):
                assert parse(stream.read())[-1].event == "response.completed"
    assert server.wait() == 0


def test_connections_are_closed_after_their_answer_or_at_the_end_of_the_shutdown_delay(
    start_server: StartServer,
) -> None:
    server = start_server(scripted_tokens=300, scripted_step_seconds=0.02, shutdown_delay_seconds=4)
    busy, idle = (HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(2))
    with create(server.url, HELLO) as stream, closing(busy), closing(idle):
        assert headers_of(busy).get("connection") is None
        assert headers_of(idle).get("connection") is None
        stream.take(5)
        server.ask_to_end()
        eventually(lambda: is_draining(server))
        assert headers_of(busy)["connection"] == "close"
        assert idle.sock.recv(1) == b""
        assert not stream.response.isclosed()
        stream.read()
    assert server.wait() == 0


def test_connection_of_a_stream_that_began_before_the_signal_is_closed_when_it_ends_after_the_delay(
    start_server: StartServer,
) -> None:
    server = start_server(scripted_tokens=100, scripted_step_seconds=0.02)
    with create(server.url, HELLO) as other, closing(HTTPConnection("127.0.0.1", server.port)) as connection:
        body = json.dumps(HELLO | {"stream": True, "max_output_tokens": 40})
        connection.request("POST", "/v1/responses", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.headers.get("connection") is None
        assert answer.read(1)
        server.ask_to_end()
        assert answer.read().endswith(DONE)
        assert connection.sock.recv(1) == b""
        assert parse(other.read())[-1].event == "response.completed"
    assert server.wait() == 0


def headers_of(connection: HTTPConnection) -> HTTPMessage:
    connection.request("GET", "/v1/models")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    return answer.headers


def test_second_signal_ends_the_shutdown_delay(start_server: StartServer) -> None:
    server = start_server(shutdown_delay_seconds=3600)
    server.ask_to_end()
    eventually(lambda: is_draining(server))
    server.ask_to_end()
    assert server.wait() == 0


def test_stream_of_another_replicas_response_is_read_to_its_end_when_its_server_is_asked_to_end(
    start_server: StartServer,
) -> None:
    first, second = (start_server(scripted_tokens=400, scripted_step_seconds=0.02) for _ in range(2))
    with create(first.url, HELLO | {"background": True}) as stream:
        stream.take(5)
        first.ask_to_end()
        raw = stream.read()  # eight seconds: longer than the listener's last five
    assert parse(raw)[-1].event == "response.completed"
    assert first.wait() == 0
    assert httpx.get(f"{second.url}/health/ready").status_code == 200


def test_idle_server_ends_quietly(start_server: StartServer) -> None:
    server = start_server()
    httpx.post(f"{server.api}/responses", json=HELLO)
    server.ask_to_end()
    assert server.wait() == 0
    assert "Traceback" not in server.said()
    assert "ERROR" not in server.said()


def test_server_that_is_asked_where_it_is_says_so_and_goes_on(paced_server: ServerProcess) -> None:
    with create(paced_server.url, HELLO | {"max_output_tokens": 60}) as stream:
        stream.take(5)
        paced_server.say_where_it_is()
        raw = stream.read()
    assert parse(raw)[-1].event == "response.incomplete"
    eventually(lambda: "recorder.py" in paced_server.said() and "scripted" in paced_server.said())
