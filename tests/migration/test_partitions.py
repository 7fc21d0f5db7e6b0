"""The partitions of the schema: which rows they take, who makes them, and that a dump restores them."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RaiseException

from server.embedded_postgres.binaries import psql_command
from server.protocol import ids
from server.store.database_roles import create_roles, create_user
from server.store.schema.partitions import TABLES, ranged_partitions
from tests.migration.test_schema import alembic_on, query
from tests.support.schema import schema

NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)

ROWS = """
    insert into responses (tenant, id, status, background, stream, model, seed, request, metadata, size, kind,
        turn)
    select 'acme', id, 'completed', false, false, 'm', 1, '{"input": "50 %%: \\u0000"}', '{"a": "b"}', 1,
        'response', 1
    from unnest(%(ids)s::uuid[]) as new (id);
    insert into items (tenant, response_id, side, idx, id, type, payload, size)
    select 'acme', id, 0, 0, 'msg_' || replace(id::text, '-', '') || 'i0', 'message', '{}', 2
    from unnest(%(ids)s::uuid[]) as new (id);
    insert into response_streams (tenant, response_id, last_seq, codec, body, finished_at, size)
    select 'acme', id, 0, 2, '[[0,1,0,0,0,1.5,{"type":"response.created"},1]]', now(), 47
    from unnest(%(ids)s::uuid[]) as new (id);
    insert into usage_ledger (tenant, response_id, model, status, stored, input_tokens, cached_tokens,
        output_tokens, reasoning_tokens, started_at, finished_at, kind, background, attempt)
    select 'acme', id, 'm', 'completed', true, 1, 0, 1, 0, now(), now(), 'response', false, 1
    from unnest(%(ids)s::uuid[]) as new (id);
"""


def insert(url: str, count: int, *, at: datetime | None = None) -> None:
    bounds = [ids.min_uuid_at(int(at.timestamp() * 1000) + n) for n in range(count)] if at else []
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(ROWS, {"ids": bounds or [ids.new_uuid() for _ in range(count)]})


def partitions_with_rows(url: str, table: str) -> set[str]:
    return {str(name) for (name,) in query(url, f"select distinct tableoid::regclass::text from {table}")}  # noqa: S608


def contents(url: str) -> list[list[tuple[object, ...]]]:
    return [query(url, f"select t::text from {table} t order by 1") for table in (*TABLES, "v_events")]  # noqa: S608


@pytest.fixture
def filled(database_url: str) -> str:
    """A database with roles and a hundred responses."""
    create_roles(database_url)
    insert(database_url, 100)
    return database_url


def test_rows_without_a_partition_go_to_the_default_one(filled: str) -> None:
    insert(filled, 2, at=NOW + timedelta(days=400))
    for table in TABLES:
        with alembic_on(filled) as (_, connection):
            (old,) = ranged_partitions(connection, table)
        assert timedelta(days=14) <= old.range.end - NOW <= timedelta(days=16)
        assert partitions_with_rows(filled, table) == {old.name, f"{table}_default"}


ADD = "select holdfast_add_partition('{table}', '{start}', '{end}')"


def add(url: str, start: datetime, end: datetime, table: str = "responses") -> list[tuple[object, ...]]:
    return query(url, ADD.format(table=table, start=start.isoformat(), end=end.isoformat()))


def test_a_server_without_ddl_makes_partitions_by_the_function_alone(database_url: str) -> None:
    create_roles(database_url)
    name = "server_of_" + database_url.split("/")[3].split("?")[0][-20:]
    create_user(database_url, name, "server", "secret")
    server = database_url.replace("postgres@", f"{name}:secret@")
    start = NOW.replace(hour=0) + timedelta(days=30)
    with pytest.raises(InsufficientPrivilege):
        query(server, "create table t as select 1")
    assert add(server, start, start + timedelta(days=3)) == [(f"responses_p{start:%Y%m%d%H}",)]
    with pytest.raises(InsufficientPrivilege):
        query(server, f"select 1 from responses_p{start:%Y%m%d%H}")  # noqa: S608
    insert(server, 1, at=start + timedelta(hours=1))
    assert partitions_with_rows(server, "responses") == {f"responses_p{start:%Y%m%d%H}"}


@pytest.mark.parametrize(
    ("table", "start", "end"),
    [
        ("api_keys", NOW + timedelta(days=30), NOW + timedelta(days=31)),
        ("responses; drop table items", NOW + timedelta(days=30), NOW + timedelta(days=31)),
        ("responses", NOW + timedelta(days=30, minutes=1), NOW + timedelta(days=31)),
        ("responses", NOW + timedelta(days=31), NOW + timedelta(days=30)),
        ("responses", NOW - timedelta(days=3), NOW - timedelta(days=2)),
        ("responses", NOW + timedelta(days=30), NOW + timedelta(days=100)),
        ("responses", NOW + timedelta(days=400), NOW + timedelta(days=401)),
    ],
)
def test_only_ranges_ahead_of_these_tables_are_made(
    database_url: str, table: str, start: datetime, end: datetime
) -> None:
    with pytest.raises(RaiseException):
        add(database_url, start, end, table)


def test_a_dump_is_restored(filled: str, empty_database_url: str, tmp_path: Path) -> None:
    program = Path(psql_command(filled)[0][0]).with_name("pg_dump")
    subprocess.run([program, "-Fp", "-f", tmp_path / "dump.sql", filled], check=True, capture_output=True)
    command_, _ = psql_command(empty_database_url)
    restore = [*command_, "-q", "-v", "ON_ERROR_STOP=1", "-f", str(tmp_path / "dump.sql")]
    subprocess.run(restore, check=True, capture_output=True)
    assert contents(empty_database_url) == contents(filled)
    assert schema(empty_database_url) == schema(filled)
