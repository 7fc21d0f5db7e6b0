"""A server beside a schema that is one step older, or newer, than its release."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psycopg
import pytest

from server.store.schema.upgrade import newest_revision
from tests.fix_server import SCRIPTED, StartServer
from tests.support.eventually import eventually
from tests.support.invariants import check
from tests.support.releases import run_release
from tests.support.server_process import MODEL, PATIENCE_S, ServerProcess, run_command


def make_newer(url: str, oldest_code: str) -> None:
    """As a migration of a later release leaves the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = "insert into schema_compatibility (revision, oldest_code, release) values ('9999', %s, '9.9')"
        connection.execute(row, [oldest_code])
        connection.execute("update alembic_version set version_num = '9999'")


def answers(server: ServerProcess) -> int:
    """The status of a readiness probe; 0 while nobody listens."""
    try:
        return httpx.get(f"{server.url}/health/ready", timeout=PATIENCE_S).status_code
    except httpx.TransportError:
        return 0


@pytest.fixture
def start_waiting(database_url: str, later_folder: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts a server of a later release, whose database was not upgraded to it, and which waits for that."""
    with ExitStack() as stack:

        def start(**settings: object) -> ServerProcess:
            server = ServerProcess(
                database_url, settings={**SCRIPTED, **settings}, module=("server",), folder=later_folder
            )
            stack.callback(server.stop)
            server.launch()
            eventually(lambda: answers(server) == 503, within=PATIENCE_S)
            return server

        yield start


def test_a_server_waits_for_an_upgrade_live_but_not_ready_and_then_serves(
    database_url: str, later_folder: Path, start_waiting: Callable[..., ServerProcess]
) -> None:
    waiting = start_waiting()
    assert httpx.get(f"{waiting.url}/health/live").status_code == 200
    assert "`holdfast db upgrade`" in httpx.get(f"{waiting.url}/health/ready").json()["reason"]
    refused = httpx.post(f"{waiting.api}/responses", json={"model": MODEL, "input": "Hello"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "schema_behind")
    assert refused.headers["retry-after"]
    refusal = run_release(later_folder, database_url, "keys", "list")
    assert (refusal.returncode, refusal.stderr.count("\n")) == (1, 1)
    assert run_release(later_folder, database_url, "db", "upgrade").returncode == 0
    eventually(lambda: answers(waiting) == 200, within=PATIENCE_S)
    asked = httpx.post(f"{waiting.api}/responses", json={"model": MODEL, "input": "Hello"}, timeout=60)
    assert asked.json()["status"] == "completed"
    assert waiting.said().count("The database's schema is behind") in (1, 2)  # it may be locked meanwhile
    waiting.ask_to_end()
    assert waiting.wait() == 0
    check(database_url)


def test_a_server_that_waited_for_the_schema_waits_for_the_first_key_too(
    database_url: str, later_folder: Path, start_waiting: Callable[..., ServerProcess]
) -> None:
    server = start_waiting(host="0.0.0.0")  # noqa: S104 - where it needs a key
    assert run_release(later_folder, database_url, "db", "upgrade").returncode == 0
    made = run_release(later_folder, database_url, "keys", "create")
    assert made.returncode == 0, made.stderr
    eventually(lambda: answers(server) == 200, within=PATIENCE_S)
    assert "There is no API key yet" not in server.said()


def test_a_waiting_server_ends_when_asked(start_waiting: Callable[..., ServerProcess]) -> None:
    waiting = start_waiting()
    waiting.ask_to_end()
    assert waiting.wait() == 0
    assert "Traceback" not in waiting.said()


def test_a_server_serves_on_a_newer_schema_that_says_it_may(
    database_url: str, start_server: StartServer
) -> None:
    make_newer(database_url, newest_revision())
    server = start_server()
    asked = httpx.post(f"{server.api}/responses", json={"model": MODEL, "input": "Hello"}, timeout=60)
    assert asked.json()["status"] == "completed"
    assert server.said().count("a newer release made the schema") == 1
    upgraded = run_command("db", "upgrade", database_url=database_url)
    assert (upgraded.returncode, "nothing to do" in upgraded.stderr) == (0, True)
    undone = run_command("db", "downgrade", "--yes", database_url=database_url)
    assert (undone.returncode, "only that release can undo it" in undone.stderr) == (1, True)


def test_a_newer_schema_that_needs_newer_code_is_refused(database_url: str) -> None:
    make_newer(database_url, "9998")
    for arguments in (["serve", "--port", "0"], ["db", "upgrade"], ["keys", "list"], ["audit"]):
        ended = run_command(*arguments, database_url=database_url)
        assert ended.returncode == (2 if arguments == ["audit"] else 1)
        assert "newer release of Holdfast; use that one." in ended.stderr
