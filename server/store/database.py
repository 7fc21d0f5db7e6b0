"""Connections to Postgres and the schema's version. Knows no table."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

import psycopg
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import set_json_dumps, set_json_loads
from sqlalchemy import Connection, Engine, create_engine, pool, text
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from server.locations import migrations_folder

__all__ = [
    "Connection",
    "Database",
    "DatabaseError",
    "SchemaState",
    "Unreachable",
    "clock",
    "driver",
    "durable",
    "schema_state",
    "upgrade",
]

SchemaState = Literal["current", "behind", "unknown"]
"""`unknown`: the database has a revision that this release does not know, so it is newer."""

DatabaseError = SQLAlchemyError
"""What store functions raise when Postgres cannot be reached or refuses."""

Unreachable = (OperationalError, InterfaceError)
"""Those of them that may pass: a connection lost, a server restarting, a disk that is full for now."""

_TIMEOUTS = "-c statement_timeout=5s -c lock_timeout=1s -c idle_in_transaction_session_timeout=10s"


class Database:
    """A pool for handlers, and single connections for threads that keep theirs.

    `url` is libpq's (`postgresql://…`), given to psycopg as it is.
    """

    def __init__(self, url: str, *, pool_size: int, strict: bool = False) -> None:
        """`strict` makes every commit wait for the disk, not only those that say `durable`."""
        self.url = url
        self._strict = strict
        self._engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: _connect(url, "holdfast", _TIMEOUTS),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=5,
            pool_pre_ping=True,
        )

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """One transaction from the pool."""
        with self._engine.begin() as connection:
            yield connection

    def dedicate(self, name: str) -> Connection:
        """A connection outside the pool and without time limits, for a thread of ours, which closes it.

        Its commits do not wait for the disk, unless the database is strict or they say `durable`: a crash of
        Postgres may lose the last moments of a stream, a crash of ours nothing.
        """
        options = "" if self._strict else "-c synchronous_commit=off"
        engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: _connect(self.url, f"holdfast {name}", options),
            poolclass=pool.NullPool,
        )
        return engine.connect()

    def close(self) -> None:
        self._engine.dispose()


def clock(connection: Connection) -> datetime:
    """The database's time, the only one that is stored."""
    now: datetime = connection.execute(text("select clock_timestamp()")).scalar_one()
    return now


def durable(connection: Connection) -> None:
    """This transaction's commit waits for the disk, whatever the session's setting."""
    connection.execute(text("set local synchronous_commit = on"))


@contextmanager
def driver(connection: Connection) -> Iterator[psycopg.Connection]:
    """The psycopg connection underneath, for COPY, within the same transaction. Raises DatabaseError."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    try:
        yield raw
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise OperationalError("copy", None, error) from error
    except psycopg.Error as error:
        raise DatabaseError(str(error)) from error


def _connect(url: str, name: str, options: str) -> psycopg.Connection:
    """A connection on which JSON columns are text both ways.

    Only msgspec encodes, and what was stored comes back the same; `options` are added to the URL's own.
    """
    given = conninfo_to_dict(url).get("options") or ""
    connection = psycopg.connect(url, application_name=name, options=f"{given} {options}".strip())
    set_json_dumps(_as_it_is, connection)
    set_json_loads(_as_it_is, connection)
    return connection


def _as_it_is(document: str | bytes) -> str:
    return document.decode() if isinstance(document, bytes) else document


def upgrade(url: str) -> None:
    """Brings the schema to this release's; several processes may do so at once."""
    with _schema_connection(url) as connection:
        config = _alembic()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def schema_state(url: str) -> SchemaState:
    """How the database's schema stands to this release's."""
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
    engine: Engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=pool.NullPool
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _alembic() -> AlembicConfig:
    folder: Path = migrations_folder()
    config = AlembicConfig()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
