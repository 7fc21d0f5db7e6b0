"""The migrations on every supported major version of Postgres."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from alembic import command

from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.store.schema.upgrade import migrations, schema_state, upgrade
from tests.fix_postgres import IN_A_HURRY, postgres_folder, temporary_database
from tests.migration.test_schema import alembic_on
from tests.support.postgres_versions import MAJORS, programs

FIRST = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=30)
LAST = FIRST + timedelta(days=1)
EVERYTHING = """
    select table_name, column_name, data_type, is_nullable, column_default from information_schema.columns
    where table_schema = current_schema()
    union all
    select tablename, indexname, indexdef, null, null from pg_indexes where schemaname = current_schema()
    union all
    select conrelid::regclass::text, conname, pg_get_constraintdef(oid), null, null from pg_constraint
    where connamespace = current_schema()::regnamespace
    order by 1, 2, 3
"""


@pytest.fixture(
    scope="module",
    params=[pytest.param(major, marks=[pytest.mark.faults] * (major != MAJORS[0])) for major in MAJORS],
)
def version(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    """A running Postgres of each version."""
    pgbin = programs(request.param)
    if pgbin is None:
        pytest.skip(f"no Postgres {request.param} here; `make postgres` fetches it")
    data_dir = postgres_folder()
    try:
        with EmbeddedPostgres(data_dir, pgbin=pgbin, options=IN_A_HURRY) as postgres:
            with psycopg.connect(postgres.url) as connection:
                assert connection.info.server_version // 10_000 == request.param
            yield postgres
    finally:
        shutil.rmtree(data_dir)


@pytest.fixture
def url(version: EmbeddedPostgres) -> Iterator[str]:
    with temporary_database(version, "version") as name:
        yield version.url_of(name)


def schema(url: str) -> list[tuple[object, ...]]:
    """Columns, indexes and constraints."""
    with psycopg.connect(url) as connection:
        return connection.execute(EVERYTHING).fetchall()


def test_the_schema_is_the_codes_and_goes_down_step_by_step_and_up_again(url: str) -> None:
    upgrade(url)
    assert schema_state(url) == "current"
    made = schema(url)
    with alembic_on(url) as (config, _):
        command.check(config)
        for _ in migrations():
            command.downgrade(config, "-1")
    assert {row[0] for row in schema(url)} == {"alembic_version"}
    upgrade(url)
    assert schema(url) == made
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select holdfast_add_partition('responses', %s, %s)", [FIRST, LAST])
    with alembic_on(url) as (config, _):
        command.check(config)
