"""`erase`: nothing of a tenant or a user is left in any table, and nothing of others is touched."""

from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psycopg

from server.store.erasure.tenant_rows import EMPTIED
from server.store.tables import ALL_TABLES
from tests.acceptance.test_administration import administer
from tests.acceptance.test_keys import make_key
from tests.fix_server import PACED, StartServer
from tests.support.erasing import Client, fill, rows_of, traces
from tests.support.server_process import run_command

GONE, STAYS = "gone-k7q", "stays-w3x"
"""A tenant that is erased, and one that is not."""


def traced_columns(database_url: str, marker: str) -> list[int]:
    """How many responses have the marker in their user agent, how many lines of the ledger in their tags."""
    queries = (
        "select count(*) from responses where user_agent like %s",
        "select count(*) from usage_ledger where metadata::text like %s",
    )
    with psycopg.connect(database_url) as connection:
        rows = [connection.execute(query, [f"%{marker}%"]).fetchone() for query in queries]
    return [row[0] for row in rows if row is not None]


def cancel_reasons(database_url: str) -> list[tuple[str]]:
    """Why responses were cancelled, as the ledger has it."""
    query = "select cancel_reason from admin.usage where status = 'cancelled' order by 1"
    with psycopg.connect(database_url) as connection:
        return connection.execute(query).fetchall()


def erase(database_url: str, *flags: str, code: int = 0) -> str:
    ran = run_command("erase", *flags, "--yes", database_url=database_url, lease_seconds=2)
    assert ran.returncode == code, ran.stderr
    return ran.stdout if code == 0 else ran.stderr


def test_every_table_with_a_tenant_is_named_with_its_turn_in_an_erasure() -> None:
    with_tenant = {table.name for table in ALL_TABLES.tables.values() if "tenant" in table.columns}
    assert set(EMPTIED) >= with_tenant, "say in EMPTIED when an erasure empties it"


def test_nothing_of_an_erased_tenant_is_left_and_another_is_as_it_was(
    start_server: StartServer, database_url: str, tmp_path: Path
) -> None:
    server = start_server()
    template = tmp_path / "prompt.txt"
    made: dict[str, dict[str, Any]] = {}
    for tenant in (GONE, STAYS):
        flags = ("--tenant", tenant, "--rpm", "1000", "--name", tenant)
        key = make_key(database_url, *flags)
        template.write_text(f"Say {tenant}.")
        run_command("prompts", "put", tenant, str(template), "--tenant", tenant, database_url=database_url)
        run_command("tenants", "create", tenant, "--contact", tenant, database_url=database_url)
        with closing(Client(server.api, key.text, tenant)) as client:
            made[tenant] = fill(client)
    before = rows_of(database_url, STAYS)
    assert traced_columns(database_url, GONE) == [4, 4]
    assert "responses" in erase(database_url, "--tenant", GONE)
    assert [traced_columns(database_url, marker) for marker in (GONE, STAYS)] == [[0, 0], [4, 4]]
    assert traces(database_url, GONE, *made[GONE].values()) == []
    assert rows_of(database_url, STAYS) == before
    assert traces(database_url, STAYS) != []


def test_a_user_is_gone_with_what_others_said_after_and_the_ledger_keeps_the_tokens(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server()
    key = make_key(database_url, "--tenant", "acme")
    with (
        closing(Client(server.api, key.text, "of-ada-5f")) as ada,
        closing(Client(server.api, key.text, "of-bob-9d")) as bob,
    ):
        own = fill(ada, safety_identifier="ada-5f@example.org")
        others = fill(bob, safety_identifier="bob")
        after = bob.say("to that", previous_response_id=own["then"], safety_identifier="bob")["id"]
        into = bob.say("and you?", conversation=own["conversation"], safety_identifier="bob")["id"]
        mixed = bob.post("/conversations", metadata={})["id"]
        for one, who in ((bob, "bob"), (ada, "ada-5f@example.org"), (bob, "bob")):
            one.say("mixed", conversation=mixed, safety_identifier=who)
        with psycopg.connect(database_url) as connection:
            sums = "select count(*), sum(input_tokens + output_tokens) from usage_ledger"
            used = connection.execute(sums).fetchall()
        assert traced_columns(database_url, "of-ada-5f") == [5, 5]
        erase(database_url, "--tenant", "acme", "--user", "ada-5f@example.org")
        assert traced_columns(database_url, "of-ada-5f") == [0, 0]
        shared = own.pop("conversation")
        assert traces(database_url, "of-ada-5f", "ada-5f@example.org", *own.values()) == []
        assert bob.get(f"/conversations/{shared}").status_code == 200
        stays = (others["first"], others["then"], into)
        left = [bob.get(f"/responses/{id_}").status_code for id_ in stays]
        assert (left, bob.get(f"/responses/{after}").status_code) == ([200, 200, 200], 404)
        items = bob.get(f"/conversations/{mixed}/items").json()["data"]
        assert [item["role"] for item in items] == ["assistant", "user"] * 2
    with psycopg.connect(database_url) as connection:
        assert connection.execute(sums).fetchall() == used


def test_what_a_user_said_goes_from_a_conversation_when_the_response_of_another_in_it_has_ended(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(**PACED)
    key = make_key(database_url, "--tenant", "acme")
    name = "ada-5f@example.org"
    with (
        closing(Client(server.api, key.text, "of-ada-5f")) as ada,
        closing(Client(server.api, key.text, "of-bob-9d")) as bob,
    ):
        shared = bob.post("/conversations")["id"]
        who = {"conversation": shared, "max_output_tokens": 4}
        own = ada.say("mine", safety_identifier=name, **who)["id"]
        stays = bob.say("his", safety_identifier="bob", **who)["id"]
        runs = bob.say("and his", safety_identifier="bob", conversation=shared, background=True)["id"]
        user = ("--tenant", "acme", "--user", name)
        assert "1 responses have not ended" in erase(database_url, *user, "--seconds", "1", code=1)
        bob.post(f"/responses/{runs}/cancel")
        erase(database_url, *user)
        assert traces(database_url, "of-ada-5f", name, own) == []
        assert bob.get(f"/responses/{stays}").status_code == 200
        ada.say(safety_identifier=name, background=True)
        erase(database_url, *user)
    assert cancel_reasons(database_url) == [("client_request",), ("erased",)]


def test_without_any_server_what_runs_and_waits_is_ended_by_the_command(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(**PACED, max_running=1)
    key = make_key(database_url, "--tenant", GONE)
    with closing(Client(server.api, key.text, GONE)) as client:
        unfinished = [client.say(background=True)["id"] for _ in range(3)]
    server.kill()
    erase(database_url, "--tenant", GONE, "--keep-usage")
    assert traces(database_url, key.text, *unfinished) == []
    with psycopg.connect(database_url) as connection:
        lines = connection.execute("select tenant, cancel_reason, metadata from usage_ledger").fetchall()
    assert lines == [(GONE, "erased", None)] * 3


def test_the_admin_api_counts_first_and_erases_when_it_is_told(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server()
    admin = administer(server, database_url)
    key = make_key(database_url, "--tenant", GONE)
    with closing(Client(server.api, key.text, GONE)) as client:
        fill(client)
    counted = admin.post(f"tenants/{GONE}/erase")
    assert (counted["dry_run"], counted["complete"], counted["unfinished_responses"]) == (True, False, 0)
    assert {"table": "responses", "rows": 4} in counted["removed"]
    (listed,) = admin.get(f"tenants/{GONE}/conversations")["data"]
    assert listed["items"] == 2
    erased = admin.post(f"tenants/{GONE}/erase", {"dry_run": False})
    assert (erased["complete"], erased["audit_trail_kept"]) == (True, False)
    assert {"table": "responses", "rows": 4} in erased["removed"]
    assert traces(database_url, GONE) == []
    (entry,) = admin.get("audit_trail", action="tenant.erase")["data"]
    assert (entry["tenant"], entry["details"]["rows"]["responses"]) == (None, 4)
    own = admin.ask("POST", "tenants/ops/erase", {"dry_run": False})
    assert (own.status_code, own.json()["error"]["code"]) == (409, "conflict")
    for body, param in (({"user": ""}, "user"), ({"user": "a", "keep_usage": True}, "keep_usage")):
        refused = admin.ask("POST", f"tenants/{GONE}/erase", body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_the_command_removes_nothing_without_a_yes(database_url: str) -> None:
    make_key(database_url, "--tenant", GONE)
    ran = run_command("erase", "--tenant", GONE, database_url=database_url)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "--yes" in ran.stderr
    ran = run_command("erase", "--tenant", GONE, "--dry-run", database_url=database_url)
    assert (ran.returncode, "api_keys\t1" in ran.stdout) == (0, True)
    assert "of a user" in erase(database_url, "--tenant", GONE, "--user", "a", "--keep-usage", code=1)


def test_who_is_unknown_or_was_erased_before_is_answered_with_a_sentence(database_url: str) -> None:
    make_key(database_url, "--tenant", GONE)
    make_key(database_url, "--tenant", STAYS)
    assert "nothing to erase of tenant nobody" in erase(database_url, "--tenant", "nobody", code=1)
    assert "nothing to erase" in erase(database_url, "--tenant", "nobody", "--dry-run", code=1)
    user = ("--tenant", GONE, "--user", "no-one")
    assert "nothing to erase of user 'no-one'" in erase(database_url, *user, code=1)
    erase(database_url, "--tenant", GONE)
    (sentence,) = erase(database_url, "--tenant", GONE, code=1).splitlines()
    assert "or was erased before" in sentence
    with psycopg.connect(database_url) as connection:
        entries = connection.execute("select count(*) from audit_trail where action like '%.erase'")
        assert entries.fetchone() == (1,)


def test_erasing_the_last_tenant_with_keys_opens_nothing_to_callers_without_one(
    start_server: StartServer, database_url: str
) -> None:
    make_key(database_url, "--tenant", GONE)
    ran = run_command("erase", "--tenant", GONE, "--yes", database_url=database_url)
    assert (ran.returncode, "No valid API key is left" in ran.stderr) == (0, True)
    server = start_server()
    answer = httpx.post(f"{server.url}/admin/v1/keys", json={"tenant": "default"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    key = ""
    for made in (True, False):
        ran = run_command("keys", "create", "--tenant", STAYS, "--if-none", database_url=database_url)
        assert (ran.returncode, bool(ran.stdout)) == (0, made), ran.stderr
        assert ("It opens the console" if made else "A key exists already") in ran.stderr
        key = ran.stdout.strip() if made else key
        headers = {"authorization": f"Bearer {key}"}
        assert httpx.get(f"{server.url}/admin/v1/keys", headers=headers).status_code == 200
    assert run_command("keys", "revoke", key.split("_")[1], database_url=database_url).returncode == 0
    ran = run_command("keys", "create", "--if-none", database_url=database_url)
    assert (ran.returncode, ran.stdout, "none that is valid" in ran.stderr) == (0, "", True)
