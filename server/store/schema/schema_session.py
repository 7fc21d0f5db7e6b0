"""The session that changes the schema, and its waits: for Postgres, for tables' locks, for other upgrades."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from time import monotonic, sleep

import psycopg
from sqlalchemy import Connection, create_engine, pool, text

from server.store.database_errors import TransientError, is_contention
from server.store.session_check import accepts_connections
from server.store.timeout_connection import with_network_timeouts

log = logging.getLogger("holdfast.schema")
LOCK = 0x686F6C6466617374
"""Session advisory lock (the bytes "holdfast"): of several processes that migrate at once, one does."""
TABLE_LOCK_TIMEOUT = "1s"
"""The wait for a lock on a table: all others queue behind a session that waits for one."""
_POLL_S = 0.5
_ANNOUNCE_EVERY = 60
"""In polls."""
_PAUSE_S = 1.0


@contextmanager
def connect(url: str) -> Iterator[Connection]:
    """A connection without the time limits of sessions that serve requests. Raises DatabaseError."""
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(
            with_network_timeouts(url), application_name="holdfast schema", prepare_threshold=None
        ),
        poolclass=pool.NullPool,
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def wait_for_connections(url: str, seconds: float, on_wait: Callable[[], None]) -> None:
    """Returns once Postgres accepts connections, or after `seconds`; calls `on_wait` once if it must wait.

    Postgres is asked as `pg_isready` does: without a login, so wrong credentials are no reason to wait.
    """
    deadline = monotonic() + seconds
    waits = False
    while not accepts_connections(url) and monotonic() < deadline:
        if not waits:
            waits = True
            on_wait()
        sleep(_PAUSE_S)


def try_for_locks(url: str, seconds: float, act: Callable[[Connection, float], None]) -> None:
    """Runs `act` with a new session and the seconds that are left, again after a lock that was not got.

    `act` waits for a table's lock for TABLE_LOCK_TIMEOUT; in the pauses run those that queue behind it.
    Raises DatabaseError after `seconds`.
    """
    deadline = monotonic() + seconds
    while True:
        try:
            with connect(url) as connection:
                act(connection, max(1.0, deadline - monotonic()))
                return
        except TransientError as error:
            if monotonic() >= deadline or not is_contention(error):
                raise
        sleep(_PAUSE_S)


@contextmanager
def migration_lock(connection: Connection) -> Iterator[None]:
    """Holds the advisory lock in the block; waits for it without a limit, because a migration may take long.

    The lock is asked for again and again, each time in a transaction of its own. A statement that waited for
    it would have a snapshot, for whose end `create index concurrently` of the lock's holder would wait.
    Limits that the role has on statements and idle transactions do not hold in this session.
    """
    for polls in count():
        if connection.scalar(text(f"select pg_try_advisory_lock({LOCK})")):
            break
        connection.commit()
        if polls % _ANNOUNCE_EVERY == 0:
            log.info("waiting for another process that changes the schema")
        sleep(_POLL_S)
    connection.execute(text(f"set lock_timeout = '{TABLE_LOCK_TIMEOUT}'"))
    for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
        connection.execute(text(f"set {limit} = 0"))
    connection.commit()
    try:
        yield
    finally:
        if not connection.closed and not connection.invalidated:
            connection.rollback()  # of what failed, whose error the next statement would hide
            connection.execute(text(f"select pg_advisory_unlock({LOCK})"))
            connection.commit()
