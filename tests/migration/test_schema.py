import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, event, inspect, pool

from server.embedded_postgres.binaries import psql_command
from server.store.database_errors import DatabaseError
from server.store.schema.schema_status import schema_state
from server.store.schema.upgrade import _alembic, upgrade
from server.store.tables import ALL_TABLES
from tests.support.eventually import eventually
from tests.support.schema import schema, unlike_the_code

REPOSITORY = Path(__file__).parents[2]
LOCK = int.from_bytes(b"holdfast", "big")
WAITING = """
    select 1 from pg_stat_activity
    where datname = current_database() and application_name = 'holdfast schema'
      and state = 'idle' and backend_xmin is null and query = 'COMMIT'
"""
"""Between two questions for the lock, without a snapshot: `create index concurrently` waits for each."""


@contextmanager
def alembic_on(url: str) -> Iterator[tuple[Config, Connection]]:
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=pool.NullPool
    )
    with engine.connect() as connection:
        config = _alembic()
        config.attributes["connection"] = connection
        yield config, connection
    engine.dispose()


def tables_of(url: str) -> set[str]:
    with alembic_on(url) as (_, connection):
        partitions = {name for (name,) in query(url, "select relname from pg_class where relispartition")}
        found = inspect(connection)
        return {*found.get_table_names(), *found.get_view_names()} - partitions


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


def test_an_empty_database_is_brought_to_the_present_schema(empty_database_url: str) -> None:
    assert schema_state(empty_database_url) == "behind"
    upgrade(empty_database_url)
    assert schema_state(empty_database_url) == "current"
    assert tables_of(empty_database_url) == {*ALL_TABLES.tables, "v_events", "v_images", "alembic_version"}
    assert query(empty_database_url, "select * from v_events") == []


def test_the_migrated_schema_is_the_one_that_the_code_knows(database_url: str) -> None:
    assert unlike_the_code(database_url) == set()


def test_a_difference_to_the_code_would_be_noticed(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("alter table items drop column call_id cascade")
    assert unlike_the_code(database_url) == {("items", "call_id", "text", True, None)}


def test_an_upgrade_of_a_current_schema_changes_nothing(database_url: str) -> None:
    everything = "select table_name, column_name, data_type from information_schema.columns order by 1, 2"
    before = query(database_url, everything)
    query(
        database_url,
        "insert into conversations (tenant, id, metadata, size)"
        " values ('t', gen_random_uuid(), '{}', 2) returning 1",
    )
    upgrade(database_url)
    assert query(database_url, everything) == before
    assert len(query(database_url, "select 1 from conversations")) == 1


def test_four_upgrades_at_once_all_succeed(empty_database_url: str) -> None:
    code = "import sys; from server.store.schema.upgrade import upgrade; upgrade(sys.argv[1])"
    with psycopg.connect(empty_database_url, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(%s)", (LOCK,))
        upgrades = [
            subprocess.Popen([sys.executable, "-c", code, empty_database_url], cwd=REPOSITORY)
            for _ in range(4)
        ]
        eventually(lambda: len(query(empty_database_url, WAITING)) == 4, within=60)
    assert [process.wait(60) for process in upgrades] == [0] * 4
    assert schema_state(empty_database_url) == "current"
    assert query(empty_database_url, "select count(*) from alembic_version") == [(1,)]


def test_limits_of_the_role_do_not_hold_for_migrations(empty_database_url: str) -> None:
    limits: list[str] = []

    def note(_connection: object, cursor: psycopg.Cursor[tuple[str]], statement: str, *_rest: object) -> None:
        if "create table responses (" in statement:
            row = cursor.execute("show statement_timeout").fetchone()
            assert row is not None
            limits.append(row[0])

    with alembic_on(empty_database_url) as (config, connection):
        connection.exec_driver_sql("set statement_timeout = '50ms'")
        event.listen(connection, "before_cursor_execute", note)
        command.upgrade(config, "head")
    assert limits == ["0"]


def test_an_upgrade_waits_for_another_one_and_holds_no_snapshot(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(%s)", (LOCK,))
        second = threading.Thread(target=upgrade, args=(empty_database_url,))
        second.start()
        eventually(lambda: query(empty_database_url, WAITING))
        assert schema_state(empty_database_url) == "behind"
    second.join(60)
    assert schema_state(empty_database_url) == "current"


@pytest.mark.usefixtures("later_schema")
def test_an_upgrade_lets_others_through_while_a_transaction_is_in_its_way(database_url: str) -> None:
    """As `pg_dump` is, for as long as it runs; the migration adds a column to a table that it reads."""
    with psycopg.connect(database_url) as dump, psycopg.connect(database_url, autocommit=True) as other:
        dump.execute("select 1 from replicas, conversations limit 0")
        with pytest.raises(DatabaseError, match="lock timeout"):
            upgrade(database_url, seconds=0)
        assert schema_state(database_url) == "behind"
        assert query(database_url, "select 1 from pg_locks where locktype = 'advisory'") == []
        second = threading.Thread(target=upgrade, args=(database_url,))
        second.start()
        eventually(lambda: query(database_url, "select 1 from pg_locks where not granted"))
        other.execute("set lock_timeout = '8s'")  # less than a heartbeat may take
        other.execute("select 1 from replicas, conversations limit 0")
        dump.rollback()
        second.join(60)
    assert schema_state(database_url) == "current"


def test_no_lock_is_left_after_an_upgrade(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    assert query(empty_database_url, "select 1 from pg_locks where locktype = 'advisory'") == []


def test_the_schema_goes_down_to_nothing_and_up_again(database_url: str) -> None:
    made = schema(database_url)
    with alembic_on(database_url) as (config, _):
        command.downgrade(config, "base")
    assert schema_state(database_url) == "behind"
    assert tables_of(database_url) == {"alembic_version"}
    upgrade(database_url)
    assert schema(database_url) == made


def test_a_revision_that_this_release_does_not_know_is_unknown(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    assert schema_state(database_url) == "unknown"


OF_NO_TENANT = (
    "replicas",
    "seal_keys",
    "prices",
    "audit_trail",
    "schema_compatibility",
    "installation",
    "key_requirement",
    "saved_views",
)


def test_every_key_of_a_table_begins_with_the_tenant(database_url: str) -> None:
    with alembic_on(database_url) as (_, connection):
        inspector = inspect(connection)
        keys = {
            table: inspector.get_pk_constraint(table)["constrained_columns"]
            for table in inspector.get_table_names()
            if table in ALL_TABLES.tables and table not in OF_NO_TENANT
        }
    assert len(keys) == len(ALL_TABLES.tables) - len(OF_NO_TENANT)
    assert {table for table, columns in keys.items() if columns[0] != "tenant"} == set()


def test_nothing_in_the_schema_keeps_compatible_clusters_away(database_url: str) -> None:
    kinds = "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'S'"
    assert query(database_url, kinds) == []
    assert query(database_url, "select tgname from pg_trigger where not tgisinternal") == []
    assert query(database_url, "select typname from pg_type where typtype = 'e'") == []
    assert query(database_url, "select extname from pg_extension where extname <> 'plpgsql'") == []


def test_the_migrations_can_be_written_out_as_sql(database_url: str, empty_database_url: str) -> None:
    written = io.StringIO()
    config = _alembic()
    config.output_buffer = written
    with redirect_stdout(written):
        command.upgrade(config, "head", sql=True)
    psql, secrets = psql_command(empty_database_url)
    subprocess.run(
        [*psql, "-q", "-v", "ON_ERROR_STOP=1"],
        env={**os.environ, **secrets},
        input=written.getvalue(),
        text=True,
        check=True,
        capture_output=True,
    )
    assert schema_state(empty_database_url) == "current"
    assert schema(empty_database_url) == schema(database_url)
    assert query(empty_database_url, "select * from v_events") == []
