"""Purges expired responses in short batches.

`responses.expires_at` is a queue. An expired row without successors (responses that name it as previous)
is removed. One with successors loses its stream and stays as a tombstone, whose items are history; the
removal of its last successor puts it back into the queue. The next batch, of any replica, continues
interrupted work and rows that were locked.

All locks are taken with SKIP LOCKED, so concurrent purges and deletions cannot deadlock.
"""

import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, TextClause, text

from server.store.content.idempotency_keys import KEY_LIFETIME_HOURS
from server.store.content.responses import ResponseKey
from server.store.content.storage_usage import ITEM_BYTES, count_removed

MAX_BATCH_ROWS = 1000
"""The most rows that a batch removes, unless a single response has more."""
MAX_BATCH_SECONDS = 0.2
"""Seconds for which a batch holds locks; it ends before a slice that would exceed them."""
KEY_LIFETIME = timedelta(hours=KEY_LIFETIME_HOURS)
_SLICE = 50


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
    """Responses that were deleted for readers."""
    rows: int
    """Removed rows of all tables."""
    moved: bool
    """Whether anything was changed."""


_DUE = text(
    """
    select r.tenant, r.id, r.previous_id, r.deleted_at is null,
        (select count(*) from items i where i.tenant = r.tenant and i.response_id = r.id)
    from responses r
    where r.expires_at <= statement_timestamp() and r.status not in ('queued', 'in_progress')
        and r.finished_at <= statement_timestamp() - make_interval(secs => :quiet)
    order by r.expires_at desc, r.id desc limit :limit
    for update of r skip locked
    """
)
"""Latest expiry first, so that a chain is usually removed from its end."""


def _for_keys(statement: str) -> TextClause:
    """A statement in which THESE stands for the keys of several responses."""
    return text(
        statement.replace("THESE", "(select * from unnest(cast(:tenants as text[]), cast(:ids as uuid[])))")
    )


_LOCK = _for_keys(
    """
    select tenant, id, deleted_at is not null from responses where (tenant, id) in THESE
    for update skip locked
    """
)
_HAVE_SUCCESSOR = _for_keys(
    """
    select distinct tenant, previous_id from responses
    where previous_id is not null and (tenant, previous_id) in THESE
    """
)
_REMOVE = [
    _for_keys(
        count_removed(
            f"delete from items where (tenant, response_id) in THESE"  # noqa: S608 - a constant of ours
            f" returning tenant, {ITEM_BYTES} as bytes"
        )
    ),
    _for_keys(
        count_removed("delete from responses where (tenant, id) in THESE returning tenant, size as bytes")
    ),
]
_REMOVE_STREAMS = [
    _for_keys(
        count_removed(
            "delete from response_streams where (tenant, response_id) in THESE"
            " returning tenant, size as bytes"
        )
    ),
    _for_keys("delete from response_events_hot where (tenant, response_id) in THESE"),
]
_MARK_DELETED = _for_keys(
    """
    update responses set deleted_at = coalesce(deleted_at, clock_timestamp()) where (tenant, id) in THESE
    """
)
_MARK_TOMBSTONE = _for_keys(
    """
    update responses set deleted_at = coalesce(deleted_at, clock_timestamp()), expires_at = null
    where (tenant, id) in THESE
    """
)
_EXPIRE_NOW = _for_keys(
    """
    update responses set expires_at = statement_timestamp()
    where (tenant, id) in THESE and (expires_at is null or expires_at > statement_timestamp())
    """
)


def purge_batch(
    connection: Connection, quiet_seconds: float, clock: Callable[[], float] = time.monotonic
) -> PurgeBatch:
    """Purges expired, ended responses, and tombstones that only they needed, in the caller's transaction.

    A response is purged at the earliest `quiet_seconds` after its end, so that followers can read the end.
    """
    started = slice_started = clock()
    longest = 0.0
    done = PurgeBatch(0, 0, False)
    while True:
        part = _purge_slice(connection, quiet_seconds, MAX_BATCH_ROWS - done.rows)
        done = PurgeBatch(done.responses + part.responses, done.rows + part.rows, done.moved or part.moved)
        now = clock()
        longest = max(longest, now - slice_started)
        slice_started = now
        if not part.moved or done.rows >= MAX_BATCH_ROWS or now - started + longest > MAX_BATCH_SECONDS:
            return done


def within_row_limit(due: Sequence[ExpiredResponse], room: int) -> Sequence[ExpiredResponse]:
    """The leading responses whose rows fit into `room`; the first of a batch always fits. Pure."""
    taken = 0
    for index, candidate in enumerate(due):
        taken += candidate.weight
        if taken > room and (index > 0 or room < MAX_BATCH_ROWS):
            return due[:index]
    return due


def _purge_slice(connection: Connection, quiet_seconds: float, room: int) -> PurgeBatch:
    due = within_row_limit(_lock_due(connection, quiet_seconds), room)
    if not due:
        return PurgeBatch(0, 0, False)
    places = {candidate.key for candidate in due}
    live = {candidate.key for candidate in due if candidate.live}
    parents = {candidate.previous for candidate in due if candidate.previous is not None}
    # A parent is locked before its last child goes: whoever deletes it meanwhile then sees that none is left.
    held = {ResponseKey(row[0], row[1]): row[2] for row in _select(connection, _LOCK, parents)}
    needed = {ResponseKey(row[0], row[1]) for row in _select(connection, _HAVE_SUCCESSOR, places)}
    leaves = [
        candidate
        for candidate in due
        if candidate.key not in needed and (candidate.previous is None or candidate.previous in held)
    ]
    removed = {candidate.key for candidate in leaves}
    bereft = {candidate.previous for candidate in leaves if candidate.previous is not None}
    rows = sum(_execute(connection, statement, live) for statement in _REMOVE_STREAMS)
    rows += sum(_execute(connection, statement, removed) for statement in _REMOVE)
    kept = needed - bereft
    _execute(connection, _MARK_TOMBSTONE, kept)
    _execute(connection, _MARK_DELETED, live - removed - kept)
    _execute(connection, _EXPIRE_NOW, {place for place in bereft - places if held[place]})
    return PurgeBatch(len(live), rows, bool(live or removed or kept))


def _lock_due(connection: Connection, quiet_seconds: float) -> list[ExpiredResponse]:
    found = connection.execute(_DUE, {"quiet": quiet_seconds, "limit": _SLICE})
    return [
        ExpiredResponse(
            ResponseKey(tenant, id_),
            ResponseKey(tenant, previous) if previous is not None else None,
            live,
            weight=1 + live + items,
        )
        for tenant, id_, previous, live, items in found
    ]


def _select(connection: Connection, statement: TextClause, places: Collection[ResponseKey]) -> Sequence[Any]:
    return connection.execute(statement, _key_arrays(places)).all() if places else ()


def _execute(connection: Connection, statement: TextClause, places: Collection[ResponseKey]) -> int:
    """The number of changed rows, which statements that also count bytes return as their result."""
    if not places:
        return 0
    done = connection.execute(statement, _key_arrays(places))
    changed: int = done.scalar_one() if done.returns_rows else done.rowcount
    return changed


def _key_arrays(places: Collection[ResponseKey]) -> dict[str, list[Any]]:
    return {"tenants": [place.tenant for place in places], "ids": [place.id for place in places]}


_EXPIRE_OLDER = text(
    """
    update responses set expires_at = statement_timestamp() where (tenant, id) in (
        select tenant, id from responses
        where tenant = :tenant and created_at < statement_timestamp() - cast(:age as interval)
            and (expires_at is null or expires_at > statement_timestamp())
            and deleted_at is null and status not in ('queued', 'in_progress')
        order by created_at limit :limit for update skip locked)
    """
)
_TENANTS = text(
    """
    with recursive found (tenant) as (
        (select tenant from responses order by tenant limit 1)
        union all
        select (select r.tenant from responses r where r.tenant > f.tenant order by r.tenant limit 1)
        from found f where f.tenant is not null
    )
    select tenant from found where tenant is not null
    """
)
"""A loose index scan; `distinct` would read every row."""


def tenants(connection: Connection) -> list[str]:
    """The tenants that have responses."""
    return list(connection.scalars(_TENANTS))


def expire_older(connection: Connection, tenant: str, age: timedelta) -> int:
    """Sets ended responses older than `age` to expire now, at most `MAX_BATCH_ROWS`; returns how many."""
    place = {"tenant": tenant, "age": age, "limit": MAX_BATCH_ROWS}
    return connection.execute(_EXPIRE_OLDER, place).rowcount


_COUNT_DUE = text(
    """
    select count(*) from responses
    where expires_at <= statement_timestamp()
        and deleted_at is null and status not in ('queued', 'in_progress')
        and finished_at <= statement_timestamp() - make_interval(secs => :quiet)
    """
)
_COUNT_OLDER = text(
    """
    select count(*) from responses
    where tenant = :tenant and created_at < statement_timestamp() - cast(:age as interval)
        and (expires_at is null or expires_at > statement_timestamp())
        and deleted_at is null and status not in ('queued', 'in_progress')
        and finished_at <= statement_timestamp() - make_interval(secs => :quiet)
    """
)
_COUNT_KEYS = text(
    "select count(*) from idempotency_keys where created_at < statement_timestamp() - cast(:age as interval)"
)
_DELETE_KEYS = text(
    """
    delete from idempotency_keys where (tenant, key) in (
        select tenant, key from idempotency_keys
        where created_at < statement_timestamp() - cast(:age as interval)
        order by created_at limit :limit for update skip locked)
    """
)


def count_due(connection: Connection, quiet_seconds: float) -> int:
    """How many responses a purge would delete now."""
    found: int = connection.execute(_COUNT_DUE, {"quiet": quiet_seconds}).scalar_one()
    return found


def count_older(connection: Connection, tenant: str, quiet_seconds: float, age: timedelta) -> int:
    """How many more it would delete after `expire_older` with this age."""
    place = {"tenant": tenant, "age": age, "quiet": quiet_seconds}
    found: int = connection.execute(_COUNT_OLDER, place).scalar_one()
    return found


def count_old_keys(connection: Connection) -> int:
    found: int = connection.execute(_COUNT_KEYS, {"age": KEY_LIFETIME}).scalar_one()
    return found


def delete_old_keys(connection: Connection) -> int:
    """Deletes expired idempotency keys, at most `MAX_BATCH_ROWS`; returns how many."""
    return connection.execute(_DELETE_KEYS, {"age": KEY_LIFETIME, "limit": MAX_BATCH_ROWS}).rowcount
