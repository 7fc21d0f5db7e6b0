"""The WebSocket on /v1/responses: the same events as over HTTP, one response after the other."""

import httpx
import psycopg
import pytest

from tests.acceptance.error_object import check_error
from tests.acceptance.sdk_types import check_event, check_response
from tests.acceptance.test_keys import make_key
from tests.acceptance.traces import as_uuid, tables_with
from tests.fix_server import PACED, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.sse import replay
from tests.support.websocket import Json, Refused, WebSocket

HELLO = {"model": MODEL, "input": "Hello"}
UNSTORED = {**HELLO, "store": False}
CREATE = {"type": "response.create", **HELLO}
NEVER_MADE = "resp_" + "0" * 32


def kinds(events: list[Json]) -> list[str]:
    return [event["type"] for event in events]


def code(events: list[Json]) -> str:
    """The code of the error that was told in place of a response."""
    (told,) = events
    assert told["type"] == "error"
    assert set(told) == {"type", "status", "error"}
    assert set(told["error"]) == {"type", "code", "message", "param"}
    found: str = told["error"]["code"]
    return found


def said(events: list[Json]) -> str:
    text: str = events[-1]["response"]["output"][0]["content"][0]["text"]
    return text


def test_messages_are_the_events_of_a_stream(scripted_server: ServerProcess) -> None:
    with WebSocket(scripted_server.url) as socket:
        events = socket.turn(HELLO)
    with replay(scripted_server.url, events[0]["response"]["id"]) as stream:
        assert [frame.json for frame in stream] == events


def test_every_message_is_an_event_of_openais(scripted_server: ServerProcess) -> None:
    with WebSocket(scripted_server.url) as socket:
        socket.send(CREATE)
        text = ""
        while '"type":"response.completed"' not in text:
            text = socket.receive_text()
            check_event(text)


def test_events_repeat_the_id_of_their_stream(scripted_server: ServerProcess) -> None:
    with WebSocket(scripted_server.url) as socket:
        assert {event["stream_id"] for event in socket.turn({**HELLO, "stream_id": 'a "lane"'})} == {
            'a "lane"'
        }
        (refused,) = socket.turn({**HELLO, "stream_id": "b", "model": "gpt-9"})
        assert refused["stream_id"] == "b"
        assert all("stream_id" not in event for event in socket.turn(HELLO))


def test_responses_that_were_asked_for_at_once_come_one_after_the_other(paced_server: ServerProcess) -> None:
    with WebSocket(paced_server.url) as socket:
        for lane in "abc":
            socket.send({**CREATE, "stream_id": lane, "max_output_tokens": 5})
        lanes = [event["stream_id"] for _ in range(3) for event in socket.rest()]
    assert lanes == sorted(lanes)
    assert set(lanes) == set("abc")


def test_client_that_asks_for_too_much_at_once_is_told_so(paced_server: ServerProcess) -> None:
    with WebSocket(paced_server.url) as socket:
        socket.send(CREATE)
        socket.receive()
        for _ in range(17):
            socket.send(CREATE)
        told = socket.receive()
        while told["type"] != "error":
            told = socket.receive()
    assert (told["status"], told["error"]["code"]) == (429, "rate_limit_exceeded")


def test_model_remembers_what_an_unstored_response_on_the_connection_was_told(
    demo_server: ServerProcess,
) -> None:
    with WebSocket(demo_server.url) as socket:
        told = socket.turn({**UNSTORED, "input": "My name is Xiomara."})
        asked = socket.turn(
            {**UNSTORED, "input": "What is my name?", "previous_response_id": told[-1]["response"]["id"]}
        )
    assert "Xiomara" in said(asked)
    assert asked[-1]["response"]["previous_response_id"] == told[-1]["response"]["id"]


def test_unstored_responses_leave_nothing_in_the_database(
    start_server: StartServer, database_url: str
) -> None:
    with WebSocket(start_server().url) as socket:
        first = socket.turn({**UNSTORED, "input": "Mellifluous"})[-1]["response"]["id"]
        second = socket.turn({**UNSTORED, "previous_response_id": first})[-1]["response"]["id"]
        with psycopg.connect(database_url, autocommit=True) as connection:
            assert tables_with(connection, "Mellifluous") == []
            for response_id in (first, second):
                assert tables_with(connection, as_uuid(response_id)) == ["usage_ledger"]


def test_stored_response_can_be_gone_on_from_over_any_transport(scripted_server: ServerProcess) -> None:
    with WebSocket(scripted_server.url) as socket:
        first = socket.turn(HELLO)[-1]["response"]["id"]
    with WebSocket(scripted_server.url) as socket:
        second = socket.turn({**HELLO, "previous_response_id": first})[-1]["response"]
    answer = httpx.post(
        f"{scripted_server.api}/responses", json={**HELLO, "previous_response_id": first}
    ).json()
    assert answer["output"][0]["content"] == second["output"][0]["content"]
    assert httpx.get(f"{scripted_server.api}/responses/{second['id']}").json() == second


def test_unstored_response_is_unknown_to_other_connections(scripted_server: ServerProcess) -> None:
    with WebSocket(scripted_server.url) as socket, WebSocket(scripted_server.url) as other:
        made = socket.turn(UNSTORED)[-1]["response"]["id"]
        assert code(other.turn({**UNSTORED, "previous_response_id": made})) == "previous_response_not_found"
        assert kinds(other.turn(UNSTORED))[-1] == "response.completed"


def test_failed_turn_makes_the_connection_forget_what_it_went_on_from(scripted_server: ServerProcess) -> None:
    unmatched = [{"type": "function_call_output", "call_id": "call_never", "output": "42"}]
    with WebSocket(scripted_server.url) as socket:
        first = socket.turn(UNSTORED)[-1]["response"]["id"]
        going_on = {**UNSTORED, "previous_response_id": first}
        second = socket.turn(going_on)[-1]["response"]["id"]
        (failed,) = socket.turn({**going_on, "input": unmatched})
        assert (failed["status"], failed["error"]["param"]) == (400, "input")
        assert code(socket.turn(going_on)) == "previous_response_not_found"
        going_on["previous_response_id"] = second
        assert kinds(socket.turn(going_on))[-1] == "response.completed"


def test_response_that_fails_while_it_runs_is_forgotten_and_what_it_went_on_from_too(
    start_server: StartServer,
) -> None:
    server = start_server(scripted_fault="crash@3")
    with WebSocket(server.url) as socket:
        warm = socket.turn({**UNSTORED, "generate": False})[-1]["response"]["id"]
        failed = socket.turn({**UNSTORED, "previous_response_id": warm})
        assert kinds(failed)[-1] == "response.failed"
        for gone in (warm, failed[-1]["response"]["id"]):
            told = socket.turn({**UNSTORED, "previous_response_id": gone})
            assert code(told) == "previous_response_not_found"


def test_stored_response_cannot_go_on_from_an_unstored_one(scripted_server: ServerProcess) -> None:
    with WebSocket(scripted_server.url) as socket:
        first = socket.turn(UNSTORED)[-1]["response"]["id"]
        (refused,) = socket.turn({**HELLO, "previous_response_id": first})
    assert (refused["status"], refused["error"]["param"]) == (400, "store")


def test_chain_on_a_connection_is_no_longer_than_one_request_may_be(start_server: StartServer) -> None:
    with WebSocket(start_server(max_body_bytes=2000).url) as socket:
        first = socket.turn({**UNSTORED, "metadata": {"long": "x" * 500}})[-1]["response"]["id"]
        going_on = {**UNSTORED, "metadata": {"long": "x" * 500}, "previous_response_id": first}
        second = socket.turn(going_on)[-1]["response"]["id"]
        going_on["previous_response_id"] = second
        assert code(socket.turn({**going_on, "input": "x" * 500})) == "request_too_large"


@pytest.mark.parametrize(
    ("param", "value"), [("stream", False), ("stream_options", {}), ("background", True)]
)
def test_parameters_of_http_do_nothing_over_a_websocket(
    scripted_server: ServerProcess, param: str, value: object
) -> None:
    with WebSocket(scripted_server.url) as socket:
        events = socket.turn({**HELLO, param: value})
    assert "response.output_text.delta" in kinds(events)
    assert kinds(events)[-1] == "response.completed"
    assert events[-1]["response"]["background"] is False


@pytest.mark.parametrize("store", [True, False])
def test_response_that_is_not_generated_can_be_gone_on_from(
    scripted_server: ServerProcess, scripted_database: str, store: bool
) -> None:
    warm_up = {"model": MODEL, "store": store, "input": "A long instruction. " * 20, "generate": False}
    with WebSocket(scripted_server.url) as socket:
        events = socket.turn(warm_up)
        assert kinds(events) == ["response.created", "response.in_progress", "response.completed"]
        warm = check_response(httpx.Response(200, json=events[-1]["response"]).content)
        assert (warm.status, warm.output) == ("completed", [])
        assert warm.usage is not None
        assert warm.usage.output_tokens == 0
        answer = socket.turn({**HELLO, "store": store, "previous_response_id": warm.id})[-1]["response"]
    assert answer["usage"]["input_tokens"] > warm.usage.input_tokens
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] > warm.usage.input_tokens / 2
    with psycopg.connect(scripted_database, autocommit=True) as connection:
        query = "select input_tokens, output_tokens from usage_ledger where response_id = %s"
        metered = connection.execute(query, (as_uuid(warm.id),)).fetchall()
    assert metered == [(warm.usage.input_tokens, 0)]


def test_steering_is_refused_while_the_response_goes_on(paced_server: ServerProcess) -> None:
    with WebSocket(paced_server.url) as socket:
        socket.send({**CREATE, "max_output_tokens": 50})
        running = socket.receive()["response"]["id"]
        steer = {"type": "response.steer", "previous_response_id": running, "input": "Faster!"}
        socket.send(steer)
        events = socket.rest()
    (told,) = [event for event in events if event["type"] == "response.steer.failed"]
    assert told["error"]["code"] == "steering_not_supported"
    assert told["steer"] == {"previous_response_id": running, "input": "Faster!"}
    assert events[-1]["response"]["usage"]["output_tokens"] == 50


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        '{"type":"response.create"}',
        '{"type":"response.destroy"}',
        '{"type":"response.create","model":"holdfast-demo","input":"a\\u0000"}',
        '{"type":"response.create","model":7,"input":"a"}',
        '{"type":"response.create","model":"holdfast-demo","input":' + "[" * 9000,
        '{"type":"response.steer"}',
    ],
    ids=range(11),
)
def test_message_that_cannot_be_read_is_an_error_and_the_connection_goes_on(
    scripted_server: ServerProcess, text: str
) -> None:
    with WebSocket(scripted_server.url) as socket:
        socket.send_text(text)
        told = socket.receive()
        assert (told["type"], told["status"]) == ("error", 400)
        assert kinds(socket.turn(HELLO))[-1] == "response.completed"


def test_message_that_is_too_long_closes_the_connection(start_server: StartServer) -> None:
    server = start_server(max_body_bytes=2000)
    with WebSocket(server.url) as socket:
        socket.send_text("x" * 3000)
        assert socket.wait_closed() == 1009
    with WebSocket(server.url) as socket:
        socket.send_text('"' + "é" * 1500 + '"')
        assert code([socket.receive()]) == "request_too_large"


def test_connection_ends_when_its_time_is_over(start_server: StartServer) -> None:
    with WebSocket(start_server(websocket_seconds=1).url) as socket:
        assert kinds(socket.turn(HELLO))[-1] == "response.completed"
        assert code([socket.receive()]) == "websocket_connection_limit_reached"
        assert socket.wait_closed() == 1000


def test_response_that_runs_when_the_time_is_over_is_told_to_its_end(start_server: StartServer) -> None:
    server = start_server(websocket_seconds=1, **{**PACED, "scripted_tokens": 80})
    with WebSocket(server.url) as socket:
        assert kinds(socket.turn(HELLO))[-1] == "response.completed"
        assert code([socket.receive()]) == "websocket_connection_limit_reached"


def test_server_that_shuts_down_closes_connections_once_they_are_idle(start_server: StartServer) -> None:
    server = start_server(**{**PACED, "scripted_tokens": 30})
    with WebSocket(server.url) as busy, WebSocket(server.url) as idle:
        busy.send(CREATE)
        busy.receive()
        server.ask_to_end()
        assert idle.wait_closed() == 1001
        assert kinds(busy.rest())[-1] == "response.completed"
        assert busy.wait_closed() == 1001
    assert server.wait() == 0


def test_unstored_response_stops_at_once_when_its_client_hangs_up(
    start_server: StartServer, database_url: str
) -> None:
    with WebSocket(start_server(**PACED, grace_seconds=60).url) as socket:
        socket.send({**CREATE, "store": False})
        for _ in range(10):
            socket.receive()
    query = "select status, stored, output_tokens < 500 from usage_ledger"
    with psycopg.connect(database_url, autocommit=True) as connection:
        eventually(lambda: connection.execute(query).fetchall() == [("cancelled", False, True)])


def test_stored_response_waits_a_while_for_its_client(paced_server: ServerProcess) -> None:
    with WebSocket(paced_server.url) as socket:
        socket.send(CREATE)
        response_id = socket.receive()["response"]["id"]
    address = f"{paced_server.api}/responses/{response_id}"
    with replay(paced_server.url, response_id) as stream:
        stream.take(75)  # a second and a half, three times the grace
        assert httpx.get(address).json()["status"] == "in_progress"
    eventually(lambda: httpx.get(address).json()["status"] == "cancelled")


def test_connection_needs_a_key_once_there_is_one(start_server: StartServer, database_url: str) -> None:
    server = start_server()
    with WebSocket(server.url) as early:
        key = make_key(database_url)
        for headers in ({}, {"authorization": "Bearer hk_wrong"}):
            with pytest.raises(Refused) as refused:
                WebSocket(server.url, headers=headers)
            assert refused.value.status == 401
            assert b'"code":"invalid_api_key"' in refused.value.body
        assert code(early.turn(HELLO)) == "invalid_api_key"
    with WebSocket(server.url, headers={"authorization": f"Bearer {key.text}"}) as socket:
        assert kinds(socket.turn(HELLO))[-1] == "response.completed"
        run_command("keys", "revoke", key.id, database_url=database_url)
        assert code(socket.turn(HELLO)) == "invalid_api_key"


def test_page_of_another_site_is_refused_without_a_key(start_server: StartServer, database_url: str) -> None:
    server = start_server()
    foreign = {"origin": "https://example.com"}
    with pytest.raises(Refused) as refused:
        WebSocket(server.url, headers=foreign)
    assert refused.value.status == 403
    with WebSocket(server.url, headers={"origin": server.url}) as socket:
        assert kinds(socket.turn(HELLO))[-1] == "response.completed"
    key = make_key(database_url)
    with WebSocket(server.url, headers={**foreign, "authorization": f"Bearer {key.text}"}) as socket:
        assert kinds(socket.turn(HELLO))[-1] == "response.completed"


def test_other_addresses_take_no_websocket(scripted_server: ServerProcess) -> None:
    with pytest.raises(Refused) as refused:
        WebSocket(scripted_server.url, path=f"/v1/responses/{NEVER_MADE}")
    assert refused.value.status == 403


@pytest.mark.parametrize(
    "left",
    [
        {},
        {"Upgrade": "websocket"},
        {"Connection": "keep-alive"},
        {"Connection": "close", "Authorization": "x"},
    ],
    ids=["neither", "no connection", "no upgrade", "a bad key"],
)
def test_handshake_that_a_proxy_made_plain_http_is_told_so_at_once(
    scripted_server: ServerProcess, left: dict[str, str]
) -> None:
    handshake = {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    answer = httpx.get(f"{scripted_server.api}/responses", headers={**handshake, **left})
    error = check_error(answer, 426, "invalid_request_error")
    assert (error["code"], answer.headers["upgrade"]) == ("upgrade_required", "websocket")
    assert "proxy" in error["message"]
    assert answer.headers["x-should-retry"] == "false"


def test_only_handshakes_of_websockets_are_taken_for_such(scripted_server: ServerProcess) -> None:
    address, handshake = f"{scripted_server.api}/responses", {"Sec-WebSocket-Version": "13"}
    assert httpx.get(address).status_code == 200
    assert httpx.post(address, headers=handshake, json=HELLO).status_code == 200
    assert httpx.get(f"{address}/{NEVER_MADE}", headers=handshake).status_code == 404
    check_error(httpx.put(address, headers=handshake), 405, "invalid_request_error")
