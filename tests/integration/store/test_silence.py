"""A Postgres that falls silent: every wait for it ends, and what comes after finds a new connection."""

import threading
from collections.abc import Iterator
from time import monotonic

import psycopg
import pytest

from server.store import database
from server.store import timeout_connection as connect
from server.store.database import Database, clock
from server.store.database_errors import DatabaseError
from tests.fix_proxy import Proxy
from tests.support.eventually import eventually

PATIENCE_S = 0.4


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect.TimeoutConnection, "timeout_seconds", PATIENCE_S)
    monkeypatch.setattr(connect, "PING_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setitem(connect._CLIENT_KEEPALIVES, "connect_timeout", "2")  # less is as much, says psycopg


@pytest.fixture
def remote(proxy: Proxy) -> Iterator[Database]:
    opened = Database(proxy.url, pool_size=4)
    yield opened
    opened.close()


def test_a_statement_that_is_not_answered_is_given_up(proxy: Proxy, remote: Database) -> None:
    with pytest.raises(DatabaseError, match="does not answer"), remote.begin() as one, proxy.deaf():
        clock(one)
    assert remote.retry(clock)


def test_a_commit_that_is_not_answered_is_given_up(proxy: Proxy, remote: Database) -> None:
    own = remote.dedicated_connection("test")
    transaction = own.begin()
    clock(own)
    with proxy.deaf(), pytest.raises(DatabaseError):
        transaction.commit()
    own.close()
    with remote.dedicated_connection("test") as another:
        clock(another)


def test_a_new_connection_that_is_not_answered_is_given_up(proxy: Proxy, remote: Database) -> None:
    with proxy.deaf(), pytest.raises(DatabaseError):
        remote.dedicated_connection("test")


def test_idle_connections_that_fell_silent_are_replaced(
    proxy: Proxy, remote: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_RECENT_USE_S", 0.0)
    with remote.begin() as one, remote.begin() as other:
        assert clock(one) < clock(other)
    proxy.strand()
    assert remote.retry(clock)
    assert proxy.connections >= 1


def test_connections_that_fell_silent_right_after_their_use_are_replaced(
    proxy: Proxy, remote: Database
) -> None:
    with remote.begin() as one, remote.begin() as other:
        assert clock(one) < clock(other)
    proxy.strand()
    assert remote.retry(clock)


def test_connections_that_were_reset_are_replaced(proxy: Proxy, remote: Database) -> None:
    with remote.begin() as connection:
        clock(connection)
    proxy.reset()
    assert remote.retry(clock)


def test_work_waits_for_a_network_that_comes_back(
    proxy: Proxy, remote: Database, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[object] = []
    with proxy.down():
        waiting = threading.Thread(target=lambda: found.append(remote.retry(clock, 60.0)))
        waiting.start()
        eventually(lambda: "the database does not answer" in caplog.text)
        assert found == []
    waiting.join()
    assert found


def test_an_answer_in_small_pieces_is_an_answer(proxy: Proxy, remote: Database) -> None:
    proxy.slice(3)
    with remote.begin() as connection:
        assert connection.exec_driver_sql("select repeat('x', 10000)").scalar_one() == "x" * 10000


def test_a_session_that_waits_for_nothing_is_not_given_up(proxy: Proxy, remote: Database) -> None:
    connection = connect.connect(proxy.url, "test", {})
    connection.autocommit = True
    connection.execute("listen anything")
    began = monotonic()
    assert list(connection.notifies(timeout=3 * PATIENCE_S)) == []
    assert monotonic() - began >= 3 * PATIENCE_S
    assert connection.execute("select 1").fetchone() == (1,)
    connection.close()


def test_a_lock_does_not_outlive_a_client_that_vanished(
    proxy: Proxy, remote: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {**connect.REQUEST_TIMEOUTS, "idle_in_transaction_session_timeout": "500"}
    monkeypatch.setattr(database, "REQUEST_TIMEOUTS", short)
    own = remote.dedicated_connection("test")
    own.begin()
    own.exec_driver_sql("insert into conversations values ('t', gen_random_uuid(), '{}', now(), 0, 2)")
    own.exec_driver_sql("lock table conversations")
    proxy.strand()
    with psycopg.connect(database_url) as other:
        other.execute("lock table conversations")  # waits until the server has dropped the silent session
    own.invalidate()
    own.close()
