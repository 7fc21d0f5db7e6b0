"""Revision 0013 on a database with rows: nothing is copied or lost, and the release before can write."""

import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from alembic import command
from psycopg.errors import InsufficientPrivilege, RaiseException

from server.embedded_postgres.binaries import psql_command
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.protocol import ids
from server.store.database_roles import create_roles, create_user
from server.store.schema.partitions import TABLES, ranged_partitions
from server.store.schema.upgrade import upgrade
from tests.fix_postgres import IN_A_HURRY, postgres_folder, temporary_database
from tests.migration.test_schema import alembic_on, query
from tests.support.postgres_versions import programs

NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)

ROWS = """
    insert into responses (tenant, id, status, background, stream, model, seed, request, metadata)
    select 'acme', id, 'completed', false, false, 'm', 1, '{"input": "50 %%: \\u0000"}', '{"a": "b"}'
    from unnest(%(ids)s::uuid[]) as new (id);
    insert into items (tenant, response_id, side, idx, id, type, payload)
    select 'acme', id, 0, 0, 'msg_' || replace(id::text, '-', '') || 'i0', 'message', '{}'
    from unnest(%(ids)s::uuid[]) as new (id);
    insert into response_streams (tenant, response_id, last_seq, codec, body, finished_at)
    select 'acme', id, 0, 1, '[[0,1,0,0,0,1.5,{"type":"response.created"}]]', now()
    from unnest(%(ids)s::uuid[]) as new (id);
    insert into usage_ledger (tenant, response_id, model, status, stored, input_tokens, cached_tokens,
        output_tokens, reasoning_tokens, started_at, finished_at)
    select 'acme', id, 'm', 'completed', true, 1, 0, 1, 0, now(), now()
    from unnest(%(ids)s::uuid[]) as new (id);
"""
"""As the release before writes them."""


def insert(url: str, count: int, *, at: datetime | None = None) -> None:
    bounds = [ids.min_uuid_at(int(at.timestamp() * 1000) + n) for n in range(count)] if at else []
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(ROWS, {"ids": bounds or [ids.new_uuid() for _ in range(count)]})


def partitions_with_rows(url: str, table: str) -> set[str]:
    return {str(name) for (name,) in query(url, f"select distinct tableoid::regclass::text from {table}")}  # noqa: S608


def contents(url: str) -> list[list[tuple[object, ...]]]:
    return [query(url, f"select t::text from {table} t order by 1") for table in (*TABLES, "v_events")]  # noqa: S608


def files(url: str, table: str) -> set[object]:
    """The files of the table and its partitions."""
    query_files = (
        "select pg_relation_filepath(coalesce(i.inhrelid, c.oid)) from pg_class c"
        " left join pg_inherits i on i.inhparent = c.oid where c.oid = 'TABLE'::regclass"
    )
    found = query(url, query_files.replace("TABLE", table))
    return {path for (path,) in found}


def to(url: str, revision: str) -> None:
    with alembic_on(url) as (config, _):
        move = command.downgrade if revision == "0012" else command.upgrade
        move(config, revision)


@pytest.fixture
def filled(database_url: str) -> str:
    """A database of the revision before, with roles and a hundred responses."""
    create_roles(database_url)
    to(database_url, "0012")
    insert(database_url, 100)
    return database_url


def test_the_upgrade_copies_no_row_and_loses_none(filled: str) -> None:
    before, old_files = contents(filled), {table: files(filled, table) for table in TABLES}
    to(filled, "0013")
    assert contents(filled) == before
    assert all(old_files[table] <= files(filled, table) for table in TABLES)
    to(filled, "head")
    with alembic_on(filled) as (config, _):
        command.check(config)


def test_the_downgrade_makes_plain_tables_again(filled: str) -> None:
    before = contents(filled)
    to(filled, "head")
    insert(filled, 10, at=NOW + timedelta(days=400))
    to(filled, "0012")
    assert all(set(rows) <= set(now) for rows, now in zip(before, contents(filled), strict=True))
    assert query(filled, "select 1 from pg_class where relispartition or relname like '%_partitioned'") == []
    assert query(filled, "select 1 from pg_proc where proname like 'holdfast%'") == []
    unique = "select conname::text from pg_constraint where conname = 'uq_items_tenant_id'"
    assert query(filled, unique) == [("uq_items_tenant_id",)]
    assert len(query(filled, "select 1 from responses")) == 110


def test_an_upgrade_that_was_broken_off_is_continued(filled: str) -> None:
    """One that held the lock back left the check and an index that is not valid."""
    with psycopg.connect(filled) as dump:
        dump.execute("select 1 from items limit 0")
        with pytest.raises(Exception, match="lock timeout"):
            to(filled, "head")
    kind = "select relkind::text from pg_class where relname = "
    assert query(filled, f"{kind} 'responses'") == [("p",)]
    assert query(filled, f"{kind} 'items'") == [("r",)]
    insert(filled, 5)
    invalid = "update pg_index set indisvalid = false where indexrelid = 'ix_items_id'::regclass returning 1"
    assert query(filled, invalid) == [(1,)]
    to(filled, "head")
    assert query(filled, "select 1 from pg_index where not indisvalid") == []
    assert len(query(filled, "select 1 from items")) == 105


def test_rows_without_a_partition_go_to_the_default_one(filled: str) -> None:
    to(filled, "head")
    insert(filled, 2, at=NOW + timedelta(days=400))
    for table in TABLES:
        with alembic_on(filled) as (_, connection):
            (old,) = ranged_partitions(connection, table)
        assert timedelta(days=14) <= old.range.end - NOW <= timedelta(days=16)
        assert partitions_with_rows(filled, table) == {old.name, f"{table}_default"}


def test_roles_keep_their_rights(filled: str) -> None:
    rights = (
        "select table_name, grantee, privilege_type from information_schema.role_table_grants"
        " where table_name in ('responses', 'items', 'response_streams', 'usage_ledger') order by 1, 2, 3"
    )
    columns = rights.replace("role_table_grants", "column_privileges")
    columns = columns.replace("select ", "select column_name, ")
    policies = "select tablename, policyname, roles, cmd, qual from pg_policies order by 1, 2"
    before = [query(filled, statement) for statement in (rights, columns)]
    secured = {row[:2] for row in query(filled, policies)}
    to(filled, "0013")
    assert [query(filled, statement) for statement in (rights, columns)] == before
    assert secured <= {row[:2] for row in query(filled, policies)}


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
    to(filled, "head")
    program = Path(psql_command(filled)[0][0]).with_name("pg_dump")
    subprocess.run([program, "-Fp", "-f", tmp_path / "dump.sql", filled], check=True, capture_output=True)
    command_, _ = psql_command(empty_database_url)
    restore = [*command_, "-q", "-v", "ON_ERROR_STOP=1", "-f", str(tmp_path / "dump.sql")]
    subprocess.run(restore, check=True, capture_output=True)
    assert contents(empty_database_url) == contents(filled)
    with alembic_on(empty_database_url) as (config, _):
        command.check(config)


@pytest.fixture
def of_postgres_15() -> Iterator[str]:
    binaries = programs(15)
    if binaries is None:
        pytest.skip("no Postgres 15 here; `make postgres` fetches it")
    data_dir = postgres_folder()
    try:
        with (
            EmbeddedPostgres(data_dir, pgbin=binaries, options=IN_A_HURRY) as postgres,
            temporary_database(postgres, "fifteen") as name,
        ):
            yield postgres.url_of(name)
    finally:
        shutil.rmtree(data_dir)


def test_postgres_15_has_the_same(of_postgres_15: str) -> None:
    upgrade(of_postgres_15)
    to(of_postgres_15, "0012")
    insert(of_postgres_15, 10)
    before = contents(of_postgres_15)
    to(of_postgres_15, "0013")
    assert contents(of_postgres_15) == before
    to(of_postgres_15, "head")
    with alembic_on(of_postgres_15) as (config, _):
        command.check(config)
    add(of_postgres_15, NOW + timedelta(days=30), NOW + timedelta(days=31))
