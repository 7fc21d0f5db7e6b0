"""A server with keys, which the tests of a module share, and sessions of the console on it."""

from collections.abc import Iterator
from typing import NamedTuple

import psycopg
import pytest

from tests.acceptance.console.console_client import Console
from tests.fix_server import SCRIPTED
from tests.support.server_process import ServerProcess, run_command


class Site(NamedTuple):
    """A server, its database, and keys with the scopes admin and metadata."""

    server: ServerProcess
    database_url: str
    admin_key: str
    metadata_key: str

    def sql(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.database_url) as connection:
            return connection.execute(query.encode(), parameters).fetchall()


def make_key(database_url: str, scopes: str, tenant: str) -> str:
    made = run_command("keys", "create", "--scopes", scopes, "--tenant", tenant, database_url=database_url)
    return made.stdout.strip()


@pytest.fixture(scope="module")
def site(module_database: str) -> Iterator[Site]:
    server = ServerProcess(module_database, settings=SCRIPTED)
    try:
        server.start()
        keys = [make_key(module_database, scopes, "ops") for scopes in ("admin,read,write", "metadata")]
        yield Site(server, module_database, *keys)
    finally:
        server.stop()


@pytest.fixture
def console(site: Site) -> Iterator[Console]:
    with Console(site.server, site.admin_key) as session:
        yield session


@pytest.fixture
def metadata_console(site: Site) -> Iterator[Console]:
    with Console(site.server, site.metadata_key) as session:
        yield session
