"""Clients that leave: a stored response waits a while for them, one that is not stored does not."""

import httpx
import psycopg
import pytest

from tests.acceptance.traces import as_uuid, tables_with
from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create, parse, replay, text_of

LONG = {"model": MODEL, "input": "Hello"}
"""Minutes on the paced server, whose grace is half a second."""


def status(server: ServerProcess, response_id: str) -> str:
    found: str = httpx.get(f"{server.api}/responses/{response_id}").json()["status"]
    return found


def leave_after(server: ServerProcess, events: int) -> str:
    """The id of a response whose only client has hung up after so many events."""
    with create(server.url, LONG) as stream:
        response_id: str = stream.take(events)[0].json["response"]["id"]
    return response_id


def test_stored_response_is_cancelled_when_its_client_stays_away(paced_server: ServerProcess) -> None:
    response_id = leave_after(paced_server, 10)
    assert status(paced_server, response_id) == "in_progress"
    eventually(lambda: status(paced_server, response_id) == "cancelled")
    kept = httpx.get(f"{paced_server.api}/responses/{response_id}").json()
    with replay(paced_server.url, response_id) as stream:
        frames = parse(stream.read())
    assert frames[-1].event == "response.incomplete"
    assert frames[-1].json["response"] == kept
    assert kept["cancel_reason"] == "client_disconnect"
    assert kept["output"][0]["status"] == "incomplete"
    assert kept["output"][0]["content"][0]["text"] == text_of(frames)
    assert 10 < kept["usage"]["output_tokens"] < 500


def test_stored_response_goes_on_when_its_client_comes_back_in_time(paced_server: ServerProcess) -> None:
    response_id = leave_after(paced_server, 10)
    with replay(paced_server.url, response_id, 9) as stream:
        frames = stream.take(75)  # a second and a half, three times the grace
        assert status(paced_server, response_id) == "in_progress"
    assert [frame.number for frame in frames] == list(range(10, 85))


def test_stored_response_goes_on_while_another_reader_is_left(paced_server: ServerProcess) -> None:
    with create(paced_server.url, LONG) as first:
        response_id = first.take(1)[0].json["response"]["id"]
        second = replay(paced_server.url, response_id)
        second.take(2)
    with second:
        second.take(60)
        assert status(paced_server, response_id) == "in_progress"


def test_stored_response_is_cancelled_when_client_without_stream_gives_up(
    paced_server: ServerProcess, paced_database: str
) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{paced_server.api}/responses", json={**LONG, "user": "impatient"}, timeout=0.5)
    query = "select status from responses where request->>'user' = 'impatient'"
    with psycopg.connect(paced_database, autocommit=True) as connection:
        eventually(lambda: connection.execute(query).fetchall() == [("cancelled",)])


def test_response_that_is_not_stored_stops_at_once_when_its_client_leaves(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(scripted_tokens=5000, scripted_step_seconds=0.02, grace_seconds=60)
    with create(server.url, {**LONG, "store": False}) as stream:
        stream.take(10)
    query = "select status, stored, output_tokens < 100 from usage_ledger"
    with psycopg.connect(database_url, autocommit=True) as connection:
        eventually(lambda: connection.execute(query).fetchall() == [("cancelled", False, True)])


def test_deleted_response_stops_and_leaves_nothing(paced_server: ServerProcess, paced_database: str) -> None:
    with create(paced_server.url, LONG) as stream:
        response_id = stream.take(10)[0].json["response"]["id"]
        address = f"{paced_server.api}/responses/{response_id}"
        assert httpx.delete(address).json() == {"id": response_id, "object": "response", "deleted": True}
        assert httpx.get(address).status_code == 404
        assert parse(stream.read())[-1].event == "response.incomplete"
    with psycopg.connect(paced_database, autocommit=True) as connection:
        eventually(lambda: tables_with(connection, as_uuid(response_id)) == ["usage_ledger"])
        assert tables_with(connection, response_id.removeprefix("resp_")) == ["audit_trail"]
