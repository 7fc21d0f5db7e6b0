"""The migrations on every supported major version of Postgres."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from alembic import command

from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.store.schema.schema_status import schema_state
from server.store.schema.upgrade import migrations, upgrade
from tests.fix_postgres import IN_A_HURRY, postgres_folder, temporary_database
from tests.migration.test_schema import alembic_on
from tests.support.postgres_versions import MAJORS, programs
from tests.support.schema import schema, unlike_the_code

FIRST = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=30)
LAST = FIRST + timedelta(days=1)


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


def test_the_schema_is_the_codes_and_goes_down_step_by_step_and_up_again(url: str) -> None:
    upgrade(url)
    assert schema_state(url) == "current"
    made = schema(url)
    assert unlike_the_code(url) == set()
    with alembic_on(url) as (config, _):
        for _ in migrations():
            command.downgrade(config, "-1")
    assert {row[0] for row in schema(url)} == {"alembic_version"}
    upgrade(url)
    assert schema(url) == made
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select holdfast_add_partition('responses', %s, %s)", [FIRST, LAST])
    assert unlike_the_code(url) == set()
