"""Behind PgBouncer in transaction mode, with its default settings: streams, chains, cancels, sentences."""

from pathlib import Path

import httpx
import psycopg

from tests.fix_pgbouncer import StartPgBouncer, pooled
from tests.fix_server import PACED, Connect, StartServerOn
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, run_command
from tests.support.sse import create, parse, replay

ADVICE = "set HOLDFAST_DATABASE_POOLER=transaction, and HOLDFAST_DATABASE_DIRECT_URL"


def test_two_replicas_stream_chain_and_cancel_through_a_pooler(
    database_url: str, start_pgbouncer: StartPgBouncer, start_server_on: StartServerOn, connect: Connect
) -> None:
    pooler = start_pgbouncer(database_url)
    one = start_server_on(database_url, **PACED, **pooled(pooler))
    other = start_server_on(database_url, **PACED, **pooled(pooler, database_url))
    assert one.said().count("a pooler knows no LISTEN") == 1
    assert "LISTEN" not in other.said()
    with create(one.url, {"model": MODEL, "input": "Hello", "max_output_tokens": 30}) as stream:
        first = stream.take(1)[0].json["response"]["id"]
        with replay(other.url, first) as followed:
            raw = followed.read()
        assert stream.read() == raw
    frames = parse(raw)
    assert [frame.number for frame in frames] == list(range(len(frames)))
    client = connect(other)
    going = client.responses.create(
        model=MODEL, input="Go on", previous_response_id=first, background=True, stream=False
    )
    assert httpx.post(f"{one.api}/responses/{going.id}/cancel").status_code == 200
    eventually(lambda: client.responses.retrieve(going.id).status == "cancelled", within=10)


def test_a_pooler_that_no_setting_names_is_recognised_and_commands_say_what_they_need(
    database_url: str, empty_database_url: str, start_pgbouncer: StartPgBouncer
) -> None:
    url = start_pgbouncer(database_url).url
    refused = run_command("serve", database_url=url, engine="scripted")
    assert (refused.returncode, ADVICE in refused.stderr) == (1, True), refused.stderr
    empty_url = start_pgbouncer(empty_database_url).url
    for command, at in ((("db", "upgrade"), empty_url), (("db", "downgrade", "--yes", "0001"), url)):
        changed = run_command(*command, database_url=at)
        assert (changed.returncode, "pools transactions" in changed.stderr) == (1, True), changed.stderr
    url = start_pgbouncer(database_url, ignore_startup_parameters="options").url
    dropped = run_command("keys", "list", database_url=url)
    assert (dropped.returncode, "drops the settings of a session" in dropped.stderr) == (1, True)
    assert ADVICE in dropped.stderr
    settings = {"database_url": url, "database_pooler": "transaction"}
    listed = run_command("keys", "list", **settings)
    assert listed.returncode == 0, listed.stderr
    shell = run_command("psql", **settings)
    assert (shell.returncode, "needs a session of Postgres" in shell.stderr) == (1, True)
    search = run_command("db", "text-search", "on", **settings)
    assert (search.returncode, "needs a session of Postgres" in search.stderr) == (1, True)
    assert "Traceback" not in refused.stderr + dropped.stderr + shell.stderr


def test_the_schema_changes_through_a_pooler_of_sessions_and_past_one_of_transactions_without_a_word_of_it(
    database_url: str, start_pgbouncer: StartPgBouncer
) -> None:
    sessions = {"database_url": start_pgbouncer(database_url, pool_mode="session").url}
    for settings in (sessions, pooled(start_pgbouncer(database_url), database_url)):
        for command in (("db", "downgrade", "--yes", "0001"), ("db", "upgrade"), ("db", "upgrade")):
            changed = run_command(*command, **settings)
            assert (changed.returncode, "pool" in changed.stderr) == (0, False), changed.stderr


def test_a_dump_is_restored_past_the_pooler(
    database_url: str, empty_database_url: str, start_pgbouncer: StartPgBouncer, tmp_path: Path
) -> None:
    file = tmp_path / "all.dump"
    assert run_command("dump", str(file), database_url=database_url).returncode == 0
    pooler = start_pgbouncer(empty_database_url)
    restored = run_command(
        *("restore", str(file)),
        database_url=pooler.url,
        database_pooler="transaction",
        database_direct_url=empty_database_url,
    )
    assert (restored.returncode, "are held" in restored.stderr) == (0, True), restored.stderr
    with psycopg.connect(pooler.url, prepare_threshold=None) as connection:
        assert connection.execute("select count(*) from responses").fetchone() == (0,)
