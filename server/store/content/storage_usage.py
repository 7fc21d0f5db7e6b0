"""Stored bytes of each tenant, as the sum of a row for every change.

A statement that adds or removes stored bytes inserts the change itself, in the same transaction. With a
counter per tenant all replicas' commits would wait for the lock of one row. `fold_changes` replaces many
changes by their sum.

Sizes come from the columns `size` and `items.for_model`. Rows of releases without these columns have none and
are counted neither on insertion nor on deletion.
"""

from functools import partial
from typing import Final

from sqlalchemy import Connection, TextClause, text

ROW_BYTES: Final = 1024
"""An estimate for a row's other columns and index entries."""
FOLD_ROWS = 64
"""Changes of a tenant above which they are folded."""
_MAX_FOLDED = 10_000
TODAY: Final = "cast(statement_timestamp() at time zone 'utc' as date)"
IMAGE_BYTES: Final = f"size + {ROW_BYTES}"
ITEM_BYTES: Final = "size + coalesce(octet_length(for_model), 0)"
"""SQL of an item's size. Postgres knows the length of a TOASTed value without reading it."""


def adding(change: str, *, before: str = "", gives: str = "count(*)", sign: str = "") -> TextClause:
    """The statement of `change` that also records the bytes it adds. `change` returns rows with `tenant` and
    `bytes`. `before` are CTEs that it needs; data-modifying ones must be at the top level. `gives` is the
    select list of the whole statement over the changed rows.
    """
    first = f"{before}," if before else ""
    return text(f"""
    with {first} changed as ({change}), counted as (
        insert into storage_changes (tenant, day, bytes)
        select tenant, {TODAY}, {sign}sum(bytes) from changed group by tenant having sum(bytes) <> 0)
    select {gives} from changed
    """)


removing = partial(adding, sign="-")
"""The statement of `change` that also records the bytes it removes."""
_TOTAL = text("select coalesce(sum(bytes), 0)::bigint from storage_changes where tenant = :tenant")
_TOTALS = text(
    "select tenant, sum(bytes)::bigint from storage_changes group by tenant having sum(bytes) <> 0 order by 1"
)
_FOLD = text("""
    with gone as (
        delete from storage_changes where (tenant, id) in (
            select tenant, id from storage_changes where tenant in (
                select tenant from storage_changes group by tenant having count(*) > :rows)
            limit :limit for update skip locked)
        returning tenant, day, bytes
    ), days as (
        insert into storage_days (tenant, day, added, removed)
        select tenant, day, sum(greatest(bytes, 0)), sum(greatest(-bytes, 0)) from gone
        where day is not null group by tenant, day order by tenant, day
        on conflict (tenant, day) do update set added = storage_days.added + excluded.added,
            removed = storage_days.removed + excluded.removed
    ), sums as (
        insert into storage_changes (tenant, bytes) select tenant, sum(bytes) from gone group by tenant)
    select count(*) from gone
""")


def total(connection: Connection, tenant: str) -> int:
    """The bytes that a tenant has stored."""
    return int(connection.execute(_TOTAL, {"tenant": tenant}).scalar_one())


def totals(connection: Connection) -> list[tuple[str, int]]:
    """The stored bytes of every tenant that has any, ordered by name."""
    return [(tenant, bytes_) for tenant, bytes_ in connection.execute(_TOTALS)]


def fold_changes(connection: Connection) -> bool:
    """Replaces the changes of tenants with many by their sums, and adds them to those of their days.

    Returns whether there may be more.

    Skips locked rows; readers see either the changes or their sum.
    """
    folded: int = connection.execute(_FOLD, {"rows": FOLD_ROWS, "limit": _MAX_FOLDED}).scalar_one()
    return folded == _MAX_FOLDED
