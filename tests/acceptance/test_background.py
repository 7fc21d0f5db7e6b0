"""Background responses: answered at once, generated without a reader, cancelled from anywhere."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest
from openai import OpenAI

from server.store.cluster import claims
from server.store.database import Database
from tests.acceptance.error_object import check_error
from tests.acceptance.sdk_types import check_response
from tests.fix_server import PACED, SCRIPTED, Connect, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import DONE, create, parse, replay, text_of

ASK = {"model": MODEL, "input": "Go on.", "background": True}


def get(server: ServerProcess, response_id: str) -> httpx.Response:
    return httpx.get(f"{server.api}/responses/{response_id}", timeout=60)


def status(server: ServerProcess, response_id: str) -> str:
    found: str = get(server, response_id).json()["status"]
    return found


def ended(server: ServerProcess, response_id: str) -> dict[str, Any]:
    eventually(lambda: status(server, response_id) not in ("queued", "in_progress"), within=60)
    found: dict[str, Any] = get(server, response_id).json()
    return found


def test_background_response_is_queued_at_once_and_completes_without_a_reader(
    scripted_server: ServerProcess,
) -> None:
    answer = httpx.post(f"{scripted_server.api}/responses", json=ASK)
    assert answer.status_code == 200
    assert answer.json()["background"] is True
    assert answer.json()["status"] in ("queued", "in_progress", "completed")
    final = ended(scripted_server, answer.json()["id"])
    assert final["status"] == "completed"
    check_response(get(scripted_server, answer.json()["id"]).content)


@pytest.mark.parametrize("window", ["2h", "8h"])
def test_background_response_with_a_window_completes_where_nothing_else_runs(
    start_server: StartServer, window: str
) -> None:
    server = start_server(**SCRIPTED)
    options = {"background_options": {"completion_window": window}}
    answer = httpx.post(f"{server.api}/responses", json={**ASK, **options})
    assert answer.status_code == 200
    final = ended(server, answer.json()["id"])
    assert final["status"] == "completed"
    check_response(get(server, answer.json()["id"]).content)


def test_response_whose_window_has_ended_says_so(start_server: StartServer, database_url: str) -> None:
    server = start_server(**PACED)
    options = {"background_options": {"completion_window": "2h"}}
    response = httpx.post(f"{server.api}/responses", json={**ASK, **options}).json()["id"]
    eventually(lambda: status(server, response) == "in_progress", within=30)
    database = Database(database_url, pool_size=1)
    with database.begin() as connection:
        claims.request_cancel(connection, "default", UUID(response.removeprefix("resp_")), "window_ended")
    database.close()
    final = ended(server, response)
    assert (final["status"], final["cancel_reason"]) == ("cancelled", "window_ended")


def test_stream_of_a_background_response_begins_with_its_queue(scripted_server: ServerProcess) -> None:
    with create(scripted_server.url, ASK) as stream:
        frames = list(stream)
    types = [frame.json["type"] for frame in frames]
    assert types[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert [frame.json["response"]["status"] for frame in frames[:3]] == ["queued", "queued", "in_progress"]
    assert types[-1] == "response.completed"
    assert [frame.number for frame in frames] == list(range(len(frames)))


def test_background_response_outlives_every_reader_and_each_reader_sees_all_of_it(
    paced_server: ServerProcess,
) -> None:
    with create(paced_server.url, {**ASK, "max_output_tokens": 100}) as stream:
        seen = stream.take(6)
    response_id = seen[0].json["response"]["id"]
    with replay(paced_server.url, response_id, seen[-1].number) as rest:
        seen += list(rest)
    assert [frame.number for frame in seen] == list(range(len(seen)))
    final = ended(paced_server, response_id)
    assert final["status"] == "incomplete"
    assert seen[-1].json["response"] == final
    assert text_of(seen) == final["output"][0]["content"][0]["text"]


@pytest.mark.parametrize("how_it_ends", ["completed", "cancelled"])
def test_unstored_background_response_can_be_read_for_ten_minutes_after_its_end(
    start_server: StartServer, database_url: str, how_it_ends: str
) -> None:
    paced = PACED if how_it_ends == "cancelled" else {}
    server = start_server(**paced, send_seconds=0.1, purge_seconds=0.1)
    begun = httpx.post(f"{server.api}/responses", json={**ASK, "store": False}).json()
    assert begun["status"] == "queued"  # also if a thread has taken it since
    assert (begun["store"], begun["background"]) == (False, True)
    if how_it_ends == "cancelled":
        httpx.post(f"{server.api}/responses/{begun['id']}/cancel", timeout=60)
    found = ended(server, begun["id"])
    check_response(get(server, begun["id"]).content)
    assert (found["status"], found["store"]) == (how_it_ends, False)
    with replay(server.url, begun["id"]) as stream:
        assert parse(stream.read())[-1].json["response"] == found
    with psycopg.connect(database_url, autocommit=True) as connection:
        row = connection.execute("select expires_at - finished_at from responses").fetchone()
        assert row == (timedelta(minutes=10),)
        connection.execute("update responses set expires_at = 'epoch'")
    eventually(lambda: get(server, begun["id"]).status_code == 404, within=60)


def test_unstored_background_response_is_finished_after_a_crash(start_server: StartServer) -> None:
    server = start_server(**PACED)
    body = {**ASK, "store": False, "max_output_tokens": 60}
    begun = httpx.post(f"{server.api}/responses", json=body).json()
    eventually(lambda: status(server, begun["id"]) == "in_progress", within=60)
    server.kill()
    server.start()
    assert ended(server, begun["id"])["status"] == "incomplete"


@pytest.mark.parametrize("background", [True, False])
def test_cancelled_response_says_so_and_keeps_what_it_had(
    paced_server: ServerProcess, connect: Connect, background: bool
) -> None:
    client: OpenAI = connect(paced_server)
    with create(paced_server.url, {**ASK, "background": background}) as stream:
        seen = stream.take(12)
        response_id = seen[0].json["response"]["id"]
        cancelled = client.responses.cancel(response_id)
        seen += list(stream)
    assert cancelled.status == "cancelled"
    assert cancelled.model_extra == {"cancel_reason": "client_request", **(cancelled.model_extra or {})}
    assert cancelled.incomplete_details is None
    assert seen[-1].json["response"]["cancel_reason"] == "client_request"
    assert [frame.number for frame in seen] == list(range(len(seen)))
    assert seen[-1].json["type"] == "response.incomplete"
    assert seen[-1].json["response"]["status"] == "cancelled"
    assert cancelled.output_text
    assert cancelled.output_text == text_of(seen)
    assert cancelled.output[0].status == "incomplete"  # type: ignore[union-attr]
    again = client.responses.cancel(response_id)
    assert again.model_dump() == cancelled.model_dump() == client.responses.retrieve(response_id).model_dump()


def test_cancelling_a_finished_background_response_gives_it_back_as_it_is(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    client = connect(scripted_server)
    begun = client.responses.create(model=MODEL, input="Hello", background=True)
    with client.responses.retrieve(begun.id, stream=True) as events:
        assert [event.type for event in events][-1] == "response.completed"
    done = client.responses.retrieve(begun.id)
    assert done.status == "completed"
    assert client.responses.cancel(done.id).model_dump() == done.model_dump()


@pytest.mark.parametrize("body", [{}, {"max_output_tokens": 2}])
def test_finished_foreground_response_cannot_be_cancelled(
    scripted_server: ServerProcess, body: dict[str, object]
) -> None:
    done = httpx.post(f"{scripted_server.api}/responses", json={**ASK, "background": False, **body}).json()
    answer = httpx.post(f"{scripted_server.api}/responses/{done['id']}/cancel")
    error = check_error(answer, 400, "invalid_request_error")
    assert (error["message"], error["param"]) == ("Cannot cancel a synchronous response.", None)


def test_cancelling_what_does_not_exist_is_a_404(scripted_server: ServerProcess) -> None:
    for response_id in ("resp_" + "0" * 32, "nonsense"):
        answer = httpx.post(f"{scripted_server.api}/responses/{response_id}/cancel")
        check_error(answer, 404, "invalid_request_error")


def test_response_cancelled_in_the_queue_uses_no_token(start_server: StartServer) -> None:
    server = start_server(**{**PACED, "max_running": 1})
    first = httpx.post(f"{server.api}/responses", json=ASK).json()["id"]
    eventually(lambda: status(server, first) == "in_progress")
    second = httpx.post(f"{server.api}/responses", json=ASK).json()
    assert second["status"] == "queued"
    cancelled = httpx.post(f"{server.api}/responses/{second['id']}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["usage"]["output_tokens"] == 0
    assert status(server, first) == "in_progress"
    with replay(server.url, second["id"]) as stream:
        types = [frame.json["type"] for frame in stream]
    assert types == ["response.created", "response.queued", "response.incomplete"]


def test_deleting_a_running_background_response_ends_its_stream_and_leaves_nothing(
    paced_server: ServerProcess,
) -> None:
    with create(paced_server.url, ASK) as stream:
        response_id = stream.take(8)[0].json["response"]["id"]
        assert httpx.delete(f"{paced_server.api}/responses/{response_id}").json()["deleted"] is True
        assert get(paced_server, response_id).status_code == 404
        stream.read()
    assert get(paced_server, response_id).status_code == 404


def test_background_response_goes_on_after_kill_nine_and_ends_with_the_text_it_would_have_had(
    start_server: StartServer,
) -> None:
    server = start_server(scripted_tokens=200, scripted_step_seconds=0.01)
    ask = {**ASK, "seed": 11, "temperature": 1}
    with create(server.url, ask) as uncut:
        whole = parse(uncut.read())
    with create(server.url, ask) as stream:
        seen = b"".join(frame.raw for frame in stream.take(60))
        server.kill()
    response_id = parse(seen)[0].json["response"]["id"]
    server.start()
    final = ended(server, response_id)
    assert final["status"] == "completed"
    with replay(server.url, response_id) as again:
        raw = again.read()
    frames = parse(raw)
    assert raw.startswith(seen)
    assert raw.endswith(DONE)
    assert [frame.number for frame in frames] == list(range(len(frames)))
    assert text_of(frames) == text_of(whole)
    assert frames[-1].json["response"]["usage"] == whole[-1].json["response"]["usage"] | {
        "input_tokens_details": frames[-1].json["response"]["usage"]["input_tokens_details"]
    }


def test_background_work_is_handed_to_another_replica_when_one_is_stopped(start_server: StartServer) -> None:
    first = start_server(scripted_tokens=150, scripted_step_seconds=0.02)
    with create(first.url, {**ASK, "temperature": 0}) as stream:
        response_id = stream.take(8)[0].json["response"]["id"]
        second = start_server(scripted_tokens=150, scripted_step_seconds=0.02)
        first.ask_to_end()
        with replay(second.url, response_id) as follower:
            frames = list(follower)
    assert first.wait() == 0
    assert [frame.number for frame in frames] == list(range(len(frames)))
    assert frames[-1].json["type"] == "response.completed"
    assert frames[-1].json["response"]["usage"]["output_tokens"] == 150


def test_another_replica_finishes_what_a_killed_one_was_generating_and_its_readers_only_wait(
    start_server: StartServer,
) -> None:
    first = start_server(scripted_tokens=100, scripted_step_seconds=0.02)
    second = start_server(scripted_tokens=100, scripted_step_seconds=0.02)
    ids = [
        httpx.post(f"{first.api}/responses", json={**ASK, "input": f"Go on, {n}."}).json()["id"]
        for n in range(4)
    ]
    with replay(second.url, ids[0]) as follower:
        frames = follower.take(10)
        first.kill()
        frames += list(follower)
    assert [frame.number for frame in frames] == list(range(len(frames)))
    assert frames[-1].json["type"] == "response.completed"
    assert [ended(second, response_id)["status"] for response_id in ids] == ["completed"] * 4


def test_cancel_and_delete_reach_a_response_on_another_replica_with_their_reason(
    start_server: StartServer, database_url: str
) -> None:
    first = start_server(**PACED)
    running = [httpx.post(f"{first.api}/responses", json=ASK).json()["id"] for _ in range(2)]
    eventually(lambda: all(status(first, response_id) == "in_progress" for response_id in running))
    second = start_server(**PACED)
    answer = httpx.post(f"{second.api}/responses/{running[0]}/cancel", timeout=60).json()
    assert (answer["status"], answer["cancel_reason"]) == ("cancelled", "client_request")
    assert httpx.delete(f"{second.api}/responses/{running[1]}").status_code == 200
    assert [get(server, running[1]).status_code for server in (first, second)] == [404, 404]
    reasons = "select cancel_reason from usage_ledger where status = 'cancelled' order by 1"
    with psycopg.connect(database_url, autocommit=True) as connection:
        eventually(
            lambda: connection.execute(reasons).fetchall() == [("client_request",), ("deleted",)], within=30
        )
