"""Poolers for tests: PgBouncer in front of a test's database, ended with the test."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.pgbouncer import PgBouncer, any_version, program


class StartPgBouncer(Protocol):
    """Starts a PgBouncer of that release, or of any that is here, in front of a database."""

    def __call__(self, database_url: str, version: str | None = None, **settings: object) -> PgBouncer: ...


@pytest.fixture
def start_pgbouncer() -> Iterator[StartPgBouncer]:
    """Skips the test where the release is not installed."""
    with ExitStack() as stack:

        def start(database_url: str, version: str | None = None, **settings: object) -> PgBouncer:
            wanted = version or any_version()
            if wanted is None or program(wanted) is None:
                pytest.skip(f"there is no PgBouncer {version or ''} here: `make pgbouncer` builds one")
            folder = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
            stack.callback(shutil.rmtree, folder)
            pooler = PgBouncer(folder, wanted, database_url, **settings)
            stack.callback(pooler.kill)
            pooler.start()
            return pooler

        yield start


def pooled(pooler: PgBouncer, direct_url: str | None = None) -> dict[str, object]:
    """The settings of a server behind it."""
    settings: dict[str, object] = {"database_url": pooler.url, "database_pooler": "transaction"}
    return settings if direct_url is None else {**settings, "database_direct_url": direct_url}
