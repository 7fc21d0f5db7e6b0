"""The connection pool, transactions with retries, and schema migrations. Knows no table."""

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
"""Raised by store functions when Postgres is unreachable or reports an error."""

Duplicate = IntegrityError
"""Raised for a row that violates a constraint, such as an existing primary key."""

TransientError = (OperationalError, InterfaceError, InternalError)
"""Errors that may pass: a lost or timed out connection, a restarting server, a full disk."""

T = TypeVar("T")

RETRY_S = 5.0
"""Seconds that a request retries while the database is unavailable."""

_PAUSE_S = 0.1
_RECENT_USE_S = 1.0
"""Seconds since its last use within which a pooled connection is not pinged at checkout."""
_USED_AT = "used_at"
_RESERVED_CONNECTIONS = 5
"""Pooled connections for the process' own threads, so that requests cannot delay a heartbeat."""

UPGRADE_S = 60.0
"""Seconds that an upgrade tries to lock the tables."""
_UPGRADE_PAUSE_S = 1.0
_RETRYABLE = frozenset({"40001", "40P01", "55P03", "25P03"})
"""Serialization failure, deadlock, a lock not got in time, a transaction that was silent for too long."""
_DISK_FULL = "53100"
_DISK_FULL_S = 10.0
"""Seconds that readiness reports a full disk after the error; probes of load balancers are more frequent."""
_QUERY_CANCELED = "57014"
"""The SQLSTATE of a statement that exceeded `statement_timeout`."""


class Database:
    """A connection pool for handlers, and dedicated connections for threads.

    `url` is a libpq URL (`postgresql://…`).
    """

    def __init__(self, url: str, *, pool_size: int, strict: bool = False) -> None:
        """`pool_size` is the number of threads that serve requests.

        With `strict` every commit waits for the disk, not only those that call `commit_synchronously`.
        """
        self.url = url
        self._strict = strict
        self._closed = False
        self._outage = SharedOutage()
        self._pool_engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: connect(url, "holdfast", REQUEST_TIMEOUTS),
            pool_size=pool_size + _RESERVED_CONNECTIONS,
            max_overflow=0,
            pool_timeout=5,
            hide_parameters=True,  # parameters are content, which must not reach logs
        )
        self._snapshot_engine = self._pool_engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        self._autocommit_engine = self._pool_engine.execution_options(isolation_level="AUTOCOMMIT")
        self._disk_full_at: float | None = None
        event.listen(self._pool_engine, "checkin", self._checked_in)
        event.listen(self._pool_engine, "checkout", _ping_on_checkout)

    @property
    def disk_is_full(self) -> bool:
        """Whether Postgres reported a full disk to a request within the last `_DISK_FULL_S` seconds."""
        full_at = self._disk_full_at
        return full_at is not None and monotonic() - full_at < _DISK_FULL_S

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """One transaction from the pool."""
        with self._begin(self._pool_engine) as connection:
            yield connection

    @contextmanager
    def _begin(self, engine: Engine) -> Iterator[Connection]:
        began = monotonic()
        try:
            with engine.begin() as connection:
                self._outage.report_success()
                yield connection
        except TransientError as error:
            if is_unavailable(error):
                self._outage.report_failure(began)
            if is_disk_full(error):
                self._disk_full_at = monotonic()
            raise
        except psycopg.OperationalError as error:  # SQLAlchemy translates none that comes of a setting
            self._outage.report_failure(began)
            raise OperationalError("begin", None, error) from error

    def retry(self, work: Callable[[Connection], T], seconds: float = RETRY_S) -> T:
        """The result of `work` in a transaction, which is retried after transient errors.

        `work` must be idempotent, because the answer to a successful commit may have been lost. Retries end
        `seconds` after the first try, or after the start of an outage in progress, and the last DatabaseError
        is raised. Each try has timeouts of its own.
        """
        return self._retry(self._pool_engine, work, seconds)

    def read(self, work: Callable[[Connection], T]) -> T:
        """The same in a read-only REPEATABLE READ transaction: all reads see one snapshot."""
        return self._retry(self._snapshot_engine, work, RETRY_S)

    def autocommit(self, work: Callable[[Connection], T]) -> T:
        """The same in autocommit mode, where a statement takes one exchange with the server."""
        return self._retry(self._autocommit_engine, work, RETRY_S)

    def _retry(self, engine: Engine, work: Callable[[Connection], T], seconds: float) -> T:
        deadline = self._outage.deadline(seconds)
        while True:
            try:
                with self._outage.attempt(deadline), self._begin(engine) as connection:
                    return work(connection)
            except TransientError as error:
                if monotonic() >= deadline or not _is_retryable(error):
                    raise
            sleep(_PAUSE_S)

    def dedicated_connection(
        self, name: str, *, autocommit: bool = False, limits: str = REQUEST_TIMEOUTS
    ) -> Connection:
        """A connection outside the pool; the caller closes it.

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
        self._pool_engine.dispose()

    def _checked_in(self, connection: TimeoutConnection | None, record: ConnectionPoolEntry) -> None:
        """Closes a connection that was in use when the pool was closed."""
        record.info[_USED_AT] = monotonic()
        if self._closed and connection is not None:
            connection.close()


def _ping_on_checkout(connection: TimeoutConnection, record: ConnectionPoolEntry, _proxy: Any) -> None:
    """Pings a connection that was not used recently, or that has unread input. New ones are not pinged."""
    used_at = record.info.get(_USED_AT, monotonic())
    if monotonic() - used_at < _RECENT_USE_S and connection.has_no_input():
        return
    if not connection.responds():
        raise InvalidatePoolError


def is_unavailable(error: DatabaseError) -> bool:
    """Whether Postgres did not answer, or is starting up or shutting down."""
    if not isinstance(error, TransientError):
        return False
    sqlstate = _sqlstate(error)
    return sqlstate == "" or sqlstate.startswith(("08", "57P"))


def _is_retryable(error: OperationalError | InterfaceError | InternalError) -> bool:
    return is_unavailable(error) or _sqlstate(error) in _RETRYABLE


def _sqlstate(error: OperationalError | InterfaceError | InternalError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def clock(connection: Connection) -> datetime:
    """The database's time. Only its clock's times are stored."""
    now: datetime = connection.execute(text("select clock_timestamp()")).scalar_one()
    return now


def commit_synchronously(connection: Connection) -> None:
    """Makes this transaction's commit wait for the disk, whatever the session's setting."""
    connection.execute(text("set local synchronous_commit = on"))


def is_responsive(connection: Connection) -> bool:
    """Whether the server answers on a connection that was not used for a while, within `PING_S` seconds."""
    with psycopg_connection(connection) as raw:
        return isinstance(raw, TimeoutConnection) and raw.responds()


def set_timeouts(connection: Connection, *, lock_ms: int, statement_ms: int) -> None:
    """Sets `lock_timeout` and `statement_timeout` for this transaction."""
    connection.execute(
        text(f"set local lock_timeout = {lock_ms:d}; set local statement_timeout = {statement_ms:d}")
    )


def is_disk_full(error: DatabaseError) -> bool:
    """Whether Postgres reported `disk_full`."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == _DISK_FULL


def is_statement_timeout(error: DatabaseError) -> bool:
    """Whether the statement exceeded `statement_timeout`."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == _QUERY_CANCELED


@contextmanager
def psycopg_connection(connection: Connection) -> Iterator[psycopg.Connection]:
    """The underlying psycopg connection, in the same transaction, for COPY. Raises DatabaseError."""
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
            if monotonic() >= deadline or _sqlstate(error) not in _RETRYABLE:
                raise
        sleep(_UPGRADE_PAUSE_S)


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
