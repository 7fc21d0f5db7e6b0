"""Whether acknowledged commits are still stored: the fence with its probe, and a look at single responses.

A crash of Postgres loses commits that did not wait for the disk; a failover to a standby that lags, or a
restore in place, loses any. Postgres writes its log in order, so a commit that is there proves all before it.
The fence with which every commit of the recorder begins therefore also looks for a row of the commit before:
no lost connection has to be noticed, which behind a pooler it may not be.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from server.store import arrays
from server.store.cluster.leases import Fenced
from server.store.driver_statements import execute

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Probe(NamedTuple):
    """A row that a commit wrote last."""

    tenant: str
    response_id: UUID
    first_seq: int | None
    """First sequence number of the row in the event log. None of a commit that ended the response
    and folded its log: then the ledger's entry is looked for."""


class Acknowledged(NamedTuple):
    """The newest state of a response that was acknowledged by this replica."""

    tenant: str
    response_id: UUID
    attempt: int
    next_seq: int
    is_over: bool
    """The response has ended or was released."""
    stored: bool
    """The response has a row; of others only the ledger's entry is written."""


def fence_query(replica: UUID, probe: Probe | None) -> str:
    """SQL that share-locks the replica's row; selects the time in microseconds and whether the probe matches.

    Without a row the replica is not alive. It has no parameters, for an exchange of several statements.
    """
    match = "true" if probe is None else f"exists ({_select(probe)})"
    return (
        f"select (extract(epoch from clock_timestamp()) * 1000000)::bigint, {match}"
        f" from replicas where id = '{replica}' and state = 'alive' for key share"
    )


def read_time(microseconds: int | bytes) -> datetime:
    """The time that `fence_query` selects."""
    return _EPOCH + timedelta(microseconds=int(microseconds))


def fence(connection: Connection, replica: UUID, probe: Probe | None) -> tuple[datetime, bool]:
    """Locks the replica against expiry; the database's time and whether the probe matches. Raises Fenced."""
    rows = execute(connection, (fence_query(replica, probe), ()), {})
    if not rows:
        raise Fenced
    return read_time(rows[0][0]), rows[0][1]


def _select(probe: Probe) -> str:
    """The tenant is written in hexadecimal: its name may have any character."""
    tenant = f"convert_from(decode('{probe.tenant.encode().hex()}', 'hex'), 'UTF8')"
    response = f"tenant = {tenant} and response_id = '{probe.response_id}'"
    if probe.first_seq is None:
        return f"select from usage_ledger where {response}"
    return f"select from response_events_hot where {response} and first_seq = {probe.first_seq:d}"


_LOST = text(f"""
    select a.response_id from {arrays.unnest("a", Acknowledged)}
    left join responses r on r.tenant = a.tenant and r.id = a.response_id
    where case
        when not a.stored then not exists (
            select from usage_ledger u where u.tenant = a.tenant and u.response_id = a.response_id)
        when a.is_over then r.replica_id = :replica and r.attempt = a.attempt and r.status = 'in_progress'
        else r.replica_id is distinct from :replica or r.attempt <> a.attempt or r.status <> 'in_progress'
            or a.next_seq > coalesce((
                select max(first_seq + n) from response_events_hot h
                where h.tenant = a.tenant and h.response_id = a.response_id), 0)
        end
""")


def lost(connection: Connection, replica: UUID, acknowledged: Sequence[Acknowledged]) -> list[UUID]:
    """Responses of which something acknowledged is missing, or that this replica does not run any more. A
    response that is over counts only while its row says that this replica still runs it in that attempt: what
    others have made of it since, or its deletion, stands.
    """
    if not acknowledged:
        return []
    rows = arrays.fields(Acknowledged, acknowledged)
    return list(connection.scalars(_LOST, {"replica": replica, **rows}))
