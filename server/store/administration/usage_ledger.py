"""Sums of the usage ledger: by tenant, key, model and day, over a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Date, cast, func, select, text

from server.store.administration.operator_tables import usage_ledger
from server.store.content.deletion import ExpiredRange
from server.store.pages import page

Group = Literal["day", "tenant", "key_id", "model"]
GROUPS: dict[Group, ColumnElement[Any]] = {
    "day": cast(func.timezone("UTC", usage_ledger.c.finished_at), Date),
    "tenant": usage_ledger.c.tenant,
    "key_id": func.coalesce(usage_ledger.c.key_id, ""),
    "model": usage_ledger.c.model,
}
"""What sums are grouped and sorted by, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """Which responses are summed: those that ended in this time; None is any."""

    start: datetime
    end: datetime | None = None
    """Before this time."""
    tenant: str | None = None
    key_id: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """The sums of one group; a value by which they are not grouped is None."""

    day: date | None = None
    tenant: str | None = None
    key_id: str | None = None
    model: str | None = None
    responses: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost: Decimal
    unpriced_responses: int
    """Those whose cost is null."""


def sums(
    connection: Connection,
    chosen: UsageFilter,
    groups: Sequence[Group],
    after: Sequence[object] | None,
    limit: int,
    *,
    descending: bool = False,
) -> list[UsageSum]:
    """The sums of the groups that come after the one with the values `after`; one more than `limit`.

    `groups` are in the order of GROUPS, and so are the values.
    """
    columns = usage_ledger.c
    keys = [GROUPS[name].label(name) for name in groups]
    summed = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost")
    totals = [
        func.count().label("responses"),
        *(func.coalesce(func.sum(columns[name]), 0).label(name) for name in summed),
        func.count().filter(columns.cost.is_(None)).label("unpriced_responses"),
    ]
    query = select(*keys, *totals).where(columns.finished_at >= chosen.start)
    if chosen.end is not None:
        query = query.where(columns.finished_at < chosen.end)
    filters: tuple[Group, ...] = ("tenant", "key_id", "model")
    for name in filters:
        if (value := getattr(chosen, name)) is not None:
            query = query.where(GROUPS[name] == value)
    if groups:
        order = [GROUPS[name] for name in groups]
        query = page(query.group_by(*order), order, after, limit, descending=descending)
    return [UsageSum(**row._mapping) for row in connection.execute(query)]


MAX_REMOVED = 1000
"""The most entries that one transaction removes."""
_REMOVE_OLDER = """
    delete from usage_ledger where (tenant, response_id) in (
        select l.tenant, l.response_id from usage_ledger l
        where EXPIRED and l.kind is not null
          and not exists (select from responses r where r.tenant = l.tenant and r.id = l.response_id)
        order by l.finished_at limit :limit for update skip locked)
"""


def remove_older(connection: Connection, days: int, expired: ExpiredRange) -> int:
    """Removes entries of responses that ended longer ago, at most `MAX_REMOVED`; returns how many.

    Entries of stored responses stay, and such that the sums by day do not have yet. Of a range `until` an
    earlier time go those that are older by then.
    """
    earlier = expired._replace(until=expired.until and expired.until - timedelta(days=days))
    condition = earlier.condition(
        "l.response_id", "l.finished_at", f"statement_timestamp() - interval '{days:d} days'"
    )
    statement = text(_REMOVE_OLDER.replace("EXPIRED", condition))
    return connection.execute(statement, {"limit": MAX_REMOVED}).rowcount
