"""`holdfast db status`, `upgrade`, `downgrade`: what each does, and its one sentence when it cannot."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol

import psycopg
import pytest

from server.store.cluster.leases import register_replica
from server.store.database import Database
from server.store.schema.schema_session import connect
from server.store.schema.schema_status import current_revision
from server.store.schema.upgrade import newest_revision
from tests.fix_proxy import Through
from tests.support.eventually import eventually
from tests.support.releases import LATER_REVISIONS, run_release
from tests.support.server_process import REPOSITORY, command, environment, free_port, run_command

FIRST, LATER = newest_revision(), LATER_REVISIONS[-1]


class Db(Protocol):
    """Runs the later release's `holdfast db` with these arguments."""

    def __call__(self, url: str, *arguments: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def later(later_folder: Path) -> Db:
    return lambda url, *arguments: run_release(later_folder, url, "db", *arguments)


@pytest.fixture
def later_url(database_url: str, later: Db) -> str:
    """A database at the later release's schema."""
    assert later(database_url, "upgrade").returncode == 0
    return database_url


def revision(url: str) -> str | None:
    with connect(url) as connection:
        return current_revision(connection)


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def db(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("db", *arguments, database_url=url)


def refused(ended: subprocess.CompletedProcess[str]) -> str:
    """The sentence of a command that was refused."""
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    said = ended.stderr.splitlines()[-1]
    assert said.startswith("holdfast: ")
    assert re.search(r"(\.|: holdfast db \w+( --yes( \d{4})?)?)$", said), said
    return said


@contextmanager
def idle_transaction(url: str) -> Iterator[None]:
    """As somebody's `psql` that has looked at conversations and was left open."""
    with psycopg.connect(url, application_name="report") as connection:
        connection.execute("select 1 from conversations limit 0")
        yield


def test_one_step_goes_back_and_forward_and_the_status_tells_each(later_url: str, later: Db) -> None:
    assert f"database\t{LATER}\tthis release's" in later(later_url, "status").stdout
    assert "go ahead with: holdfast db downgrade --yes" in refused(later(later_url, "downgrade"))
    assert revision(later_url) == LATER
    ended = later(later_url, "downgrade", "--yes")
    assert ended.stderr.strip() == f"The schema is back at {LATER_REVISIONS[0]}."
    status = later(later_url, "status").stdout
    assert f"database\t{LATER_REVISIONS[0]}\tbehind this release; run: holdfast db upgrade" in status
    assert f"pending\t{LATER}\tpre: An index, built beside traffic" in status
    assert later(later_url, "upgrade").returncode == 0
    assert revision(later_url) == LATER


def test_a_lock_is_waited_for_as_long_as_told_and_then_named(database_url: str, later: Db) -> None:
    with idle_transaction(database_url):
        assert "another transaction uses the tables" in refused(later(database_url, "upgrade", "--wait", "0"))
        assert revision(database_url) == FIRST
        shown = "report of postgres (idle in transaction, open for"
        eventually(lambda: shown in db(database_url, "status").stdout)
    assert later(database_url, "upgrade").returncode == 0
    assert later(database_url, "downgrade", "--yes").returncode == 0
    with idle_transaction(database_url):
        said = refused(later(database_url, "downgrade", "--yes", "--wait", "0"))
        assert "another transaction uses the tables" in said
        assert revision(database_url) == LATER_REVISIONS[0]


def test_what_a_downgrade_deletes_must_be_named(later_url: str, later: Db) -> None:
    assert later(later_url, "downgrade", "--yes").returncode == 0
    execute(
        later_url,
        "insert into conversations (tenant, id, metadata, size, later)"
        " values ('t', gen_random_uuid(), '{}', 2, 'somebody')",
    )
    assert "deletes the contents of conversations.later;" in refused(later(later_url, "downgrade", "--yes"))
    assert revision(later_url) == LATER_REVISIONS[0]
    assert later(later_url, "downgrade", "--yes", LATER_REVISIONS[0]).returncode == 0
    assert revision(later_url) == FIRST


def test_the_first_migration_is_undone_when_named(database_url: str) -> None:
    execute(
        database_url,
        "insert into conversations (tenant, id, metadata, size) values ('t', gen_random_uuid(), '{}', 2)",
    )
    assert "deletes the contents of conversations, schema_compatibility;" in refused(
        db(database_url, "downgrade", "--yes")
    )
    assert db(database_url, "downgrade", "--yes", FIRST).stderr == "The schema is back at nothing.\n"
    assert revision(database_url) is None
    assert db(database_url, "upgrade").returncode == 0


def test_a_living_replica_keeps_what_its_release_needs(later_url: str, later: Db) -> None:
    with closing(Database(later_url, pool_size=1)) as database, database.begin() as connection:
        register_replica(connection, host="there", pid=1, version="1", role="all", models=[], revision=LATER)
    assert "on there; stop them first" in refused(later(later_url, "downgrade", "--yes"))
    execute(later_url, "update replicas set revision = '0001'")
    assert later(later_url, "downgrade", "--yes").returncode == 0


def test_the_sql_of_an_upgrade_upgrades(database_url: str, empty_database_url: str, later: Db) -> None:
    assert db(database_url, "upgrade", "--sql").stdout == ""
    written = later(database_url, "upgrade", "--sql")
    assert revision(database_url) == FIRST
    assert written.stdout == later(empty_database_url, "upgrade", "--sql", "--from", FIRST).stdout
    for statement in written.stdout.split(";\n"):  # one of them cannot run in a transaction
        if statement.strip():
            execute(database_url, statement)
    assert later(database_url, "status").stdout.startswith(f"database\t{LATER}\tthis release's")
    execute(empty_database_url, db(empty_database_url, "upgrade", "--sql").stdout)
    assert db(empty_database_url, "status").stdout.startswith(f"database\t{FIRST}\tthis release's")
    assert "has no revision 'x'" in refused(db(database_url, "upgrade", "--sql", "--from", "x"))
    assert "--from is for --sql" in refused(db(database_url, "upgrade", "--from", FIRST))


@pytest.mark.parametrize("command_of_db", ["status", "upgrade", "downgrade"])
def test_a_database_that_cannot_be_used_is_told_of_in_a_sentence(
    empty_database_url: str, command_of_db: str
) -> None:
    missing = re.sub(r"/empty_\w+", "/nothing", empty_database_url)
    assert 'database "nothing" does not exist' in refused(db(missing, command_of_db))
    other_driver = empty_database_url.replace("postgresql:", "postgresql+psycopg:")
    assert "must begin with postgresql://" in refused(db(other_driver, command_of_db))


def test_a_role_without_rights_is_told_of_in_a_sentence(empty_database_url: str) -> None:
    role = f"nobody_{free_port()}"
    execute(empty_database_url, f"create role {role} login")
    try:
        url = re.sub(r"//[^@]+@", f"//{role}@", empty_database_url)
        assert "permission denied for schema public" in refused(db(url, "upgrade"))
        assert db(url, "status").stdout.startswith("database\tempty\tbehind")
        execute(empty_database_url, "create table held (id integer)")
        with psycopg.connect(empty_database_url, application_name="report") as connection:
            connection.execute("select from held")
            assert "report of postgres (unknown)" in db(url, "status").stdout
    finally:
        execute(empty_database_url, f"drop role {role}")


def test_an_upgrade_waits_for_a_database_that_starts_beside_it(
    empty_database_url: str, through: Through
) -> None:
    proxy = through(empty_database_url)
    with ExitStack() as outage:
        outage.enter_context(proxy.down())
        upgrading = subprocess.Popen(
            command("db", "upgrade"),
            cwd=REPOSITORY,
            env=environment(proxy.url, {}),
            stderr=subprocess.PIPE,
            text=True,
        )
        with upgrading:
            assert upgrading.stderr is not None
            assert "accepts no connections yet; waiting" in upgrading.stderr.readline()
            outage.close()
            said = upgrading.stderr.read().strip()
            assert said == f"Applied the migration {newest_revision()}. The schema is current."
    again = run_command("db", "upgrade", database_url=empty_database_url)
    assert again.stderr == f"The schema is current, at {newest_revision()}; nothing was to do.\n"
    assert revision(empty_database_url) == newest_revision()
