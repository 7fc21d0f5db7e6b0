"""Responses expire: as their request says, or the setting; what has expired is gone, and nothing else."""

from typing import Any

import httpx
import psycopg

from tests.acceptance.error_object import check_error
from tests.fix_server import Connect, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.sse import create as create_stream

HELLO = {"model": MODEL, "input": "Hello"}
SOON: dict[str, object] = {"send_seconds": 0.1}
"""Purged may be what has been over for a second."""
AN_HOUR: dict[str, object] = {"anchor": "created_at", "seconds": 3600}


def create(server: ServerProcess, **fields: Any) -> str:
    """A new response's id."""
    answer = httpx.post(f"{server.api}/responses", json={**HELLO, **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    identifier: str = answer.json()["id"]
    return identifier


def status_of(server: ServerProcess, response_id: str, query: str = "") -> int:
    return httpx.get(f"{server.api}/responses/{response_id}{query}", timeout=60).status_code


def kept_for(connection: psycopg.Connection, response_id: str) -> float | None:
    """The seconds from a response's creation to its expiry."""
    row = connection.execute(
        "select extract(epoch from expires_at - created_at)::float8 from responses where id = %s::uuid",
        [response_id.removeprefix("resp_")],
    ).fetchone()
    assert row is not None
    seconds: float | None = row[0]
    return seconds


def let_expire(connection: psycopg.Connection, *response_ids: str) -> None:
    connection.execute(
        "update responses set expires_at = 'epoch' where id = any(%s::uuid[])",
        [[one.removeprefix("resp_") for one in response_ids]],
    )


def test_response_is_kept_for_as_long_as_was_set_when_it_was_made(
    start_server: StartServer, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        server = start_server()
        by_default, asked = create(server), create(server, expires_after=AN_HOUR)
        server.stop()
        server = start_server(retention_days=0)
        for_ever = create(server)
        assert kept_for(connection, by_default) == 30 * 24 * 3600
        assert kept_for(connection, asked) == 3600
        assert kept_for(connection, for_ever) is None
        assert kept_for(connection, create(server, expires_after=AN_HOUR)) == 3600


def test_client_says_when_a_response_expires(scripted_server: ServerProcess, connect: Connect) -> None:
    client = connect(scripted_server)
    made = client.responses.create(**HELLO, extra_body={"expires_after": AN_HOUR})  # type: ignore[call-overload]
    assert client.responses.retrieve(made.id) == made


def test_expiry_that_cannot_be_kept_is_refused(scripted_server: ServerProcess) -> None:
    refused: list[tuple[dict[str, object], str]] = [
        ({"expires_after": {**AN_HOUR, "seconds": 59}}, "expires_after.seconds"),
        ({"expires_after": {**AN_HOUR, "anchor": "last_active_at"}}, "expires_after.anchor"),
        ({"expires_after": AN_HOUR, "store": False}, "expires_after"),
    ]
    for fields, param in refused:
        answer = httpx.post(f"{scripted_server.api}/responses", json={**HELLO, **fields})
        assert check_error(answer, 400, "invalid_request_error")["param"] == param


def test_expired_response_is_gone_and_the_conversation_after_it_goes_on(
    start_server: StartServer, database_url: str, connect: Connect
) -> None:
    server = start_server(purge_seconds=0.1, **SOON)
    first = create(server)
    second = create(server, previous_response_id=first)
    alone = create(server)
    with psycopg.connect(database_url, autocommit=True) as connection:
        let_expire(connection, first, alone)
    eventually(lambda: {status_of(server, one) for one in (first, alone)} == {404})
    gone = httpx.get(f"{server.api}/responses/{first}", timeout=60)
    absent = httpx.get(f"{server.api}/responses/resp_{'0' * 32}", timeout=60)
    assert gone.text.replace(first, "") == absent.text.replace(f"resp_{'0' * 32}", "")
    assert status_of(server, first, "?stream=true") == 404
    assert status_of(server, second) == 200
    third = create(server, previous_response_id=second)
    assert status_of(server, third) == 200


def test_running_response_is_not_purged_when_its_time_has_come(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(purge_seconds=0.1, scripted_tokens=100, scripted_step_seconds=0.02, **SOON)
    with (
        create_stream(server.url, HELLO) as stream,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        frames = stream.take(3)
        connection.execute("update responses set expires_at = 'epoch'")
        frames += list(stream)
    assert frames[-1].json["response"]["usage"]["output_tokens"] == 100
    eventually(lambda: status_of(server, frames[0].json["response"]["id"]) == 404)


def test_purge_command_says_what_it_purges(start_server: StartServer, database_url: str) -> None:
    server = start_server()
    expired, old, young = (create(server) for _ in range(3))
    with psycopg.connect(database_url, autocommit=True) as connection:
        let_expire(connection, expired)
        connection.execute(
            "update responses set created_at = now() - interval '8 days' where id = %s",
            [old.removeprefix("resp_")],
        )

    def purge(*arguments: str) -> str:
        ended = run_command("purge", *arguments, database_url=database_url, **SOON)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    week = ("--older-than", "7")
    rest = "responses, 0 conversations and 0 idempotency keys"
    eventually(lambda: purge("--dry-run") == f"There are 1 {rest} to purge.\n")
    eventually(lambda: purge(*week, "--dry-run") == f"There are 2 {rest} to purge.\n")
    assert [status_of(server, one) for one in (expired, old, young)] == [200, 200, 200]
    assert purge() == f"Purged 1 {rest}.\n"
    assert purge(*week) == f"Purged 1 {rest}.\n"
    assert purge(*week) == f"Purged 0 {rest}.\n"
    assert [status_of(server, one) for one in (expired, old, young)] == [404, 404, 200]


def test_conversations_that_nothing_has_changed_for_so_long_are_purged(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server()
    conversations = [httpx.post(f"{server.api}/conversations", json={}).json()["id"] for _ in range(3)]

    def let_age(conversation: str) -> None:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(
                "update conversations set touched_at = now() - interval '8 days' where id = %s",
                [conversation.removeprefix("conv_")],
            )

    def statuses() -> list[int]:
        return [httpx.get(f"{server.api}/conversations/{one}").status_code for one in conversations]

    def purge(*arguments: str, **settings: object) -> str:
        return run_command("purge", *arguments, database_url=database_url, **settings).stdout

    let_age(conversations[0])
    assert "0 conversations" in purge("--dry-run")
    assert "1 conversations" in purge("--dry-run", conversation_days=7)
    assert "1 conversations" in purge(conversation_days=7)
    assert statuses() == [404, 200, 200]
    let_age(conversations[1])
    start_server(conversation_days=7, purge_seconds=0.1)
    eventually(lambda: statuses() == [404, 404, 200])


def test_purge_of_no_age_is_wrong_usage() -> None:
    for days in ("0", "-1", "soon", "1.5", "36501"):
        assert run_command("purge", f"--older-than={days}").returncode == 2
