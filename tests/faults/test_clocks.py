"""F18: the clock of one replica is wrong, or is set while it runs. Only the database's is ever stored."""

from datetime import datetime, timedelta
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg import sql

from tests.fix_server import SCRIPTED, StartServer
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import parse
from tests.support.traffic import Traffic, check_answers, check_store, check_streams

LEASE_S = 2.0
SETTINGS = {**SCRIPTED, "scripted_tokens": 60, "scripted_step_seconds": 0.02, "lease_seconds": LEASE_S}
FOR_LATER = {"expires_at"}
"""Columns whose time is not when something happened."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(3600, 3600, id="an hour fast"),
        pytest.param(-3600, -3600, id="an hour slow", marks=pytest.mark.faults),
        pytest.param(0, -60, id="set back by a minute", marks=pytest.mark.faults),
    ],
)
def test_a_wrong_clock_costs_no_lease_and_is_never_stored(
    start_server: StartServer,
    database_url: str,
    tmp_path: Path,
    before: float,
    after: float,
    tally: Tally,
) -> None:
    shift = tmp_path / "shift"
    set_clock(shift, before)
    wrong = ServerProcess(database_url, settings=SETTINGS, module=("tests.support.wrong_clock", str(shift)))
    with psycopg.connect(database_url, autocommit=True) as connection:
        began = now(connection)
        right = start_server(**SETTINGS)
        wrong.start()
        try:
            with Traffic(right, tokens=40) as honest, Traffic(wrong, tokens=40) as traffic:
                set_clock(shift, after)
                unstored = {"model": MODEL, "input": "Hello", "store": False}
                told = httpx.post(f"{wrong.api}/responses", json=unstored, timeout=60.0).json()
                eventually(lambda: now(connection) > began + timedelta(seconds=3 * LEASE_S), within=30.0)
            assert off_by(wrong) == pytest.approx(before, abs=60)
            ended = now(connection)
            times = stored_times(connection)
            dead = connection.execute("select 1 from replicas where state <> 'alive'").fetchall()
            for one in (honest, traffic):
                check_streams(one, one.server)
                check_answers(one)
                check_store(one, one.server, database_url)
                times += [("stream", *told_times(final)) for final in finals(one)]
            assert told["status"] == "completed"
            times.append(("unstored", *told_times(told)))
        finally:
            wrong.stop()
    assert dead == []
    slack = timedelta(seconds=1)  # what is told are whole seconds
    assert [found for found in times if not began - slack <= found[1] <= found[2] <= ended + slack] == []
    assert len(times) > 10
    tally["F18", "replicas with a wrong clock"] += 1
    tally["F18", "times compared"] += len(times)


def set_clock(shift: Path, seconds: float) -> None:
    """In one move: a server that asks for the time must not find the file empty."""
    written = shift.with_suffix(".new")
    written.write_text(str(seconds))
    written.replace(shift)


def now(connection: psycopg.Connection) -> datetime:
    row = connection.execute("select clock_timestamp()").fetchone()
    assert row is not None
    found: datetime = row[0]
    return found


def off_by(server: ServerProcess) -> float:
    """How wrong the clock was when that server started, which it tells as its model's time."""
    created = httpx.get(f"{server.api}/models/{MODEL}").json()["created"]
    return float(created - datetime.now().astimezone().timestamp())


def stored_times(connection: psycopg.Connection) -> list[tuple[str, datetime, datetime]]:
    """The earliest and latest of every column that is a time, whatever tables there are."""
    columns = connection.execute(
        "select table_name, column_name from information_schema.columns"
        " where table_schema = 'public' and data_type like 'timestamp%'"
        " and table_name not in ('schema_compatibility', 'refused_requests')"  # of migrations; whole hours
    ).fetchall()
    found = []
    for table, column in columns:
        names = {"table": sql.Identifier(table), "column": sql.Identifier(column)}
        query = sql.SQL("select min({column}), max({column}) from {table}").format(**names)
        row = connection.execute(query).fetchone()
        if column not in FOR_LATER and row is not None and row[0] is not None:
            found.append((f"{table}.{column}", row[0], row[1]))
    return found


def finals(traffic: Traffic) -> list[dict[str, object]]:
    return [parse(one.events)[-1].json["response"] for one in traffic.followed]


def told_times(response: dict[str, object]) -> tuple[datetime, datetime]:
    """When a response began and ended, as its object says; it tells no end but that of a whole answer."""
    created, completed = response["created_at"], response["completed_at"] or response["created_at"]
    assert isinstance(created, int)
    assert isinstance(completed, int)
    return datetime.fromtimestamp(created).astimezone(), datetime.fromtimestamp(completed).astimezone()
