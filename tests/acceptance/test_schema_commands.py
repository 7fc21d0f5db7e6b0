"""`holdfast db status`, `upgrade`, `downgrade`: what each does, and its one sentence when it cannot."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest

from server.store.cluster.leases import register_replica
from server.store.database import Database
from server.store.schema.session import connect
from server.store.schema.upgrade import current_revision, downgrade, migrations, newest_revision
from tests.fix_proxy import Through
from tests.support.eventually import eventually
from tests.support.server_process import REPOSITORY, command, environment, free_port, run_command

LAST = migrations()[-1]


def revision(url: str) -> str | None:
    with connect(url) as connection:
        return current_revision(connection)


def go_back(url: str, newest: str) -> None:
    """Downgrades to that revision at once, without a command for each step."""
    downgrade(url, next(step for step in migrations() if step.previous == newest))
    assert revision(url) == newest


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
    """As somebody's `psql` that has looked at the replicas and was left open."""
    with psycopg.connect(url, application_name="report") as connection:
        connection.execute("select 1 from replicas, schema_compatibility, tenants, saved_views limit 0")
        yield


def test_one_step_goes_back_and_forward_and_the_status_tells_each(database_url: str) -> None:
    assert f"database\t{LAST.revision}\tthis release's" in db(database_url, "status").stdout
    assert "go ahead with: holdfast db downgrade --yes" in refused(db(database_url, "downgrade"))
    assert revision(database_url) == LAST.revision
    ended = db(database_url, "downgrade", "--yes")
    assert ended.stderr.strip() == f"The schema is back at {LAST.previous}."
    status = db(database_url, "status").stdout
    assert f"database\t{LAST.previous}\tbehind this release; run: holdfast db upgrade" in status
    assert f"pending\t{LAST.revision}\tpre: {LAST.title}" in status
    assert db(database_url, "upgrade").returncode == 0
    assert revision(database_url) == newest_revision()


def test_a_lock_is_waited_for_as_long_as_told_and_then_named(database_url: str) -> None:
    go_back(database_url, "0019")  # to the revision that makes the table of saved views
    with idle_transaction(database_url):
        said = refused(db(database_url, "downgrade", "--yes", "--wait", "0"))
        assert "another transaction uses the tables" in said
        assert revision(database_url) == "0019"
        shown = "report of postgres (idle in transaction, open for"
        eventually(lambda: shown in db(database_url, "status").stdout)
    go_back(database_url, "0015")  # 0016 changes the table of replicas
    with psycopg.connect(database_url) as connection:
        connection.execute("select 1 from replicas limit 0")
        assert "another transaction uses the tables" in refused(db(database_url, "upgrade", "--wait", "0"))


def test_what_a_downgrade_deletes_must_be_named(database_url: str) -> None:
    go_back(database_url, "0012")
    execute(
        database_url,
        "insert into usage_ledger (tenant, response_id, model, status, stored, input_tokens, cached_tokens,"
        " output_tokens, reasoning_tokens, end_user) values ('t', gen_random_uuid(), 'm', 'completed', true,"
        " 1, 0, 1, 0, 'somebody')",
    )
    assert "deletes the contents of usage_ledger.end_user" in refused(db(database_url, "downgrade", "--yes"))
    assert revision(database_url) == "0012"
    assert db(database_url, "downgrade", "--yes", "0012").returncode == 0
    assert "deletes the contents of what it made" in refused(db(database_url, "downgrade", "--yes"))


def test_a_living_replica_keeps_what_its_release_needs(database_url: str) -> None:
    with closing(Database(database_url, pool_size=1)) as database, database.begin() as connection:
        register_replica(
            connection, host="there", pid=1, version="1", role="all", models=[], revision=LAST.revision
        )
    assert "on there; stop them first" in refused(db(database_url, "downgrade", "--yes"))
    execute(database_url, "update replicas set revision = null")
    assert db(database_url, "downgrade", "--yes").returncode == 0


def test_the_sql_of_an_upgrade_upgrades(database_url: str, empty_database_url: str) -> None:
    assert db(database_url, "upgrade", "--sql").stdout == ""
    assert db(database_url, "downgrade", "--yes").returncode == 0
    written = db(database_url, "upgrade", "--sql")
    assert revision(database_url) == LAST.previous
    assert written.stdout == db(empty_database_url, "upgrade", "--sql", "--from", str(LAST.previous)).stdout
    execute(database_url, written.stdout)
    assert db(database_url, "status").stdout.startswith(f"database\t{LAST.revision}\tthis release's")
    assert "has no revision 'x'" in refused(db(database_url, "upgrade", "--sql", "--from", "x"))
    assert "--from is for --sql" in refused(db(database_url, "upgrade", "--from", "0011"))


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
            assert said.startswith("Applied ")
            assert said.endswith(f" to {newest_revision()}. The schema is current.")
    again = run_command("db", "upgrade", database_url=empty_database_url)
    assert again.stderr == f"The schema is current, at {newest_revision()}; nothing was to do.\n"
    assert revision(empty_database_url) == newest_revision()
