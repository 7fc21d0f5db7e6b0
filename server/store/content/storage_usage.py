"""How many bytes each tenant has stored: one row for every change of it, whose sum is the answer.

A statement that adds or removes stored bytes inserts its row itself, in its own transaction. A counter per
tenant would have all replicas' commits wait for one row's lock; inserted rows wait for nobody. `fold_changes`
replaces many of them by their sum.

What is counted is what the columns `size` (and `items.for_model`) say. Rows of releases without these columns
have none: they are counted neither when they come nor when they go, so a sum never falls below what is there.
"""

from typing import Final

from sqlalchemy import Connection, text

ROW_BYTES: Final = 1024
"""What a response or a conversation takes besides its contents: other columns and index entries."""
FOLD_ROWS = 64
"""A tenant's changes are folded when there are more."""
_MAX_FOLDED = 10_000
"""How many are folded in one transaction."""

ITEM_BYTES: Final = "size + coalesce(octet_length(for_model), 0)"
"""What an item with a size takes. Postgres knows the length of a long value without reading it."""


def count_added(change: str, *, before: str = "", gives: str = "count(*)") -> str:
    """SQL of `change` and of the row that counts what it adds.

    `change` returns rows with `tenant` and `bytes`. `before` are the CTEs that it needs, for those that
    change data must not be nested. `gives` is what the whole statement returns of the changed rows.
    """
    return _with_change_row(change, "sum(bytes)", before, gives)


def count_removed(change: str, *, gives: str = "count(*)") -> str:
    """The same for what it removes."""
    return _with_change_row(change, "-sum(bytes)", "", gives)


def _with_change_row(change: str, bytes_: str, before: str, gives: str) -> str:
    first = f"{before}," if before else ""
    return f"""
    with {first} changed as ({change}), counted as (
        insert into storage_changes (tenant, bytes)
        select tenant, {bytes_} from changed group by tenant having sum(bytes) <> 0)
    select {gives} from changed
    """  # noqa: S608 - constants of ours


_TOTAL = text("select coalesce(sum(bytes), 0)::bigint from storage_changes where tenant = :tenant")
_TOTALS = text(
    "select tenant, sum(bytes)::bigint from storage_changes group by tenant having sum(bytes) <> 0 order by 1"
)
_FOLD = text(
    """
    with gone as (
        delete from storage_changes where (tenant, id) in (
            select tenant, id from storage_changes where tenant in (
                select tenant from storage_changes group by tenant having count(*) > :rows)
            limit :limit for update skip locked)
        returning tenant, bytes
    ), sums as (
        insert into storage_changes (tenant, bytes) select tenant, sum(bytes) from gone group by tenant)
    select count(*) from gone
    """
)


def total(connection: Connection, tenant: str) -> int:
    """The bytes that a tenant has stored."""
    found: int = connection.execute(_TOTAL, {"tenant": tenant}).scalar_one()
    return found


def totals(connection: Connection) -> list[tuple[str, int]]:
    """Those of every tenant that has any, by name."""
    return [(tenant, bytes_) for tenant, bytes_ in connection.execute(_TOTALS)]


def fold_changes(connection: Connection) -> bool:
    """Replaces changes of tenants that have many by their sums; whether there may be more of them.

    No lock is waited for, and readers see the changes or their sum.
    """
    found: int = connection.execute(_FOLD, {"rows": FOLD_ROWS, "limit": _MAX_FOLDED}).scalar_one()
    return found == _MAX_FOLDED
