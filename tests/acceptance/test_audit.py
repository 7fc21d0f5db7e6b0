"""`holdfast audit` beside a server that is at work."""

import json

import httpx
import psycopg

from tests.fix_server import StartServer
from tests.support.server_process import MODEL, ServerProcess, run_command

MISCOUNT = "update responses set output_tokens = output_tokens + %s where id = %s"
UNREACHABLE = "postgresql://someone:correct-horse@127.0.0.1:1/nothing"


def respond(server: ServerProcess) -> str:
    answer = httpx.post(f"{server.api}/responses", json={"model": MODEL, "input": "Hi"}, timeout=60)
    identifier: str = answer.json()["id"]
    return identifier


def test_audit_of_a_live_database_finds_nothing_wrong_until_something_is(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server()
    responses = [respond(server) for _ in range(2)]
    clean = run_command("audit", database_url=database_url)
    assert (clean.returncode, clean.stdout) == (0, ""), clean.stderr
    assert clean.stderr == "2 responses audited (0 unfinished); nothing is wrong.\n"

    with psycopg.connect(database_url) as connection:
        connection.execute(MISCOUNT, (1, responses[0][5:]))
    damaged = run_command("audit", database_url=database_url)
    lines = [line.split("\t") for line in damaged.stdout.splitlines()]
    assert damaged.returncode == 1
    assert [line[:3] for line in lines] == [["I6", "default", responses[0]]] * 2
    assert "its row" in lines[0][3]
    assert "2 violations: I6 2." in damaged.stderr

    told = run_command("audit", "--json", "--quick", database_url=database_url)
    found, _, summary = map(json.loads, told.stdout.splitlines())
    assert (told.returncode, told.stderr) == (1, "")
    assert found == {
        "invariant": "I6",
        "tenant": "default",
        "response": responses[0],
        "sentence": lines[0][3],
    }
    assert summary == {"responses": 2, "unfinished": 0, "served": True, "violations": {"I6": 2}}

    for narrowed, status in (
        (["--limit", "1"], 0),
        (["--since", "2990-01-01"], 0),
        (["--tenant", "nobody"], 2),
    ):
        assert run_command("audit", *narrowed, database_url=database_url).returncode == status
    assert run_command("audit", "--since", "2h", database_url=database_url).returncode == 1
    with psycopg.connect(database_url) as connection:
        connection.execute(MISCOUNT, (-1, responses[0][5:]))


def test_an_audit_that_cannot_look_says_so_with_another_code(empty_database_url: str) -> None:
    refused = [
        (["audit"], UNREACHABLE, "The audit could not go on: "),
        (["audit"], empty_database_url, "holdfast db upgrade"),
        (["audit", "--since", "soon"], empty_database_url, "--since: must be a time such as 2026-12-01"),
        (
            ["audit", "--limit", "0"],
            empty_database_url,
            "must be a whole number of responses from 1",
        ),
    ]
    for arguments, url, sentence in refused:
        ended = run_command(*arguments, database_url=url)
        assert ended.returncode == 2
        assert sentence in ended.stderr
        assert "Traceback" not in ended.stderr
        assert "correct-horse" not in ended.stderr
    assert run_command("audit", database_url=empty_database_url, x=1).returncode == 2
