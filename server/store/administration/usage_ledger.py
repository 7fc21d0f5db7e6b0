"""`remove_older`: entries of the usage ledger end after a time."""

from datetime import timedelta

from sqlalchemy import Connection, text

from server.store.content.deletion import ExpiredRange

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
