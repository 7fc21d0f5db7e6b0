"""Partitions by time: how wide they are, which are missing or due, made ahead of time, detached and dropped.

Responses, items, streams and the ledger are partitioned by the response's UUIDv7, which begins with its
creation time. Rows outside of every range are in the default partition of their table.

A partition whose range is over for the whole retention is detached in one short transaction, which also
moves the few rows that stay to the default partition. Readers see nothing of the others from then on. What is
left to do for those, and the end of the table, is a second transaction, which locks nothing that others need.
A process that dies between the two leaves a table `responses_detached_…`, which the next purge finishes.

So that there is something to remove at once, a purge leaves rows to their partition that expire shortly
before it goes: at most `width_of` the retention before.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from server.protocol.ids import min_uuid_at
from server.store import arrays
from server.store.content.deletion import EVERYTHING, HIGHEST, LOWEST, ExpiredRange
from server.store.content.responses import ResponseKey

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
    ranged = [
        Partition(
            name, TimeRange(time_of(UUID(match[1])) if match[1] else _EPOCH, time_of(UUID(match[2]))), rows
        )
        for name, bounds, rows in connection.execute(_LIST, {"table": table})
        if (match := _BOUNDS.search(bounds))
    ]
    return sorted(ranged, key=lambda partition: partition.range)


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


GIVEN_UP_AFTER: Final = timedelta(days=1)
"""A partition that could not be detached for so long is purged row by row."""
MIN_DUE: Final = 1_000
"""Fewer rows are deleted one by one: to detach locks everybody out for a moment."""
MAX_MOVED: Final = 1_000
"""Responses, or entries of the ledger, that are moved while everybody is locked out."""
MAX_MOVED_ITEMS: Final = 10_000
MAX_DEFAULT_ROWS: Final = 100_000
"""Rows of default partitions, which are read whole under a lock whenever a partition is made."""


class Survey(NamedTuple):
    """Counts of a partition that is due; counting ends shortly after what `is_dropped` needs."""

    rows: int
    """Responses, or entries of the ledger."""
    kept: int
    kept_items: int
    default_rows: int
    """Rows of the default partitions to which these would go, as Postgres estimates."""


def is_dropped(survey: Survey) -> bool:
    """Whether the partition goes as a whole, also one without due rows; else its rows go one by one. Pure."""
    due = survey.rows - survey.kept
    return (
        (due == 0 or due >= MIN_DUE)
        and survey.kept <= MAX_MOVED
        and survey.kept_items <= MAX_MOVED_ITEMS
        and survey.default_rows + survey.kept <= MAX_DEFAULT_ROWS
    )


def due_ranges(partitions: Sequence[Partition], now: datetime, days: int) -> list[Partition]:
    """The partitions whose whole range is over for so many days; none where that is 0. Pure."""
    return [part for part in partitions if days and part.range.end + timedelta(days=days) <= now]


def row_by_row(
    partitions: Sequence[Partition], now: datetime, days: int, decided: frozenset[str] = frozenset()
) -> tuple[ExpiredRange, ...]:
    """The ranges that a purge deletes row by row, the newest first; the rest goes with its partition. Pure.

    `days` is the retention. Left are rows of the next partition to go, and of those that are due, if they
    expire within `width_of` the retention before that. None are left of the `decided` partitions, which are
    not dropped, and of what is due for longer than GIVEN_UP_AFTER.
    """
    if not days:
        return EVERYTHING
    age, width = timedelta(days=days), width_of(days)
    spared = [
        part
        for part in sorted(partitions, key=lambda partition: partition.range)
        if part.name not in decided and now - GIVEN_UP_AFTER < part.range.end + age < now + width
    ]
    ranges, low = list[ExpiredRange](), LOWEST
    for part in spared:
        start, end = _bound(part.range.start), _bound(part.range.end)
        if low < start:
            ranges.append(ExpiredRange(low, start, None))
        ranges.append(ExpiredRange(start, end, part.range.end + age - width))
        low = end
    return ExpiredRange(low, HIGHEST, None), *reversed(ranges)


def _bound(time: datetime) -> UUID:
    return min_uuid_at(int(time.timestamp() * 1000))


_KEYS = arrays.unnest("k", ResponseKey)
_SURVEY = """
    select (select count(*) from (
            select from {table} where {key} >= :low and {key} < :high limit :most) as rows) as rows,
        (select count(*) from {keys}
         join items i on i.tenant = k.tenant and i.response_id = k.id) as kept_items,
        (select cast(sum(greatest(reltuples, 0)) as bigint) from pg_class
         where oid = any (cast(cast(:defaults as text[]) as regclass[]))) as default_rows
"""
_SURVEYS = {
    table: text(_SURVEY.format(table=table, key=key, keys=_KEYS))
    for table, key in (("responses", "id"), ("usage_ledger", "response_id"))
}
_SURVIVORS = {
    "responses": text("select tenant, id from holdfast_surviving_responses(:part, :term, :most)"),
    "usage_ledger": text("select tenant, id from holdfast_surviving_entries(:part, :term, :most)"),
}
_DETACH = text("""
    select holdfast_detach(
        cast(:parts as text[]), :age, cast(:tenant as text[]), cast(:id as uuid[]))
""")
_DETACHED = text("""
    select substring(relname from '[0-9]{10}$') from pg_class
    where relkind = 'r' and relnamespace = cast(current_schema() as regnamespace)
      and relname ~ ('^' || :table || '_detached_[0-9]{10}$') order by 1
""")
_DROP_RESPONSES = text("select tenant, responses from holdfast_drop_responses(:ended, :term)")
_DROP_ENTRIES = text("select holdfast_drop_entries(:ended, :term)")


def survivors(connection: Connection, table: str, partition: Partition, term: float) -> list[ResponseKey]:
    """The rows of a partition that stay, a few more than MAX_MOVED at most; reads all of its rows.

    `term` is the time after a response's end until it may go, in seconds; of the ledger's entries in days.
    """
    parameters = {"part": partition.name, "term": term, "most": MAX_MOVED + 1}
    return [ResponseKey(*row) for row in connection.execute(_SURVIVORS[table], parameters)]


def survey(connection: Connection, table: str, partition: Partition, kept: Sequence[ResponseKey]) -> Survey:
    """Counts what `is_dropped` needs, of a partition of `responses` or `usage_ledger`."""
    of_responses = table == "responses"
    parameters = {
        "low": _bound(partition.range.start),
        "high": _bound(partition.range.end),
        "most": len(kept) + MIN_DUE,
        "defaults": [f"{name}_default" for name in (CONTENT if of_responses else [table])],
    }
    keys = arrays.fields(ResponseKey, kept if of_responses else ())
    row = connection.execute(_SURVEYS[table], {**parameters, **keys}).one()
    return Survey(row.rows, len(kept), row.kept_items, row.default_rows)


def detach(connection: Connection, parts: Sequence[str], age: timedelta, kept: Sequence[ResponseKey]) -> None:
    """Detaches partitions of one range and moves what is kept. Raises DatabaseError for a lock not had."""
    connection.execute(_DETACH, {"parts": list(parts), "age": age, **arrays.fields(ResponseKey, kept)})


def detached(connection: Connection, table: str) -> list[str]:
    """The ends of the ranges, as their names have them, of detached partitions that are still there."""
    return list(connection.scalars(_DETACHED, {"table": table}))


def first_kept_id(connection: Connection) -> UUID:
    """Responses whose id is smaller may be in a partition that is detached and not dropped yet."""
    ends = detached(connection, "responses")
    return _bound(datetime.strptime(f"{max(ends)}Z", "%Y%m%d%H%z")) if ends else LOWEST


def drop(connection: Connection, table: str, ended: str, term: float) -> dict[str, int]:
    """Does what is left to do for the rows of a detached partition, and drops it; `term` as of `survivors`.

    Returns how many responses readers have lost, by tenant; nothing for the ledger.
    """
    parameters = {"ended": ended, "term": term}
    if table == "usage_ledger":
        connection.execute(_DROP_ENTRIES, parameters)
        return {}
    return {row.tenant: row.responses for row in connection.execute(_DROP_RESPONSES, parameters)}
