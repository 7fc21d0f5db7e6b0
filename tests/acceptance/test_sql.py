"""What people who know SQL find: every event as the client received it, the metering, and nothing secret."""

import json
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.traces import as_uuid, tables_with
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import Frame, create

HELLO = {"model": MODEL, "input": "Hello"}
CANARY = "xylophonist"

EVENTS = """
    select sequence_number, type, output_index, item_id, delta, payload::text
    from v_events where tenant = 'default' and response_id = %s order by sequence_number
"""


def as_row(frame: Frame) -> tuple[Any, ...]:
    """What the view shows of an event that a client received."""
    body = frame.json
    delta = body.get("delta")
    return (
        body["sequence_number"],
        body["type"],
        body.get("output_index"),
        body.get("item_id", body.get("item", {}).get("id")),
        delta,
        None if delta is not None else frame.data,
    )


def test_view_shows_every_event_of_finished_response(
    scripted_server: ServerProcess, scripted_database: str
) -> None:
    with create(scripted_server.url, HELLO) as stream:
        frames = list(stream)
    with psycopg.connect(scripted_database) as connection:
        rows = connection.execute(EVENTS, [frames[0].json["response"]["id"]]).fetchall()
    assert rows == [as_row(frame) for frame in frames]


def test_view_shows_every_event_of_running_response(paced_server: ServerProcess, paced_database: str) -> None:
    with (
        create(paced_server.url, HELLO) as stream,
        psycopg.connect(paced_database, autocommit=True) as connection,
    ):
        frames = stream.take(30)
        rows = connection.execute(EVENTS, [frames[0].json["response"]["id"]]).fetchall()
    assert len(rows) >= 30
    assert rows[:30] == [as_row(frame) for frame in frames]


def test_view_shows_thoughts_and_any_characters(demo_server: ServerProcess, demo_database: str) -> None:
    request = {"model": MODEL, "input": 'Say ünïcödé 😀 "x" \\n', "reasoning": {"effort": "high"}}
    with create(demo_server.url, request) as stream:
        frames = list(stream)
    with psycopg.connect(demo_database) as connection:
        rows = connection.execute(EVENTS, [frames[0].json["response"]["id"]]).fetchall()
    assert rows == [as_row(frame) for frame in frames]
    assert "response.reasoning_text.delta" in {row[1] for row in rows}


def test_columns_tell_what_response_says(scripted_server: ServerProcess, scripted_database: str) -> None:
    asked = {**HELLO, "metadata": {"topic": "columns"}}
    response = httpx.post(f"{scripted_server.api}/responses", json=asked).json()
    with psycopg.connect(scripted_database) as connection:
        row = connection.execute(
            "select status, model, input_tokens, output_tokens, metadata, first_token_at <= finished_at"
            " from responses where id = %s",
            [response["id"].removeprefix("resp_")],
        ).fetchone()
        items = connection.execute(
            "select side, role, payload #>> '{content,0,text}' from items where response_id = %s order by 1",
            [response["id"].removeprefix("resp_")],
        ).fetchall()
    usage = response["usage"]
    assert row == (
        "completed",
        MODEL,
        usage["input_tokens"],
        usage["output_tokens"],
        {"topic": "columns"},
        True,
    )
    assert items == [(0, "user", "Hello"), (1, "assistant", response["output"][0]["content"][0]["text"])]


@pytest.mark.parametrize("stored", [True, False])
def test_ledger_has_one_line_of_every_response(
    scripted_server: ServerProcess, scripted_database: str, stored: bool
) -> None:
    response = httpx.post(f"{scripted_server.api}/responses", json={**HELLO, "store": stored}).json()
    with psycopg.connect(scripted_database) as connection:
        rows = connection.execute(
            "select tenant, key_id, model, status, stored, input_tokens, cached_tokens, output_tokens,"
            " reasoning_tokens, started_at <= finished_at from usage_ledger where response_id = %s",
            [response["id"].removeprefix("resp_")],
        ).fetchall()
    usage = response["usage"]
    counts = (
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["output_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"],
    )
    assert rows == [("default", None, MODEL, "completed", stored, *counts, True)]


def test_ledger_loses_the_tags_of_a_deleted_response(
    scripted_server: ServerProcess, scripted_database: str
) -> None:
    asked = {**HELLO, "metadata": {"topic": "tags"}, "user": "tagged"}
    response = httpx.post(f"{scripted_server.api}/responses", json=asked).json()
    tags = "select metadata from admin.usage where end_user = 'tagged'"
    with psycopg.connect(scripted_database, autocommit=True) as connection:
        assert connection.execute(tags).fetchall() == [({"topic": "tags"},)]
        httpx.delete(f"{scripted_server.api}/responses/{response['id']}")
        assert connection.execute(tags).fetchall() == [(None,)]


@pytest.mark.parametrize("stream", [True, False])
def test_response_that_is_not_stored_leaves_no_content(
    scripted_server: ServerProcess, scripted_database: str, stream: bool
) -> None:
    secret = {
        "model": MODEL,
        "store": False,
        "stream": stream,
        "input": f"My name is {CANARY}.",
        "instructions": f"Never say {CANARY}.",
        "metadata": {"note": CANARY},
        "user": "person-4711",
        "seed": 987654321,
        "temperature": 1,
    }
    answer = httpx.post(f"{scripted_server.api}/responses", json=secret)
    body = answer.text if not stream else answer.text.split("data: ")[-2].split("\n")[0]
    response = json.loads(body) if not stream else json.loads(body)["response"]
    text = response["output"][0]["content"][0]["text"]
    with psycopg.connect(scripted_database, autocommit=True) as connection:
        eventually(lambda: tables_with(connection, as_uuid(response["id"])) == ["usage_ledger"])
        for trace in (CANARY, CANARY.encode().hex(), text, "987654321"):
            assert tables_with(connection, trace) == []
        metered = tables_with(connection, "person-4711")
        assert set(metered) <= {"usage_ledger", "usage_changes", "user_days"}, "its end user is metering"
    assert CANARY not in scripted_server.said()
