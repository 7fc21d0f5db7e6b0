"""Work that is repeated when Postgres was away: how often, for how long, and what is not repeated."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import text

from server.store import database as store_database
from server.store.database import Connection, Database, clock, takes_writes
from server.store.database_errors import DatabaseError
from tests.support.eventually import eventually


class Work:
    """Notes a run in a row, and comes to grief in the first runs."""

    def __init__(self, grief: str, *, runs: int = 1) -> None:
        self.runs = 0
        self._grief = grief
        self._failing = runs

    def __call__(self, connection: Connection) -> int:
        self.runs += 1
        connection.execute(
            text("insert into conversations values ('t', gen_random_uuid(), '{}', now(), 0, 2)")
        )
        if self.runs <= self._failing:
            connection.exec_driver_sql(self._grief)
        return self.runs


@pytest.fixture
def administrator(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(make_conninfo(database_url, dbname="postgres"), autocommit=True) as connection:
        yield connection


def rows(database: Database) -> int:
    with database.begin() as connection:
        found: int = connection.exec_driver_sql("select count(*) from conversations").scalar_one()
    return found


def raising(sqlstate: str) -> str:
    return f"do $$ begin raise exception sqlstate '{sqlstate}'; end $$"


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03", "57P01"])
def test_work_is_repeated_after_what_may_pass(database: Database, sqlstate: str) -> None:
    assert database.retry(Work(raising(sqlstate), runs=2)) == 3
    assert rows(database) == 1


def test_work_is_repeated_when_its_connection_was_cut(database: Database) -> None:
    assert database.retry(Work("select pg_terminate_backend(pg_backend_pid())")) == 2
    assert rows(database) == 1


def test_work_is_repeated_when_its_transaction_was_silent_for_too_long(database: Database) -> None:
    silent = "set local idle_in_transaction_session_timeout = '20ms'"

    class Silent(Work):
        def __call__(self, connection: Connection) -> int:
            runs = super().__call__(connection)
            if runs == 1:
                eventually(lambda: silent_ones() == 0)
            connection.execute(text("select 1"))
            return runs

    def silent_ones() -> int:
        with database.begin() as other:
            found: int = other.exec_driver_sql(
                "select count(*) from pg_stat_activity where state = 'idle in transaction'"
                " and datname = current_database() and pid <> pg_backend_pid()"
            ).scalar_one()
        return found

    assert database.retry(Silent(silent)) == 2
    assert rows(database) == 1


@pytest.mark.parametrize("sqlstate", ["53100", "23505", "42601"])
def test_work_is_not_repeated_after_what_stays(database: Database, sqlstate: str) -> None:
    work = Work(raising(sqlstate))
    with pytest.raises(DatabaseError):
        database.retry(work)
    assert work.runs == 1


def test_work_is_run_once_when_there_is_no_time(database: Database) -> None:
    work = Work(raising("40001"))
    with pytest.raises(DatabaseError):
        database.retry(work, seconds=0)
    assert work.runs == 1


def test_a_mistake_of_the_work_is_raised_as_it_is(database: Database) -> None:
    def divide(_connection: Connection) -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError):
        database.retry(divide)


def test_work_waits_for_a_database_that_comes_back(
    database: Database,
    database_url: str,
    administrator: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = str(conninfo_to_dict(database_url)["dbname"])
    administrator.execute(f"alter database {name} allow_connections false")
    try:
        administrator.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
        )
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(database.retry, clock, 60.0) for _ in range(8)]
            eventually(lambda: "the database does not answer" in caplog.text)
            assert not any(work.done() for work in waiting)
            administrator.execute(f"alter database {name} allow_connections true")
            assert all(work.result() for work in waiting)
    finally:
        administrator.execute(f"alter database {name} allow_connections true")


def test_no_time_is_spent_on_an_outage_that_has_lasted(database: Database) -> None:
    work = Work(raising("57P01"), runs=1000)
    database.outage.report_failure(0.0)
    with pytest.raises(DatabaseError):
        database.retry(work, seconds=0.5)
    assert work.runs == 1


def test_an_outage_that_is_noticed_after_this_process_stood_still_has_not_lasted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled = 0.0
    monkeypatch.setattr(store_database, "monotonic", lambda: monotonic() + stalled)

    def stall(connection: Connection) -> None:
        nonlocal stalled
        stalled = 100.0
        connection.exec_driver_sql(raising("57P01"))

    with pytest.raises(DatabaseError):
        database.retry(stall)
    assert database.outage.deadline(5.0) > monotonic() + stalled


def make_read_only(database: Database, sessions: int) -> None:
    """What a switchover that keeps sessions leaves in the pool."""
    with ExitStack() as stack:
        for connection in [stack.enter_context(database.begin()) for _ in range(sessions)]:
            connection.exec_driver_sql("set session characteristics as transaction read only")


def test_sessions_that_take_no_writes_are_all_replaced(database: Database) -> None:
    make_read_only(database, 4)
    assert database.retry(Work("select 1", runs=0)) == 2
    with ExitStack() as stack:
        opened = [stack.enter_context(database.begin()) for _ in range(4)]
        assert all(takes_writes(connection) for connection in opened)


def test_who_forbids_writes_is_heard_by_sessions_that_have_read_a_snapshot(database: Database) -> None:
    database.read(clock)
    make_read_only(database, 1)
    assert not database.retry(takes_writes)


def test_a_statement_of_its_own_meets_no_session_twice_that_takes_no_writes(database: Database) -> None:
    make_read_only(database, 4)
    insert = "insert into conversations values ($1, gen_random_uuid(), '{}', now(), 0, 2) returning tenant"
    assert database.scalar(insert, ["t"]) == "t"
    assert rows(database) == 1


def test_requests_leave_connections_for_our_own_threads(database_url: str) -> None:
    database = Database(database_url, pool_size=1)
    with database.begin() as one, database.begin() as other:
        assert clock(one) < clock(other)
    database.close()
