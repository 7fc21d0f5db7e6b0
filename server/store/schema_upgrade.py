"""Schema migrations: compares the database's Alembic revision with this release's, and upgrades it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Literal

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, pool

from server.configuration.shipped_files import migrations_folder
from server.store.database_errors import TransientError, is_contention
from server.store.timeout_connection import with_network_timeouts

SchemaState = Literal["current", "behind", "unknown"]
"""`unknown`: the database has a revision that this release does not know, so it is newer."""

UPGRADE_S = 60.0
"""Seconds that an upgrade tries to lock the tables."""
_UPGRADE_PAUSE_S = 1.0


def upgrade(url: str, seconds: float = UPGRADE_S) -> None:
    """Migrates the schema to this release; safe to run in several processes at once.

    A lock on a table in use is waited for at most a second at a time, with pauses in which the queries that
    queue behind it run. Raises DatabaseError after `seconds`.
    """
    deadline = monotonic() + seconds
    while True:
        try:
            with _schema_connection(url) as connection:
                config = _alembic()
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                return
        except TransientError as error:
            if monotonic() >= deadline or not is_contention(error):
                raise
        sleep(_UPGRADE_PAUSE_S)


def newest_revision() -> str:
    """The revision of this release's schema."""
    return ScriptDirectory.from_config(_alembic()).get_current_head() or ""


def schema_state(url: str) -> SchemaState:
    """The database's schema compared with this release's."""
    script = ScriptDirectory.from_config(_alembic())
    with _schema_connection(url) as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    if found == script.get_current_head():
        return "current"
    known = {revision.revision for revision in script.walk_revisions()}
    return "behind" if found is None or found in known else "unknown"


@contextmanager
def _schema_connection(url: str) -> Iterator[Connection]:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(with_network_timeouts(url), prepare_threshold=None),
        poolclass=pool.NullPool,
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
