import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext

from server.store.database_errors import DatabaseError, is_contention
from server.store.schema.concurrent_indexes import MAX_NAME, create_index, partition_index_name
from server.store.schema.schema_session import connect, migration_lock
from tests.support.eventually import eventually

PLAIN = "create table plain (a integer, b text)"
PARTITIONED = """
    create table parts (a integer not null, b text) partition by range (a);
    create table parts_1 partition of parts for values from (0) to (10);
    create table parts_2 partition of parts for values from (10) to (20);
    insert into parts select n % 20, n::text from generate_series(1, 1000) n
"""


def build(url: str, name: str, table: str, *, lock_seconds: float = 30.0, partitioned: bool = False) -> None:
    """As a migration does it."""
    with connect(url) as connection:
        options = {"transaction_per_migration": True, "lock_seconds": lock_seconds}
        context = MigrationContext.configure(connection, opts=options)
        transaction = context.begin_transaction(_per_migration=True)
        with migration_lock(connection), Operations.context(context), transaction:
            create_index(name, table, "(a, b) where b like '%_:x'", partitioned=partitioned)


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def state(url: str, name: str) -> tuple[object, ...] | None:
    """The index's oid and whether it is valid."""
    with psycopg.connect(url, autocommit=True) as connection:
        query = "select indexrelid, indisvalid from pg_index where indexrelid = to_regclass(%s)"
        return connection.execute(query, [name]).fetchone()


def is_valid(url: str, name: str) -> bool:
    found = state(url, name)
    return found is not None and found[1] is True


@contextmanager
def reader(url: str, table: str) -> Iterator[psycopg.Connection]:
    """A transaction that has read the table, as `pg_dump` and a report are."""
    with psycopg.connect(url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute(f"table {table}".encode())
        yield connection


def test_writes_go_on_while_an_index_waits_for_a_long_reader(empty_database_url: str) -> None:
    execute(empty_database_url, PLAIN)
    with reader(empty_database_url, "plain") as long, psycopg.connect(empty_database_url) as writer:
        building = threading.Thread(target=build, args=(empty_database_url, "ix_plain", "plain"))
        building.start()
        eventually(lambda: state(empty_database_url, "ix_plain") is not None)
        writer.execute("set lock_timeout = '2s'")
        writer.execute("insert into plain values (1, 'x')")
        writer.commit()
        long.rollback()
        building.join(30)
    assert is_valid(empty_database_url, "ix_plain")


def test_an_index_that_an_interrupted_build_left_is_built_again(empty_database_url: str) -> None:
    execute(empty_database_url, PLAIN)
    with reader(empty_database_url, "plain"):
        with pytest.raises(DatabaseError) as refused:
            build(empty_database_url, "ix_plain", "plain", lock_seconds=0.1)
        assert is_contention(refused.value)
        left = state(empty_database_url, "ix_plain")
        assert left is not None
        assert left[1] is False
    build(empty_database_url, "ix_plain", "plain")
    assert is_valid(empty_database_url, "ix_plain")


def test_a_valid_index_is_left_as_it_is(empty_database_url: str) -> None:
    execute(empty_database_url, PLAIN)
    build(empty_database_url, "ix_plain", "plain")
    before = state(empty_database_url, "ix_plain")
    build(empty_database_url, "ix_plain", "plain")
    assert state(empty_database_url, "ix_plain") == before


def test_a_partitioned_index_is_finished_by_the_second_try(empty_database_url: str) -> None:
    execute(empty_database_url, PARTITIONED)
    with reader(empty_database_url, "parts_2"), pytest.raises(DatabaseError):
        build(empty_database_url, "ix_parts", "parts", lock_seconds=0.1, partitioned=True)
    assert not is_valid(empty_database_url, "ix_parts")
    later = "create table parts_3 partition of parts for values from (20) to (30)"
    execute(empty_database_url, later)
    build(empty_database_url, "ix_parts", "parts", partitioned=True)
    assert is_valid(empty_database_url, "ix_parts")
    for partition in ("parts_1", "parts_2"):
        assert is_valid(empty_database_url, partition_index_name("ix_parts", partition))
    with psycopg.connect(empty_database_url) as connection:
        attached = "select count(*) from pg_inherits where inhparent = 'ix_parts'::regclass"
        assert connection.execute(attached).fetchone() == (3,)


def test_names_of_partitions_indexes_fit_and_differ() -> None:
    names = [
        partition_index_name("ix_responses_" + "x" * 40, f"response_events_of_the_year_2026_{week}")
        for week in range(10, 50)
    ]
    assert len(set(names)) == 40
    assert max(map(len, names)) <= MAX_NAME
    assert partition_index_name("ix_a", 'public."t_1"') == "t_1_ix_a"


def test_an_index_is_written_out_as_sql() -> None:
    written = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql", opts={"as_sql": True, "output_buffer": written}
    )
    with Operations.context(context):
        create_index("ix_plain", "plain", "(a, b) where b like '%_:x'", unique=True)
        create_index("ix_parts", "parts", "(a, b)", partitioned=True)
    assert (
        "create unique index concurrently if not exists ix_plain on plain (a, b) where b like '%_:x';"
        in written.getvalue()
    )
    assert "create index if not exists ix_parts on parts (a, b);" in written.getvalue()
