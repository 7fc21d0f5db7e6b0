"""Connections to Postgres and the schema's version. Knows no table."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal, TypeVar

import psycopg
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, pool, text
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    InvalidatePoolError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from server.configuration.shipped_files import migrations_folder
from server.store.connection import REQUEST_TIMEOUTS, TimeoutConnection, connect, with_network_timeouts
from server.store.shared_outage import SharedOutage

__all__ = [
    "Connection",
    "Database",
    "DatabaseError",
    "Duplicate",
    "SchemaState",
    "TransientError",
    "clock",
    "commit_synchronously",
    "is_disk_full",
    "is_responsive",
    "is_statement_timeout",
    "is_unavailable",
    "psycopg_connection",
    "schema_state",
    "set_timeouts",
    "upgrade",
]

SchemaState = Literal["current", "behind", "unknown"]
"""`unknown`: the database has a revision that this release does not know, so it is newer."""

DatabaseError = SQLAlchemyError
"""What store functions raise when Postgres cannot be reached or refuses."""

Duplicate = IntegrityError
"""What they raise for a row that is there already."""

TransientError = (OperationalError, InterfaceError, InternalError)
"""Those of them that may pass: a connection lost, or cut for its silence; a server restarting; a disk that
is full for now."""

T = TypeVar("T")

RETRY_S = 5.0
"""How long a request waits for a database that restarts."""

_PAUSE_S = 0.1
_RECENT_USE_S = 1.0
"""How long ago a connection may have been used at most that is used again without being asked whether it is
still there."""
_USED_AT = "used_at"
_RESERVED_CONNECTIONS = 5
"""Connections beyond the requests': no crowd of them keeps a heartbeat or a health check waiting."""

UPGRADE_S = 60.0
"""How long an upgrade tries to get the locks that it needs."""
_UPGRADE_PAUSE_S = 1.0
_RETRYABLE = frozenset({"40001", "40P01", "55P03", "25P03"})
"""Serialization failure, deadlock, a lock not got in time, a transaction that was silent for too long."""
_DISK_FULL = "53100"
_DISK_FULL_S = 10.0
"""How long a disk that was full is taken for full; a probe of a load balancer comes in that time."""
_QUERY_CANCELED = "57014"
"""What a statement ends with that took longer than `statement_timeout`."""


class Database:
    """A pool for handlers, and single connections for threads that keep theirs.

    `url` is libpq's (`postgresql://…`), given to psycopg as it is.
    """

    def __init__(self, url: str, *, pool_size: int, strict: bool = False) -> None:
        """`pool_size` is the number of threads that serve requests.

        `strict` makes every commit wait for the disk, not only those that say `commit_synchronously`.
        """
        self.url = url
        self._strict = strict
        self._closed = False
        self._outage = SharedOutage()
        self._engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: connect(url, "holdfast", REQUEST_TIMEOUTS),
            pool_size=pool_size + _RESERVED_CONNECTIONS,
            max_overflow=0,
            pool_timeout=5,
            hide_parameters=True,  # what is stored is content, and logs outlive it
        )
        self._snapshots = self._engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        self._alone = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._disk_full_at: float | None = None
        event.listen(self._engine, "checkin", self._checked_in)
        event.listen(self._engine, "checkout", _ping_on_checkout)

    @property
    def disk_is_full(self) -> bool:
        """Postgres said so to a request within the last seconds. Of the disk itself nothing is known here."""
        full_at = self._disk_full_at
        return full_at is not None and monotonic() - full_at < _DISK_FULL_S

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """One transaction from the pool."""
        with self._begin(self._engine) as connection:
            yield connection

    @contextmanager
    def _begin(self, engine: Engine) -> Iterator[Connection]:
        began = monotonic()
        try:
            with engine.begin() as connection:
                self._outage.ended()
                yield connection
        except TransientError as error:
            if is_unavailable(error):
                self._outage.began(began)
            if is_disk_full(error):
                self._disk_full_at = monotonic()
            raise
        except psycopg.OperationalError as error:  # SQLAlchemy translates none that comes of a setting
            self._outage.began(began)
            raise OperationalError("begin", None, error) from error

    def retry(self, work: Callable[[Connection], T], seconds: float = RETRY_S) -> T:
        """What `work` gives in a transaction, which is run again when Postgres was away or refused for now.

        So `work` must be repeatable, also after a commit whose answer was lost: what it changes it must find
        changed. The tries end after so many seconds, or so many after the outage began that is going on, and
        the last one's DatabaseError is raised; every try is limited itself, so that nobody waits much longer.
        """
        return self._retry(self._engine, work, seconds)

    def read(self, work: Callable[[Connection], T]) -> T:
        """The same for what only reads: all that it sees is of one moment."""
        return self._retry(self._snapshots, work, RETRY_S)

    def ask(self, work: Callable[[Connection], T]) -> T:
        """The same for what needs no transaction: each statement is one, and takes one exchange alone."""
        return self._retry(self._alone, work, RETRY_S)

    def _retry(self, engine: Engine, work: Callable[[Connection], T], seconds: float) -> T:
        deadline = self._outage.deadline(seconds)
        while True:
            try:
                with self._outage.turn(deadline), self._begin(engine) as connection:
                    return work(connection)
            except TransientError as error:
                if monotonic() >= deadline or not _is_retryable(error):
                    raise
            sleep(_PAUSE_S)

    def dedicate(self, name: str, *, autocommit: bool = False, limits: str = REQUEST_TIMEOUTS) -> Connection:
        """A connection outside the pool, for a thread of ours, which closes it.

        `limits` are the server's time limits on the session, as options of a connection string. Its
        commits do not wait for the disk, unless the database is strict or they say
        `commit_synchronously`: a crash of Postgres may lose the last of them, which whoever made them
        must make again.
        """
        options = limits if self._strict else f"{limits} -c synchronous_commit=off"
        engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: connect(self.url, f"holdfast {name}", options),
            poolclass=pool.NullPool,
            hide_parameters=True,
        )
        connection = engine.connect()
        return connection.execution_options(isolation_level="AUTOCOMMIT") if autocommit else connection

    def close(self) -> None:
        self._closed = True
        self._engine.dispose()

    def _checked_in(self, connection: TimeoutConnection | None, record: ConnectionPoolEntry) -> None:
        """A connection that was in use when the pool was closed comes back to nobody."""
        record.info[_USED_AT] = monotonic()
        if self._closed and connection is not None:
            connection.close()


def _ping_on_checkout(connection: TimeoutConnection, record: ConnectionPoolEntry, _proxy: Any) -> None:
    """Makes sure of a connection that was not used for a while; a new one is as good as used."""
    used_at = record.info.get(_USED_AT, monotonic())
    if monotonic() - used_at < _RECENT_USE_S and connection.is_silent():
        return
    if not connection.is_there():
        raise InvalidatePoolError


def is_unavailable(error: DatabaseError) -> bool:
    """Whether Postgres did not answer at all, or said that it stops or starts."""
    if not isinstance(error, TransientError):
        return False
    sqlstate = _sqlstate(error)
    return sqlstate == "" or sqlstate.startswith(("08", "57P"))


def _is_retryable(error: OperationalError | InterfaceError | InternalError) -> bool:
    return is_unavailable(error) or _sqlstate(error) in _RETRYABLE


def _sqlstate(error: OperationalError | InterfaceError | InternalError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def clock(connection: Connection) -> datetime:
    """The database's time, the only one that is stored."""
    now: datetime = connection.execute(text("select clock_timestamp()")).scalar_one()
    return now


def commit_synchronously(connection: Connection) -> None:
    """This transaction's commit waits for the disk, whatever the session's setting."""
    connection.execute(text("set local synchronous_commit = on"))


def is_responsive(connection: Connection) -> bool:
    """Whether the server answers on a connection that was not used for a while, within `PING_S` seconds."""
    with psycopg_connection(connection) as raw:
        return isinstance(raw, TimeoutConnection) and raw.is_there()


def set_timeouts(connection: Connection, *, lock_ms: int, statement_ms: int) -> None:
    """Bounds how long each statement of this transaction may wait for a lock, and how long it may take."""
    connection.execute(
        text(f"set local lock_timeout = {lock_ms:d}; set local statement_timeout = {statement_ms:d}")
    )


def is_disk_full(error: DatabaseError) -> bool:
    """Whether Postgres said that it could not write for want of space."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == _DISK_FULL


def is_statement_timeout(error: DatabaseError) -> bool:
    """Whether Postgres answers, but ended this statement for the time that it took."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == _QUERY_CANCELED


@contextmanager
def psycopg_connection(connection: Connection) -> Iterator[psycopg.Connection]:
    """The psycopg connection underneath, for COPY, within the same transaction. Raises DatabaseError."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    try:
        yield raw
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise OperationalError("copy", None, error) from error
    except psycopg.InternalError as error:
        raise InternalError("copy", None, error) from error
    except psycopg.IntegrityError as error:
        raise IntegrityError("copy", None, error) from error
    except psycopg.DataError as error:
        raise DataError("copy", None, error) from error
    except psycopg.Error as error:
        raise DBAPIError("copy", None, error) from error


def upgrade(url: str, seconds: float = UPGRADE_S) -> None:
    """Brings the schema to this release's; several processes may do so at once.

    A table that another transaction uses is waited for at most a second at a time, with pauses in which the
    requests and heartbeats that queue behind it come through. Raises DatabaseError after so many seconds.
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
            if monotonic() >= deadline or _sqlstate(error) not in _RETRYABLE:
                raise
        sleep(_UPGRADE_PAUSE_S)


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
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(with_network_timeouts(url)),
        poolclass=pool.NullPool,
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
