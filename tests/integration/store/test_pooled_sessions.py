"""Connections through a pooler: transactions have their settings, sessions keep none, nothing is prepared."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from server.store.cluster.leases import register_replica
from server.store.database import Database, commit_synchronously
from server.store.driver_statements import psycopg_connection
from server.store.log_append import append_and_commit
from server.store.session_check import probe
from server.store.timeout_connection import RECORDER_TIMEOUTS, REQUEST_TIMEOUTS, connect

SHOWN = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit")


@pytest.fixture
def pooled(database_url: str) -> Iterator[Database]:
    with closing(Database(database_url, pool_size=1, pooled=True, strict=False)) as database:
        yield database


def settings(connection: Connection) -> tuple[str, ...]:
    return tuple(connection.execute(text(f"show {name}")).scalar_one() for name in SHOWN)


def outside(connection: Connection) -> tuple[str, ...]:
    """The same outside a transaction, as the next client of the session would see them."""
    with psycopg_connection(connection) as raw:
        raw.autocommit = True
        shown = tuple(raw.execute(f"show {name}").fetchone()[0] for name in SHOWN)  # type: ignore[index]
        raw.autocommit = False
    return shown


def test_each_transaction_has_the_settings_and_the_session_keeps_none(pooled: Database) -> None:
    for work in (pooled.retry, pooled.read, pooled.autocommit):
        assert work(settings) == ("5s", "1s", "5s", "on")
    with pooled.begin() as connection:
        name = connection.execute(text("show transaction isolation level")).scalar_one()
    assert name == "read committed"
    with closing(pooled.dedicated_connection("test", limits=RECORDER_TIMEOUTS)) as own:
        before = outside(own)
        for _ in range(2):
            with own.begin():
                assert settings(own) == ("600ms", "250ms", "5s", "off")
                commit_synchronously(own)
                assert settings(own)[3] == "on"
        assert outside(own) == before
        assert before[:2] == ("0", "0")


def test_the_recorders_fast_commit_has_the_settings_too(pooled: Database) -> None:
    with pooled.begin() as connection:
        replica = register_replica(
            connection, host="h", pid=1, version="1", revision="0001", role="all", models=["m"]
        )
    with closing(pooled.dedicated_connection("test", limits=RECORDER_TIMEOUTS)) as own:
        with psycopg_connection(own) as raw:
            assert b"SET LOCAL synchronous_commit = 'off'" in raw.begin_command()
        assert append_and_commit(own, replica, lambda _now: [])
        assert outside(own)[:2] == ("0", "0")


def exchanges(url: str, trace: Path, *, pooled: bool) -> int:
    """Answers of Postgres to six transactions of one statement."""
    connection = connect(url, "test", REQUEST_TIMEOUTS, pooled=pooled)
    with closing(connection), trace.open("w") as written:
        connection.pgconn.trace(written.fileno())
        for number in range(6):
            connection.execute("select %s::int", [number])
            connection.commit()
        connection.pgconn.untrace()
    said = trace.read_text()
    assert ("Parse" in said, '"_pg3_' in said) == (True, not pooled), "only direct sessions prepare"
    return said.count("ReadyForQuery")


def test_the_settings_of_a_transaction_cost_no_exchange(database_url: str, tmp_path: Path) -> None:
    direct = exchanges(database_url, tmp_path / "direct", pooled=False)
    assert exchanges(database_url, tmp_path / "pooled", pooled=True) <= direct


def test_without_a_pooler_a_session_is_ones_own_and_keeps_its_settings(database_url: str) -> None:
    for pooled in (False, True):
        found = probe("database-url", database_url, pooled=pooled)
        assert (found.keeps_settings, found.is_own_backend) == (True, True)
    assert (
        probe("database-url", database_url, pooled=True).server
        == probe("database-url", database_url, pooled=False).server
    )
