"""A server that dies while it drops a partition: the next one goes on, and streams beside it see no error."""

import httpx
import psycopg
import pytest

from server.crashpoints import KILLED_EXIT
from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.old_partitions import days_ago, fill, make_partitions
from tests.support.server_process import MODEL, ServerProcess, run_command

SETTINGS: dict[str, object] = {"engine": "scripted", "scripted_tokens": 20, "purge_seconds": 0.1}
OLD, NEXT, YOUNG = days_ago(34, 31), days_ago(31, 28), days_ago(28, -3)
RESPONSES = 1_200
STORED = "select coalesce(sum(bytes), 0) from storage_changes"
LEFT = "select count(*) from responses where created_at < now() - interval '30 days'"
DETACHED = "select count(*) from pg_class where relname like '%\\_detached\\_%' and relkind = 'r'"
COUNTED = "select coalesce(sum((details -> 'responses' ->> 'tenant-0')::int), 0) from audit_trail"

pytestmark = pytest.mark.faults


def number(connection: psycopg.Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("point", ["detach.written", "detach.committed", "drop.written", "drop.committed"])
def test_a_drop_that_dies_is_finished_by_the_next_server(
    start_server: StartServer, database_url: str, point: str, tally: Tally
) -> None:
    make_partitions(database_url, [OLD, NEXT, YOUNG])
    fill(database_url, OLD, RESPONSES, days=30)
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert number(connection, STORED) > 0
        dying = ServerProcess(database_url, settings={**SETTINGS, "crash_at": point})
        try:
            dying.launch()
            eventually(lambda: dying.has_ended, within=60)
            assert dying.wait() == KILLED_EXIT
        finally:
            dying.stop()
        start_server(**SETTINGS)
        eventually(lambda: number(connection, LEFT) + number(connection, DETACHED) == 0, within=60)
        assert number(connection, STORED) == 0
        if point != "drop.committed":
            eventually(lambda: number(connection, COUNTED) == RESPONSES // 3)
    audit = run_command("audit", "--quick", database_url=database_url)
    assert (audit.returncode, audit.stdout) == (0, "")
    tally["F16", "partitions dropped after a death"] += 1


def test_streams_of_two_servers_go_on_while_partitions_are_dropped(
    start_server: StartServer, database_url: str
) -> None:
    make_partitions(database_url, [OLD, NEXT, YOUNG])
    fill(database_url, OLD, 20 * RESPONSES, days=30)
    servers = [start_server(**{**SETTINGS, "purge_seconds": 5.0}) for _ in range(2)]
    with psycopg.connect(database_url, autocommit=True) as connection:
        made = 0
        while number(connection, LEFT) or made < 20:
            for server in servers:
                body = {"model": MODEL, "input": "Go on.", "stream": True}
                answer = httpx.post(f"{server.api}/responses", json=body, timeout=60)
                assert answer.status_code == 200
                assert b"response.completed" in answer.content
                made += 1
        eventually(lambda: number(connection, DETACHED) == 0, within=60)
        ledger = "select count(*) from usage_ledger where started_at > now() - interval '1 day'"
        assert number(connection, ledger) == made
    audit = run_command("audit", "--quick", database_url=database_url)
    assert (audit.returncode, audit.stdout) == (0, "")
