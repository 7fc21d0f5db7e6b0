"""The usage ledger: `record_usage` adds a response to it, to its key's spending and to the sums of days.

`remove_older` removes entries after a time.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Connection, select, text

from server.protocol.responses.response import FACTS, Ending, ResponseFacts
from server.store import arrays
from server.store.administration import budget_standings, spend, usage_days
from server.store.administration.model_prices import COST
from server.store.content.deletion import ExpiredRange
from server.store.driver_statements import execute_later
from server.store.tables import usage_ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """A response's line in the ledger, without its end; it has no content."""

    facts: ResponseFacts
    stored: bool
    attempt: int = 1
    metadata: Mapping[str, str] = field(default_factory=dict)


MAX_TAG = 64
"""Characters of the values of metadata that the ledger has, too."""


def tags_of(metadata: Mapping[str, str]) -> str | None:
    """The JSON of the pairs whose values are short; None if there is none. Pure.

    Requests are bounded to 16 pairs, with names of 64 characters.
    """
    tags = {name: value for name, value in metadata.items() if len(value) <= MAX_TAG}
    return json.dumps(tags) if tags else None


def record_usage(connection: Connection, entries: Sequence[tuple[LedgerEntry, Ending]]) -> None:
    """Inserts ledger entries of responses and what they cost, kept for ever; settles their reservations."""
    columns = [
        {
            **_NO_USAGE,
            **{name: getattr(ending, name) for name in _OF_ENDING},
            **{name: getattr(usage.facts, name) for name in _OF_FACTS},
            "response_id": usage.facts.id,
            "started_at": usage.facts.created_at,
            "stored": usage.stored,
            "attempt": usage.attempt,
            "metadata": tags_of(usage.metadata),
        }
        for usage, ending in entries
    ]
    execute_later(connection, _METER, arrays.columns(columns))


_NO_USAGE = dict.fromkeys(column.name for column in usage_ledger.c if column.name != "cost")
_USAGE_TYPES = {name: arrays.type_name(usage_ledger.c[name]) for name in _NO_USAGE}
_OF_FACTS = [name for name in FACTS if name in _NO_USAGE]
_OF_ENDING = [name for name in Ending.__dataclass_fields__ if name in _NO_USAGE]
_VALUES = ", ".join(arrays.value("e", name, kind) for name, kind in _USAGE_TYPES.items())
_METER = arrays.with_numbers(f"""
    with entries as (
        select * from {arrays.unnest("e", _USAGE_TYPES)}
    ), metered as (
        insert into usage_ledger ({", ".join(_NO_USAGE)}, cost)
        select {_VALUES}, ({COST}) from entries e
        returning {usage_days.RETURNED}, response_id),
    spent as ({spend.ADD}),
    settled as ({budget_standings.SETTLE})
    {usage_days.ADD}
""")
"""Inserts entries with every column of the ledger, their cost at the model's price, what the keys spent in
place of what was reserved, and the changes of the days' sums."""


def is_metered(connection: Connection, tenant: str, response_id: UUID) -> bool:
    """Whether the response has a ledger entry, which is committed with its end."""
    of_response = (usage_ledger.c.tenant == tenant, usage_ledger.c.response_id == response_id)
    return connection.execute(select(usage_ledger.c.model).where(*of_response)).first() is not None


MAX_REMOVED = 1000
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
