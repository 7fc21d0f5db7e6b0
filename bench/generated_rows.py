"""Fills a database with the responses of `generated_rows.sql`, and their usage into the sums of its days."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psycopg

from server.protocol.ids import response_id
from server.store.administration import usage_days
from server.store.database import Database, set_timeouts

UNFOLDED = 1000
"""Responses that the retention thread has not folded into the sums of their day yet."""

_ROWS = Path(__file__).with_suffix(".sql")
_SETTINGS = "set statement_timeout = 0; set work_mem = '256MB'; select setseed(0.5)"
_METERED = f"""
    with metered as (select {usage_days.RETURNED} from (
        select *, row_number() over (order by finished_at desc) as age from usage_ledger) as l
        where age {{which}})
    {usage_days.ADD}
"""  # noqa: S608 - constants of ours
_LONGEST = "select id from responses order by turn desc limit 1"


def fill(url: str, count: int) -> str:
    """Adds so many responses; the API's id of the last one of the longest chain."""
    rows = _ROWS.read_text(encoding="utf-8").replace(":count", str(count)).split(";\n")
    with psycopg.connect(url, autocommit=True) as connection:
        _execute(connection, [_SETTINGS, *rows, _METERED.format(which=f"> {UNFOLDED}")])
        connection.execute("analyze usage_changes")
        _fold(url)
        connection.execute("vacuum usage_changes")  # which gives back its pages
        _execute(connection, [_METERED.format(which=f"<= {UNFOLDED}"), "drop table drawn, chained"])
        connection.execute("vacuum (freeze, analyze)")
        longest = connection.execute(_LONGEST).fetchone()
    assert longest is not None
    return response_id(longest[0])


def _fold(url: str) -> None:
    with closing(Database(url, pool_size=1)) as database:
        more = True
        while more:
            with database.begin() as once:
                set_timeouts(once, lock_ms=1000, statement_ms=0)
                more = usage_days.fold(once)


def _execute(connection: psycopg.Connection, statements: Sequence[str]) -> None:
    for statement in filter(str.strip, statements):
        connection.execute(statement.encode())
