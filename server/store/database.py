"""`Database`: the connection pool, transactions with retries, dedicated connections; a breaker in outages."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

import psycopg
from sqlalchemy import Connection as Connection
from sqlalchemy import Engine, create_engine, event, pool, text
from sqlalchemy.exc import InvalidatePoolError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from engine.stats_snapshot import Distribution, Histogram
from server.store.database_errors import (
    DatabaseError,
    TransientError,
    first_line,
    is_contention,
    is_disk_full,
    is_read_only,
    is_unavailable,
)
from server.store.driver_statements import as_database_error, execute_later, psycopg_connection
from server.store.timeout_connection import (
    REQUEST_TIMEOUTS,
    SessionSettings,
    TimeoutConnection,
    connect,
    synchronous,
)

log = logging.getLogger("holdfast.database")
T = TypeVar("T")
RETRY_S = 5.0
"""Seconds that a request retries while the database is unavailable."""
_PAUSE_S = 0.1
_KNOWN_S = RETRY_S / 2
"""The most seconds that an outage has lasted when it is noticed."""
_RECENT_USE_S = 1.0
"""Seconds since its last use within which a pooled connection is not pinged at checkout."""
_READING_S = 2.0
"""Seconds for which a reading of the database's clock is used; more often than clocks are set."""
_USED_AT = "used_at"
_BEGAN_AT = "began_at"
_REPLACEMENT_S = 1.0
"""Seconds between two replacements of all pooled connections while the database takes no writes."""
_RESERVED_CONNECTIONS = 5
"""Pooled connections for the process' own threads, so that requests cannot delay a heartbeat."""
ASYNCHRONOUS: SessionSettings = {"synchronous_commit": "off"}
"""Commits do not wait for the disk."""
_COMMIT_SYNCHRONOUSLY = (
    "select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'",
    (),
)
POOL_WAIT_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
_DISK_FULL_S = 10.0
"""Seconds that readiness reports a full disk after the error; probes of load balancers are more frequent."""


class PoolStats(NamedTuple):
    """The connection pool of requests and of this process's threads."""

    size: int
    """The most connections."""
    in_use: int
    wait: Distribution
    """Seconds until a transaction had its connection, of those that got one. Threads that begin one at the
    same moment may be counted once."""


class OutageContinues(OperationalError):
    """The outage did not end before the deadline."""

    def __init__(self) -> None:
        super().__init__("connect", None, TimeoutError("the database is still away"))


class SharedOutage:
    """A circuit breaker: one thread probes an unavailable database, the others wait for it. Thread-safe.
    Without it every request would wait for its own timeout, on every thread of the pool.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._down_since: float | None = None
        self._probing = False

    def report_failure(self, when: float, error: Exception | None = None) -> None:
        """A request that began at `when` (of `monotonic`) failed."""
        with self._changed:
            if self._down_since is not None:
                return
            self._down_since = when
        log.warning("the database does not answer: %s", first_line(error) if error else "no reason is known")

    def report_success(self) -> None:
        """The database answered."""
        if self._down_since is None:
            return
        with self._changed:
            since, self._down_since = self._down_since, None
            self._changed.notify_all()
        if since is not None:
            log.warning("the database is back after %.1f s", monotonic() - since)

    def deadline(self, seconds: float) -> float:
        """The deadline of a retry that begins now: `seconds` after now, or after the outage began."""
        since = self._down_since
        return (monotonic() if since is None else since) + seconds

    def attempt(self, deadline: float) -> AbstractContextManager[None]:
        """Surrounds one try. Waits while another thread probes; raises OutageContinues at the deadline."""
        return nullcontext() if self._down_since is None else self._attempt(deadline)

    @contextmanager
    def _attempt(self, deadline: float) -> Iterator[None]:
        with self._changed:
            if not self._changed.wait_for(self._may_try, max(0.0, deadline - monotonic())):
                raise OutageContinues
            alone = self._down_since is not None
            self._probing = self._probing or alone
        try:
            yield
        finally:
            if alone:
                with self._changed:
                    self._probing = False
                    self._changed.notify()

    def _may_try(self) -> bool:
        return self._down_since is None or not self._probing


class Database:
    """A connection pool for handlers, and dedicated connections for threads; `url` is libpq's."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int,
        strict: bool = True,
        pooled: bool = False,
        direct_url: str | None = None,
    ) -> None:
        """`pool_size` is the number of threads that serve requests. Every commit waits for the disk; without
        `strict`, those of dedicated connections only where they call `commit_synchronously`. `pooled`: the
        URL leads to a pooler in transaction mode. Dedicated connections use `direct_url` then, if there is
        one.
        """
        self.url = url
        self.dedicated_url = direct_url or url
        self.has_sessions = not pooled or direct_url is not None
        """Whether a dedicated connection is a session of Postgres, in which LISTEN works."""
        self.waits_for_disk = strict
        """Whether every commit waits for the disk, not only those that call `commit_synchronously`."""
        self._closed = False
        self.outage = SharedOutage()
        self._pool_engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: connect(url, "holdfast", {**synchronous(url), **REQUEST_TIMEOUTS}, pooled=pooled),
            pool_size=pool_size + _RESERVED_CONNECTIONS,
            max_overflow=0,
            pool_timeout=5,
            pool_use_lifo=True,  # what was used last is prepared, and is not pinged again
            hide_parameters=True,  # parameters are content, which must not reach logs
        )
        self._snapshot_engine = self._pool_engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        autocommit = {} if pooled else {"isolation_level": "AUTOCOMMIT"}
        self._autocommit_engine = self._pool_engine.execution_options(**autocommit)
        self._reading: tuple[float, datetime] | None = None
        """When the database's time was last read, of `monotonic`, and that time."""
        self._disk_full_at: float | None = None
        self._pool_wait = Histogram(POOL_WAIT_BOUNDS)
        self._lost_at = 0.0
        """When a connection was lost: those that were last used before are pinged first."""
        self._read_only_at = 0.0
        """When a session took no writes: sessions that began before are replaced before their next use."""
        event.listen(self._pool_engine, "connect", _note_beginning)
        event.listen(self._pool_engine, "checkin", self._checked_in)
        event.listen(self._pool_engine, "checkout", self._ping_on_checkout)

    @property
    def disk_is_full(self) -> bool:
        """Whether Postgres reported a full disk to a request within the last `_DISK_FULL_S` seconds."""
        full_at = self._disk_full_at
        return full_at is not None and monotonic() - full_at < _DISK_FULL_S

    @property
    def pool_stats(self) -> PoolStats:
        """A snapshot. Any thread."""
        connections = self._pool_engine.pool
        assert isinstance(connections, pool.QueuePool)
        return PoolStats(connections.size(), connections.checkedout(), self._pool_wait.values)

    def begin(self) -> AbstractContextManager[Connection]:
        """One transaction from the pool."""
        return self._begin(self._pool_engine)

    @contextmanager
    def _begin(self, engine: Engine) -> Iterator[Connection]:
        began = monotonic()
        try:
            with engine.begin() as connection:
                self._pool_wait.observe(monotonic() - began)
                self.outage.report_success()
                yield connection
        except TransientError as error:
            self._note_failure(began, error)
            raise
        except psycopg.OperationalError as error:  # SQLAlchemy translates none that comes of a setting
            self._report_failure(began, error)
            raise OperationalError("begin", None, error) from error

    def _run_alone(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """`run_alone` on a connection from the pool, without SQLAlchemy's connection around it, which costs a
        multiple of one statement. Raises DatabaseError.
        """
        began = monotonic()
        try:
            pooled = self._pool_engine.raw_connection()
            raw = pooled.driver_connection
            assert isinstance(raw, TimeoutConnection)
            self._pool_wait.observe(monotonic() - began)
            self.outage.report_success()
            try:
                return raw.run_alone(query, values)
            finally:
                if raw.closed:
                    self._lost_at = monotonic()
                    pooled.invalidate()
                pooled.close()
        except psycopg.Error as error:
            translated = as_database_error("execute", error)
            self._note_failure(began, translated)
            raise translated from error
        except TransientError as error:
            self._note_failure(began, error)
            raise

    def _note_failure(self, began: float, error: DatabaseError) -> None:
        if is_read_only(error):
            self._note_read_only(error)
        elif is_unavailable(error):
            self._lost_at = monotonic()
            self._report_failure(began, error)
        if is_disk_full(error):
            self._disk_full_at = monotonic()

    def _report_failure(self, began: float, error: Exception) -> None:
        """The outage is no older than `_KNOWN_S`: a try takes long also where this process stood still, and
        the requests that follow would be refused at once for it.
        """
        self.outage.report_failure(max(began, monotonic() - _KNOWN_S), error)

    def _note_read_only(self, error: DatabaseError) -> None:
        """After a switchover open sessions may lead to a server that is a standby now: new ones may not."""
        if (now := monotonic()) - self._read_only_at >= _REPLACEMENT_S:
            self._read_only_at = now
            log.warning(
                "the database takes no writes, so connections are opened again: %s", first_line(error)
            )

    def retry(self, work: Callable[[Connection], T], seconds: float = RETRY_S) -> T:
        """The result of `work` in a transaction, which is retried after transient errors.

        `work` must be idempotent, because the answer to a successful commit may have been lost. Retries end
        `seconds` after the first try, or after the start of an outage in progress, and the last DatabaseError
        is raised. Each try has timeouts of its own.
        """
        return self._work(self._pool_engine, work, seconds)

    def read(self, work: Callable[[Connection], T]) -> T:
        """`write` in a read-only REPEATABLE READ transaction: all reads see one snapshot."""
        return self._work(self._snapshot_engine, work, RETRY_S)

    def autocommit(self, work: Callable[[Connection], T]) -> T:
        """`write` in autocommit mode, where a statement takes one exchange with the server.

        Through a pooler it is a transaction, which takes three.
        """
        return self._work(self._autocommit_engine, work, RETRY_S)

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement with parameters $1, $2, …, in autocommit mode, retried likewise.

        For statements of every request: it takes a fraction of the CPU time of `autocommit`.
        """
        return self._retry(partial(self._run_alone, query, values), RETRY_S)

    def scalar(self, query: str, values: Sequence[object] = ()) -> Any:
        """The value in the one row of `rows`."""
        ((value,),) = self.rows(query, values)
        return value

    def _work(self, engine: Engine, work: Callable[[Connection], T], seconds: float) -> T:
        def attempt() -> T:
            with self._begin(engine) as connection:
                return work(connection)

        return self._retry(attempt, seconds)

    def _retry(self, attempt: Callable[[], T], seconds: float) -> T:
        deadline = self.outage.deadline(seconds)
        while True:
            try:
                with self.outage.attempt(deadline):
                    return attempt()
            except TransientError as error:
                if monotonic() >= deadline or not (is_unavailable(error) or is_contention(error)):
                    raise
            sleep(_PAUSE_S)

    def now(self) -> datetime:
        """The database's time: its last reading, and the seconds that have passed here since."""
        if self._reading is None or monotonic() - self._reading[0] > _READING_S:
            time = self.autocommit(clock)
            self._reading = monotonic(), time
        read_at, time = self._reading
        return time + timedelta(seconds=monotonic() - read_at)

    def dedicated_connection(
        self,
        name: str,
        *,
        autocommit: bool = False,
        limits: SessionSettings = REQUEST_TIMEOUTS,
        patience: float | None = None,
    ) -> Connection:
        """A connection outside the pool; the caller closes it.

        `limits` are the server's timeouts, or other settings of the session; `patience` are the seconds for a
        result, where these allow longer statements. If the database is not strict,
        its commits do not wait for the disk, unless they call `commit_synchronously`: a crash of Postgres may
        lose the last ones, which the caller must repeat. With `autocommit`, the caller still surrounds
        statements with `begin`, which is a transaction only where a pooler is between.
        """
        settings = {**(synchronous(self.dedicated_url) if self.waits_for_disk else ASYNCHRONOUS), **limits}
        pooled = not self.has_sessions
        engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: connect(self.dedicated_url, f"holdfast {name}", settings, pooled=pooled),
            poolclass=pool.NullPool,
            hide_parameters=True,
        )
        connection = engine.connect()
        if patience is not None:
            with psycopg_connection(connection) as raw:
                raw.timeout_seconds = patience
        if autocommit and not pooled:
            return connection.execution_options(isolation_level="AUTOCOMMIT")
        return connection

    def close(self) -> None:
        self._closed = True
        self._pool_engine.dispose()

    def _checked_in(self, connection: TimeoutConnection | None, record: ConnectionPoolEntry) -> None:
        """Closes a connection that was in use when the pool was closed."""
        record.info[_USED_AT] = monotonic()
        # After a read-only transaction SQLAlchemy has the next ones begin with READ WRITE, whatever the
        # server's `default_transaction_read_only` says.
        if connection is not None and connection.read_only is not None and not connection.closed:
            connection.read_only = None
        if self._closed and connection is not None:
            connection.close()

    def _ping_on_checkout(
        self, connection: TimeoutConnection, record: ConnectionPoolEntry, _proxy: Any
    ) -> None:
        """Pings a connection that was not used recently, or not since another one was lost, or that has
        unread input. New ones are not pinged. One that began before writes were refused is replaced.
        """
        now = monotonic()
        if record.info.get(_BEGAN_AT, now) <= self._read_only_at:
            raise InvalidatePoolError
        used_at = record.info.get(_USED_AT, now)
        is_recent = now - used_at < _RECENT_USE_S and used_at > self._lost_at
        if not (is_recent and connection.has_no_input()) and not connection.responds():
            raise InvalidatePoolError


def _note_beginning(_connection: TimeoutConnection, record: ConnectionPoolEntry) -> None:
    record.info[_BEGAN_AT] = monotonic()


def takes_writes(connection: Connection) -> bool:
    """Whether a transaction may write: not on a standby, nor where sessions are read-only."""
    setting = connection.execute(text("select current_setting('transaction_read_only')")).scalar_one()
    return bool(setting == "off")


def clock(connection: Connection) -> datetime:
    """The database's time. Only its clock's times are stored."""
    now: datetime = connection.execute(text("select clock_timestamp()")).scalar_one()
    return now


def commit_synchronously(connection: Connection) -> None:
    """Makes this transaction's commit wait for the disk, if the session's setting is `off`."""
    execute_later(connection, _COMMIT_SYNCHRONOUSLY, {})


def lock(connection: Connection, name: str) -> None:
    """Takes the lock of that name until the transaction ends, as where a number of rows is bounded."""
    query = text("select pg_advisory_xact_lock(hashtextextended(:name, 0))")
    connection.execute(query, {"name": name})


def is_responsive(connection: Connection) -> bool:
    """Whether the server answers on a connection that was not used for a while, within `PING_TIMEOUT_S`."""
    with psycopg_connection(connection) as raw:
        return raw.responds()


def set_timeouts(connection: Connection, *, lock_ms: int, statement_ms: int) -> None:
    """Sets `lock_timeout` and `statement_timeout` for this transaction."""
    connection.execute(
        text(f"set local lock_timeout = {lock_ms:d}; set local statement_timeout = {statement_ms:d}")
    )
