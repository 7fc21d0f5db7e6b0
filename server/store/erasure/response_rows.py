"""Responses that are erased: cancel, end without a replica, mark as deleted, remove with all that is theirs.

Every statement locks responses with SKIP LOCKED and leaves the others to the next pass, so that it waits for
nobody and cannot deadlock with the recorder, a purge or another erasure.
"""

from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, text

from server.protocol.responses.response import Ending, ResponseFacts
from server.store.administration.ledger import LedgerEntry, record_usage
from server.store.content import deletion
from server.store.content.responses import ResponseKey
from server.store.database import clock
from server.store.erasure.subject import MAKE_ANONYMOUS, OF_USER, Subject
from server.store.tables import ALL_TABLES

_THESE: Final = "tenant = :tenant and id = any(cast(:ids as uuid[]))"
_THEIRS: Final = "tenant = :tenant and response_id = any(cast(:ids as uuid[]))"
_RUNNING: Final = "status in ('queued', 'in_progress')"
_CANCEL_ALL = text(f"""
    update responses set cancel_requested_at = clock_timestamp(), cancel_reason = 'erased'
    where (tenant, id) in (
        select tenant, id from responses
        where tenant = :tenant and {_RUNNING} and cancel_requested_at is null limit :limit
        for update skip locked)
""")
_UNFINISHED = text(f"select id from responses where tenant = :tenant and {_RUNNING} limit :limit")
_UNFINISHED_OF = text(f"select id from responses where {_THESE} and {_RUNNING}")
_LATER = text("""
    with recursive tree (id) as (
        select unnest(cast(:ids as uuid[]))
        union
        select r.id from tree t join responses r on r.tenant = :tenant and r.previous_id = t.id)
    select id from tree
""")
_NOT_MARKED: Final = f"(deleted_at is null or ({_RUNNING} and cancel_requested_at is null))"
_MARK = text(f"""
    update responses set deleted_at = coalesce(deleted_at, clock_timestamp()), expires_at = clock_timestamp(),
        cancel_requested_at = case when {_RUNNING} then coalesce(cancel_requested_at, clock_timestamp())
            else cancel_requested_at end,
        cancel_reason = case when {_RUNNING} then coalesce(cancel_reason, 'erased') else cancel_reason end
    where (tenant, id) in (
        select tenant, id from responses where {_THESE} and {_NOT_MARKED} for update skip locked)
    returning id, {_RUNNING} as running
""")
_COUNT_NOT_MARKED = text(f"select count(*) from responses where {_THESE} and {_NOT_MARKED}")
_LOCK_ENDED = text(f"""
    select r.id, {OF_USER} as own from responses r
    where {_THESE} and not {_RUNNING} for update skip locked
""")
_NEWEST_ENDED = text(f"""
    select id, true as own from responses where tenant = :tenant and not {_RUNNING}
    order by id desc limit :limit for update skip locked
""")
_LOCK_ABANDONED = text(f"""
    select r.id, {OF_USER} as own, r.key_id, r.model, r.background, r.created_at, coalesce((
        select sum(octet_length(token_ids)) / 4 from response_events_hot e
        where e.tenant = r.tenant and e.response_id = r.id), 0)::integer as tokens
    from responses r
    where {_THESE} and {_RUNNING} and replica_id is null
      and not exists (select from replicas where state = 'alive')
    limit :limit for update of r skip locked
""")


def cancel_all(connection: Connection, tenant: str, limit: int) -> int:
    """Requests the cancellation of a tenant's unfinished responses; returns how many, at most `limit`."""
    return connection.execute(_CANCEL_ALL, {"tenant": tenant, "limit": limit}).rowcount


def unfinished(connection: Connection, tenant: str, limit: int) -> list[UUID]:
    return list(connection.scalars(_UNFINISHED, {"tenant": tenant, "limit": limit}))


def unfinished_of(connection: Connection, tenant: str, ids: Sequence[UUID]) -> list[UUID]:
    return list(connection.scalars(_UNFINISHED_OF, {"tenant": tenant, "ids": list(ids)}))


def with_later_ones(connection: Connection, tenant: str, ids: Sequence[UUID]) -> set[UUID]:
    return set(connection.scalars(_LATER, {"tenant": tenant, "ids": list(ids)}))


def mark(connection: Connection, tenant: str, ids: Sequence[UUID]) -> int:
    """Deletes responses for readers and cancels them; returns how many are locked by others and still there.
    No response can go on from a marked one. What remains of it is a tombstone that has expired, which any
    purge removes, too.
    """
    parameters = {"tenant": tenant, "ids": list(ids)}
    ended = [row.id for row in connection.execute(_MARK, parameters) if not row.running]
    _remove_logs(connection, tenant, ended)
    return int(connection.execute(_COUNT_NOT_MARKED, parameters).scalar_one())


def remove_newest(connection: Connection, subject: Subject, limit: int) -> int:
    """Removes a tenant's newest ended responses, so later ones before those they go on from."""
    found = connection.execute(_NEWEST_ENDED, {"tenant": subject.tenant, "limit": limit}).all()
    return _remove(connection, subject, [row.id for row in found], [row.id for row in found])


def remove(connection: Connection, subject: Subject, ids: Sequence[UUID]) -> int:
    """Removes those of the responses that have ended and are not locked; returns how many."""
    found = connection.execute(_LOCK_ENDED, {**subject.parameters, "ids": list(ids)}).all()
    return _remove(connection, subject, [row.id for row in found], [row.id for row in found if row.own])


def remove_abandoned(connection: Connection, subject: Subject, ids: Sequence[UUID], limit: int) -> int:
    """Ends and removes unfinished responses that no replica owns, while none is alive; returns how many. They
    are metered as cancelled, with the tokens that their logs have. Their prompts were counted by no one.
    """
    parameters = {**subject.parameters, "ids": list(ids), "limit": limit}
    found = connection.execute(_LOCK_ABANDONED, parameters).all()
    now = clock(connection)
    usage: list[tuple[LedgerEntry, Ending]] = []
    for row in found:
        ending = Ending(
            status="cancelled",
            first_token_at=None,
            finished_at=now,
            input_tokens=0,
            cached_tokens=0,
            output_tokens=row.tokens,
            reasoning_tokens=0,
            cancel_reason="erased",
        )
        of_row = {name: getattr(row, name) for name in ("id", "key_id", "model", "background", "created_at")}
        facts = ResponseFacts(tenant=subject.tenant, **of_row)
        usage.append((LedgerEntry(facts=facts, stored=True), ending))
    if usage:
        record_usage(connection, usage)
    own = [row.id for row in found if row.own or subject.user is None]
    return _remove(connection, subject, [row.id for row in found], own)


def _remove(connection: Connection, subject: Subject, ids: Collection[UUID], own: Collection[UUID]) -> int:
    """Removes locked responses; the ledger's lines of `own` become anonymous, or go as well."""
    if not ids:
        return 0
    _remove_logs(connection, subject.tenant, ids)
    deletion.remove_rows(connection, [ResponseKey(subject.tenant, response) for response in ids])
    if subject.user is not None or subject.keep_usage:
        anonymise_lines(connection, subject.tenant, own)
    else:
        remove_of_responses(connection, "usage_ledger", subject.tenant, own)
    return len(ids)


def _remove_logs(connection: Connection, tenant: str, ids: Collection[UUID]) -> None:
    """Removes the events of ended responses, and the webhooks about their ends."""
    deletion.remove_streams(connection, [ResponseKey(tenant, response) for response in ids])
    remove_of_responses(connection, "webhook_deliveries", tenant, ids)


_OTHERWISE: Final = frozenset(
    {"items", "response_streams", "response_events_hot", "usage_ledger", "conversation_items"}
)
"""Tables with responses' ids from which rows go in another way."""
_ANONYMISE = text(f"update usage_ledger l set {MAKE_ANONYMOUS} where {_THEIRS}")


def tables_of_responses() -> list[str]:
    """The tables with rows that go with a response and are not removed in its transaction."""
    return sorted(
        str(table.name)
        for table in ALL_TABLES.tables.values()
        if {"tenant", "response_id"} <= set(table.columns.keys()) and table.name not in _OTHERWISE
    )


def remove_of_responses(connection: Connection, table: str, tenant: str, ids: Collection[UUID]) -> int:
    statement = text(f"delete from {table} where {_THEIRS}")
    return connection.execute(statement, {"tenant": tenant, "ids": list(ids)}).rowcount


def anonymise_lines(connection: Connection, tenant: str, ids: Collection[UUID]) -> int:
    """Makes the ledger's lines of responses that are not stored (any more) anonymous."""
    return connection.execute(_ANONYMISE, {"tenant": tenant, "ids": list(ids)}).rowcount
