"""Removal of whole partitions: which are due, what of them is kept, detaching and dropping them.

A partition whose range is over for the whole retention is detached in one short transaction, which also
moves the few rows that stay to the default partition. Readers see nothing of the others from then on. What is
left to do for those, and the end of the table, is a second transaction, which locks nothing that others need.
A process that dies between the two leaves a table `responses_detached_…`, which the next purge finishes.

So that there is something to remove at once, a purge leaves rows to their partition that expire shortly
before it goes: at most `width_of` the retention before.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from server.protocol.ids import min_uuid_at
from server.store import arrays
from server.store.content.deletion import EVERYTHING, HIGHEST, LOWEST, ExpiredRange
from server.store.content.responses import ResponseKey
from server.store.schema.partitions import CONTENT, Partition, width_of

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
    """Whether the partition goes as a whole; otherwise its rows are deleted one by one. Pure.

    One of which nothing is due any more goes, too, so that partitions do not accumulate.
    """
    due = survey.rows - survey.kept
    return (
        (due == 0 or due >= MIN_DUE)
        and survey.kept <= MAX_MOVED
        and survey.kept_items <= MAX_MOVED_ITEMS
        and survey.default_rows + survey.kept <= MAX_DEFAULT_ROWS
    )


def due_ranges(partitions: Sequence[Partition], now: datetime, days: int) -> list[Partition]:
    """The partitions whose whole range is over for so many days; none where that is 0. Pure."""
    return [one for one in partitions if days and one.range.end + timedelta(days=days) <= now]


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
    left = [
        one
        for one in sorted(partitions, key=lambda partition: partition.range)
        if one.name not in decided and now - GIVEN_UP_AFTER < one.range.end + age < now + width
    ]
    ranges, low = list[ExpiredRange](), LOWEST
    for one in left:
        start, end = _bound(one.range.start), _bound(one.range.end)
        if low < start:
            ranges.append(ExpiredRange(low, start, None))
        ranges.append(ExpiredRange(start, end, one.range.end + age - width))
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
        "defaults": [f"{one}_default" for one in (CONTENT if of_responses else [table])],
    }
    keys = arrays.fields(ResponseKey, kept if of_responses else ())
    row = connection.execute(_SURVEYS[table], {**parameters, **keys}).one()
    return Survey(row.rows, len(kept), row.kept_items, row.default_rows)


def detach(connection: Connection, parts: Sequence[str], age: timedelta, kept: Sequence[ResponseKey]) -> None:
    """Detaches partitions of one range and moves what is kept, in the caller's transaction. Raises
    DatabaseError, one that `is_contention` where a lock was not to be had at once.
    """
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
