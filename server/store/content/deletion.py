"""Deletion and expiry of responses: `delete` of one, `purge_batch` of expired ones, tombstones.

A deleted row stays as a tombstone, whose items are history, while other responses name it as previous; the
removal of its last successor removes it. `responses.expires_at` is a queue: an expired row without successors
is removed, one with successors loses its stream and becomes a tombstone. The next batch, of any replica,
continues interrupted work and rows that were locked. Batches take all locks with SKIP LOCKED, so concurrent
purges and deletions cannot deadlock.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, TextClause, text

from server.store import arrays
from server.store.content.images import MARK_USES
from server.store.content.responses import ResponseKey
from server.store.content.storage_usage import ITEM_BYTES, removing

_DELETE = text("""
    update responses set deleted_at = clock_timestamp(), cancel_requested_at = case
        when status in ('queued', 'in_progress') then coalesce(cancel_requested_at, clock_timestamp())
        else cancel_requested_at end,
        cancel_reason = case
            when status in ('queued', 'in_progress') then coalesce(cancel_reason, 'deleted')
            else cancel_reason end
    where tenant = :tenant and id = :id and deleted_at is null
    returning status
""")
_FORGET_TAGS = text("""
    update usage_ledger set metadata = null
    where tenant = :tenant and response_id = :id and metadata is not null
""")
_HAS_NEXT = text("select 1 from responses where tenant = :tenant and previous_id = :id limit 1")
_REMOVABLE = text("""
    select previous_id, deleted_at is not null and status not in ('queued', 'in_progress') as removable
    from responses where tenant = :tenant and id = :id for update
""")
"""Locks the row, even a live one: of concurrent transactions that delete it or its last successors, the last
one sees that no successor is left."""
_KEYS = f"(select * from {arrays.unnest('k', ResponseKey)})"
_THEIRS = f"where (tenant, response_id) in {_KEYS}"
_REMOVE_STREAMS = (
    removing(f"delete from response_streams {_THEIRS} returning tenant, size as bytes"),
    text(f"delete from response_events_hot {_THEIRS}"),
)
_REMOVE = (
    removing(
        f"delete from items {_THEIRS} returning tenant, {ITEM_BYTES} as bytes",
        before=f"unused as ({MARK_USES} (tenant, owner) in {_KEYS})",
    ),
    removing(f"delete from responses where (tenant, id) in {_KEYS} returning tenant, size as bytes"),
)


def delete(connection: Connection, tenant: str, response_id: UUID) -> bool | None:
    """Deletes a response for readers; None without one. True if it runs: the caller must cancel it."""
    parameters = {"tenant": tenant, "id": response_id}
    status = connection.execute(_DELETE, parameters).scalar()
    if status is None:
        return None
    if status in ("queued", "in_progress"):
        return True
    connection.execute(_FORGET_TAGS, parameters)
    remove_if_unneeded(connection, tenant, response_id)
    return False


def remove_if_unneeded(connection: Connection, tenant: str, response_id: UUID) -> None:
    """Removes a deleted, ended response, and tombstones of its ancestors that have no other successor."""
    current: UUID | None = response_id
    while current is not None:
        key = ResponseKey(tenant, current)
        row = connection.execute(_REMOVABLE, key._asdict()).first()
        if row is None or not row.removable:
            return
        remove_streams(connection, [key])
        if connection.execute(_HAS_NEXT, key._asdict()).first() is not None:
            return
        remove_rows(connection, [key])
        current = row.previous_id


MAX_BATCH_ROWS = 1000
"""The most rows that a batch removes, unless a single response has more."""
MAX_BATCH_SECONDS = 0.2
"""Seconds for which a batch holds locks; it ends before a slice that would exceed them."""
_SLICE = 50
LOWEST: Final = UUID(int=0)
HIGHEST: Final = UUID(int=2**128 - 1)


class ExpiredRange(NamedTuple):
    """Responses with ids from `low` to before `high` that a purge deletes, if they expired until then."""

    low: UUID
    high: UUID
    until: datetime | None
    """None: until now."""

    def condition(self, key: str, expiry: str, now: str = "statement_timestamp()") -> str:
        """SQL for rows of the range, by the expressions of their id and expiry.

        It has literals: with parameters Postgres makes a plan for all ranges, which sorts what has expired.
        """
        expired = f"{expiry} <= " + (f"'{self.until}'" if self.until else now)
        lowest = "" if self.low == LOWEST else f" and {key} >= '{self.low}'"
        return expired + lowest + ("" if self.high == HIGHEST else f" and {key} < '{self.high}'")


EVERYTHING: Final = (ExpiredRange(LOWEST, HIGHEST, None),)


class ExpiredResponse(NamedTuple):
    """An expired response or tombstone, locked."""

    key: ResponseKey
    previous: ResponseKey | None
    live: bool
    weight: int
    """The rows to remove with it."""


class PurgeBatch(NamedTuple):
    """The result of one transaction."""

    responses: int
    rows: int
    moved: bool
    by_tenant: Mapping[str, int] = {}


_ENDED = "deleted_at is null and status not in ('queued', 'in_progress')"
_QUIET = "finished_at <= statement_timestamp() - make_interval(secs => :quiet)"
_OLDER = f"""
    tenant = :tenant and created_at < statement_timestamp() - cast(:age as interval)
    and (expires_at is null or expires_at > statement_timestamp()) and {_ENDED}
"""
_DUE = f"""
    select r.tenant, r.id, r.previous_id, r.deleted_at is null,
        (select count(*) from items i where i.tenant = r.tenant and i.response_id = r.id)
    from responses r
    where EXPIRED and r.status not in ('queued', 'in_progress') and r.{_QUIET}
    order by r.expires_at desc, r.id desc limit :limit
    for update of r skip locked
"""
"""Latest expiry first, so that a chain is usually removed from its end."""
_LOCK = text(f"""
    select tenant, id, deleted_at is not null from responses where (tenant, id) in {_KEYS}
    for update skip locked
""")
_EXISTING = text(f"select tenant, id from responses where (tenant, id) in {_KEYS}")
_HAVE_SUCCESSOR = text(f"""
    select distinct tenant, previous_id from responses
    where previous_id is not null and (tenant, previous_id) in {_KEYS}
""")
_MARK_DELETED = "update responses set deleted_at = coalesce(deleted_at, clock_timestamp())"
_MARK_ALL_DELETED = text(f"{_MARK_DELETED} where (tenant, id) in {_KEYS}")
_MARK_TOMBSTONE = text(f"{_MARK_DELETED}, expires_at = null where (tenant, id) in {_KEYS}")
_EXPIRE_NOW = text(f"""
    update responses set expires_at = statement_timestamp()
    where (tenant, id) in {_KEYS} and (expires_at is null or expires_at > statement_timestamp())
""")


def purge_batch(
    connection: Connection,
    quiet_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    ranges: Sequence[ExpiredRange] = EVERYTHING,
) -> PurgeBatch:
    """Purges expired, ended responses, and tombstones that only they needed, in the caller's transaction.

    A response is purged at the earliest `quiet_seconds` after its end, so that followers can read the end.
    `ranges` are those from which it is purged; the newest should be the first.
    """
    started = slice_started = clock()
    longest = 0.0
    done = PurgeBatch(0, 0, False)
    unpurged = list(ranges)
    while True:
        part = _purge_slice(connection, quiet_seconds, MAX_BATCH_ROWS - done.rows, unpurged[0])
        if not part.moved and len(unpurged) > 1:
            del unpurged[0]
            continue
        done = PurgeBatch(
            done.responses + part.responses,
            done.rows + part.rows,
            done.moved or part.moved,
            Counter(done.by_tenant) + Counter(part.by_tenant),
        )
        now = clock()
        longest = max(longest, now - slice_started)
        slice_started = now
        if not part.moved or done.rows >= MAX_BATCH_ROWS or now - started + longest > MAX_BATCH_SECONDS:
            return done


def within_row_limit(due: Sequence[ExpiredResponse], room: int) -> Sequence[ExpiredResponse]:
    """The leading responses whose rows fit into `room`; the first of a batch always fits. Pure."""
    rows = 0
    for index, candidate in enumerate(due):
        rows += candidate.weight
        if rows > room and (index > 0 or room < MAX_BATCH_ROWS):
            return due[:index]
    return due


def _purge_slice(
    connection: Connection, quiet_seconds: float, room: int, expired: ExpiredRange
) -> PurgeBatch:
    due = within_row_limit(_lock_due(connection, quiet_seconds, expired), room)
    if not due:
        return PurgeBatch(0, 0, False)
    keys = {candidate.key for candidate in due}
    live = {candidate.key for candidate in due if candidate.live}
    parents = {candidate.previous for candidate in due if candidate.previous is not None}
    # A parent is locked before its last child goes: whoever deletes it meanwhile then sees that none is left.
    deleted_parents = {
        ResponseKey(tenant, id_): deleted for tenant, id_, deleted in _select(connection, _LOCK, parents)
    }
    held = {ResponseKey(*row) for row in _select(connection, _EXISTING, parents - deleted_parents.keys())}
    needed = {ResponseKey(*row) for row in _select(connection, _HAVE_SUCCESSOR, keys)}
    # Parents that are not there, such as those of a user's responses that were imported, keep no child.
    leaves = [
        candidate for candidate in due if candidate.key not in needed and candidate.previous not in held
    ]
    removed = {candidate.key for candidate in leaves}
    bereft = {candidate.previous for candidate in leaves if candidate.previous is not None}
    rows = remove_streams(connection, live) + remove_rows(connection, removed)
    tombstones = needed - bereft
    _execute(connection, _MARK_TOMBSTONE, tombstones)
    _execute(connection, _MARK_ALL_DELETED, live - removed - tombstones)
    _execute(connection, _EXPIRE_NOW, {key for key in bereft - keys if deleted_parents.get(key)})
    by_tenant = Counter(key.tenant for key in live)
    return PurgeBatch(len(live), rows, bool(live or removed or tombstones), by_tenant)


def remove_streams(connection: Connection, keys: Collection[ResponseKey]) -> int:
    """Removes the event logs of ended responses; returns the number of rows."""
    return sum(_execute(connection, statement, keys) for statement in _REMOVE_STREAMS)


def remove_rows(connection: Connection, keys: Collection[ResponseKey]) -> int:
    """Removes locked responses and their items, which no longer use pictures; returns the number of rows."""
    return sum(_execute(connection, statement, keys) for statement in _REMOVE)


def _lock_due(connection: Connection, quiet_seconds: float, expired: ExpiredRange) -> list[ExpiredResponse]:
    statement = text(_DUE.replace("EXPIRED", expired.condition("r.id", "r.expires_at")))
    rows = connection.execute(statement, {"quiet": quiet_seconds, "limit": _SLICE})
    return [
        ExpiredResponse(
            ResponseKey(tenant, id_),
            ResponseKey(tenant, previous) if previous is not None else None,
            live,
            weight=1 + live + items,
        )
        for tenant, id_, previous, live, items in rows
    ]


def _select(connection: Connection, statement: TextClause, keys: Collection[ResponseKey]) -> Sequence[Any]:
    return connection.execute(statement, arrays.fields(ResponseKey, keys)).all() if keys else ()


def _execute(connection: Connection, statement: TextClause, keys: Collection[ResponseKey]) -> int:
    """The number of changed rows, which statements that also count bytes return as their result."""
    if not keys:
        return 0
    done = connection.execute(statement, arrays.fields(ResponseKey, keys))
    changed: int = done.scalar_one() if done.returns_rows else done.rowcount
    return changed


_EXPIRE_OLDER = text(f"""
    update responses set expires_at = statement_timestamp() where (tenant, id) in (
        select tenant, id from responses where {_OLDER}
        order by created_at limit :limit for update skip locked)
""")
_COUNT_DUE = text(
    f"select count(*) from responses where expires_at <= statement_timestamp() and {_ENDED} and {_QUIET}"
)
_COUNT_OLDER = text(f"select count(*) from responses where {_OLDER} and {_QUIET}")


def expire_older(connection: Connection, tenant: str, age: timedelta) -> int:
    """Sets ended responses older than `age` to expire now, at most `MAX_BATCH_ROWS`; returns how many."""
    parameters = {"tenant": tenant, "age": age, "limit": MAX_BATCH_ROWS}
    return connection.execute(_EXPIRE_OLDER, parameters).rowcount


def count_due(connection: Connection, quiet_seconds: float) -> int:
    """The number of responses that a purge would delete now."""
    return int(connection.execute(_COUNT_DUE, {"quiet": quiet_seconds}).scalar_one())


def count_older(connection: Connection, tenant: str, quiet_seconds: float, age: timedelta) -> int:
    """The number of further responses that a purge would delete after `expire_older` with this age."""
    parameters = {"tenant": tenant, "age": age, "quiet": quiet_seconds}
    return int(connection.execute(_COUNT_OLDER, parameters).scalar_one())
