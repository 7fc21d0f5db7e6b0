"""Reads for `holdfast audit`: rows without a response, and idempotency keys with none or a shared one."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from server.store.audit.stored_responses import snapshot

MAX_ORPHANS = 1000
"""The most findings of each kind."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """Rows of a table whose response does not exist."""

    tenant: str
    response_id: UUID
    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class KeyViolation:
    """A response with several idempotency keys, or a key without any trace of its response."""

    tenant: str
    response_id: UUID
    keys: int


_ORPHANS = [
    (
        table,
        text(
            f"""
            select t.tenant, t.response_id, count(*) from {table} t
            where (cast(:tenant as text) is null or t.tenant = :tenant)
              and not exists (select from responses r where r.tenant = t.tenant and r.id = t.response_id)
            group by 1, 2 limit {MAX_ORPHANS}
            """  # noqa: S608 - names of our own tables
        ),
    )
    for table in ("items", "response_events_hot", "response_streams")
]


def orphans(connection: Connection, tenant: str | None) -> list[Orphan]:
    """Rows whose response does not exist, at most `MAX_ORPHANS` for each table."""
    with snapshot(connection):
        return [
            Orphan(found_tenant, response, table, rows)
            for table, query in _ORPHANS
            for found_tenant, response, rows in connection.execute(query, {"tenant": tenant})
        ]


_SHARED = text(
    f"""
    select tenant, response_id, count(*) from idempotency_keys
    where cast(:tenant as text) is null or tenant = :tenant
    group by 1, 2 having count(*) > 1 limit {MAX_ORPHANS}
    """  # noqa: S608 - a number of our own
)
_LOST = text(
    f"""
    select k.tenant, k.response_id, 1 from idempotency_keys k
    where (cast(:tenant as text) is null or k.tenant = :tenant)
      and k.created_at < clock_timestamp() - make_interval(secs => :age)
      and not exists (select from responses r where r.tenant = k.tenant and r.id = k.response_id)
      and not exists (select from usage_ledger u where u.tenant = k.tenant and u.response_id = k.response_id)
      and not exists (
          select from replicas p
          where p.state = 'dead'
            and k.created_at between p.started_at and p.heartbeat_at + interval '1 minute')
    limit {MAX_ORPHANS}
    """  # noqa: S608 - a number of our own
)


def shared_keys(connection: Connection, tenant: str | None) -> list[KeyViolation]:
    """Responses with more than one idempotency key."""
    with snapshot(connection):
        return [KeyViolation(*row) for row in connection.execute(_SHARED, {"tenant": tenant})]


def lost_keys(connection: Connection, tenant: str | None, age_seconds: float) -> list[KeyViolation]:
    """Idempotency keys older than `age_seconds` whose response has neither a row nor a ledger entry.

    Excluded are keys from the lifetime of a dead replica, with which an unstored response may have been lost.
    Younger keys may belong to an unstored response that still runs.
    """
    with snapshot(connection):
        return [
            KeyViolation(*row) for row in connection.execute(_LOST, {"tenant": tenant, "age": age_seconds})
        ]
