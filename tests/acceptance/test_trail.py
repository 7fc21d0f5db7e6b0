"""The audit trail: what was deleted, purged and set, by whom, as `holdfast trail` prints it."""

import json
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.acceptance.test_keys import make_key
from tests.fix_server import StartServer
from tests.support.server_process import MODEL, run_command

HELLO = {"model": MODEL, "input": "Hello"}


def trail(database_url: str, *flags: str) -> list[dict[str, Any]]:
    ran = run_command("trail", "--json", *flags, database_url=database_url)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_who_deleted_what_is_found_with_the_request_that_did_it(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server()
    key = make_key(database_url)
    headers = {"authorization": f"Bearer {key.text}", "x-request-id": "delete-1"}
    with httpx.Client(base_url=server.api, headers=headers) as client:
        response = client.post("/responses", json=HELLO).json()["id"]
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "store": True}
        completion = client.post("/chat/completions", json=chat).json()["id"]
        conversation = client.post("/conversations", json={}).json()["id"]
        for path in (
            f"responses/{response}",
            f"chat/completions/{completion}",
            f"conversations/{conversation}",
        ):
            assert client.delete(f"/{path}").status_code == 200
            assert client.delete(f"/{path}").status_code == 404
    deleted = [entry for entry in trail(database_url, "--tenant", "default") if ".delete" in entry["action"]]
    assert [(entry["action"], entry["target"]) for entry in deleted] == [
        ("response.delete", response),
        ("response.delete", completion),
        ("conversation.delete", conversation),
    ]
    assert {(entry["actor"], entry["request_id"]) for entry in deleted} == {(f"key:{key.id}", "delete-1")}


def test_each_start_and_end_of_a_process_is_there_with_its_settings_and_without_secrets(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(tool_token="label=a-secret-token", max_queued=77)
    server.ask_to_end()
    assert server.wait() == 0
    start, stop = trail(database_url, "--action", "process.")
    assert (start["action"], stop["action"]) == ("process.start", "process.stop")
    assert start["actor"] == stop["actor"] == f"server:{start['target']}"
    settings = start["details"]["settings"]
    assert (settings["max_queued"], settings["tool_token"]) == (77, "***")
    assert "max_waiting" not in settings
    assert "a-secret-token" not in json.dumps([start, stop])
    assert stop["details"] == {"exit_code": 0}


def test_a_purge_is_one_entry_with_counts_by_tenant_and_one_of_nothing_is_none(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(send_seconds=0.1, purge_seconds=3600)
    for _ in range(3):
        httpx.post(f"{server.api}/responses", json=HELLO).raise_for_status()
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("update responses set finished_at = finished_at - interval '1 day'")
        connection.execute("update responses set expires_at = finished_at")
    for _ in range(2):
        assert run_command("purge", database_url=database_url).returncode == 0
    (purged,) = trail(database_url, "--action", "purge.")
    assert purged["actor"].startswith("user:")
    assert purged["details"] == {
        "responses": {"default": 3},
        "conversations": {},
        "idempotency_keys": 0,
        "older_than_days": None,
    }


def test_prompts_are_there_with_who_made_and_deleted_them(database_url: str, tmp_path: Path) -> None:
    template = tmp_path / "greeting.txt"
    template.write_text("Greet {{name}}.")
    flags = ("--tenant", "acme")
    for command in (("put", "greeting", str(template)), ("delete", "greeting")):
        assert run_command("prompts", *command, *flags, database_url=database_url).returncode == 0
    entries = trail(database_url, *flags)
    assert [(entry["action"], entry["target"], entry["details"]) for entry in entries] == [
        ("prompt.put", "greeting", {"version": 1}),
        ("prompt.delete", "greeting", {"version": None}),
    ]


def test_the_trail_is_read_as_lines_too_by_age_and_wrong_flags_are_a_sentence(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "insert into audit_trail (actor, action, at) values ('a', 'x', now() - interval '2 h')"
        )
        connection.execute("insert into audit_trail (actor, action, tenant) values ('b', 'y', 't')")
    ran = run_command("trail", "--since", "1h", database_url=database_url)
    assert ran.stdout.rstrip().split("\t")[1:] == ["b", "y", "t", "-"]
    assert len(trail(database_url)) == 2
    for flags in (("--since", "yesterday"), ("--limit", "0"), ("--limit", "x")):
        ran = run_command("trail", *flags, database_url=database_url)
        assert ran.returncode == 2
        assert "Traceback" not in ran.stderr
