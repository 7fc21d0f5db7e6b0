"""Partitions by time: how wide they are, which are missing, making them ahead of time.

Responses, items, streams and the ledger are partitioned by the response's UUIDv7, which begins with its
creation time. Rows outside of every range are in the default partition of their table.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

HOUR: Final = timedelta(hours=1)
MAX_WIDTH: Final = timedelta(days=30)
MIN_LEAD: Final = timedelta(days=1)
CONTENT: Final = ("responses", "items", "response_streams")
"""The tables whose rows go with their response."""
TABLES: Final = (*CONTENT, "usage_ledger")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOUNDS = re.compile(r"FROM \((?:MINVALUE|'([0-9a-f-]{36})')\) TO \('([0-9a-f-]{36})'\)")
_ADVISORY_LOCK = 0x706172746974696F
"""The bytes "partitio": of several replicas, one makes or removes partitions."""


class TimeRange(NamedTuple):
    """From `start`, included, to `end`, which is not."""

    start: datetime
    end: datetime


class Partition(NamedTuple):
    """A partition with a range; its `start` is the epoch if it has no lower bound."""

    name: str
    range: TimeRange
    rows: int
    """Postgres' estimate; -1 if the partition has not been analyzed."""


def width_of(retention_days: int) -> timedelta:
    """The width of new partitions: a tenth of the retention in full hours, at least one, at most 30 days.

    So expired rows stay at most a tenth longer until their partition goes, and a dozen partitions exist.
    """
    if not retention_days:
        return MAX_WIDTH
    return max(HOUR, min(MAX_WIDTH, timedelta(hours=retention_days * 24 // 10)))


def missing_ranges(end: datetime, now: datetime, width: timedelta) -> Iterator[TimeRange]:
    """The ranges that a table needs whose partitions reach to `end`, for two widths and at least a day.

    Ranges end at multiples of `width`. Where the partitions have ended, rows since then are in the default
    partition, which must have none of a new one: the first range begins one to two hours from now.
    """
    start = end if end > now else _next_multiple(now, HOUR) + HOUR
    while start < now + max(2 * width, MIN_LEAD):
        stop = _next_multiple(start, width)
        if stop - start < width / 2:
            stop += width
        yield TimeRange(start, stop)
        start = stop


def _next_multiple(after: datetime, width: timedelta) -> datetime:
    return _EPOCH + ((after - _EPOCH) // width + 1) * width


def time_of(uuid: UUID) -> datetime:
    """The time in a UUIDv7, or in a bound between such."""
    return _EPOCH + timedelta(milliseconds=uuid.int >> 80)


_LIST = text("""
    select c.relname, pg_get_expr(c.relpartbound, c.oid) as bounds, c.reltuples::bigint as rows
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = cast(:table as regclass)
""")
_TRY_LOCK = text(f"select pg_try_advisory_xact_lock({_ADVISORY_LOCK})")
_ANALYZE = text("select holdfast_analyze(:table)")
_ADD = text("select holdfast_add_partition(:table, :start, :end)")


def ranged_partitions(connection: Connection, table: str) -> list[Partition]:
    """The table's partitions but the default one, by time."""
    found = [
        Partition(
            name, TimeRange(time_of(UUID(match[1])) if match[1] else _EPOCH, time_of(UUID(match[2]))), rows
        )
        for name, bounds, rows in connection.execute(_LIST, {"table": table})
        if (match := _BOUNDS.search(bounds))
    ]
    return sorted(found, key=lambda partition: partition.range)


def try_lock(connection: Connection) -> bool:
    """Whether this transaction is the only one that makes or removes partitions."""
    return bool(connection.execute(_TRY_LOCK).scalar())


def add_missing(connection: Connection, table: str, now: datetime, width: timedelta) -> list[TimeRange]:
    """Makes the partitions that the table needs next, in the caller's transaction; returns their ranges."""
    existing = ranged_partitions(connection, table)
    end = existing[-1].range.end if existing else _EPOCH
    added = list(missing_ranges(end, now, width))
    for added_range in added:
        connection.execute(_ADD, {"table": table, "start": added_range.start, "end": added_range.end})
    return added


def analyze(connection: Connection, table: str) -> None:
    """Gathers the planner's statistics of the whole table, if they are out of date; may take minutes."""
    connection.execute(_ANALYZE, {"table": table})
