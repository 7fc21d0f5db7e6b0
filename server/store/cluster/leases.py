"""Replicas: a row per server process, its heartbeat, and the fence that every commit passes.

A heartbeat is a time of the database's clock that every beat changes; who is silent is decided by whether it
changes, so no clock needs to be right. A replica id is random for each process start, so a restarted process
is never taken for the one before it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, Connection, Uuid, bindparam, text

from server.protocol.ids import new_uuid

HEARTBEAT_SECONDS = 1.0
HEARTBEATS_PER_LEASE = 4
"""At least: with a short lease beats come faster."""


def heartbeat_interval(lease_seconds: float) -> float:
    """How long a replica waits from one heartbeat to the next."""
    return min(HEARTBEAT_SECONDS, lease_seconds / HEARTBEATS_PER_LEASE)


class Fenced(Exception):
    """This replica was declared dead; whatever it still holds belongs to others."""


def register_replica(connection: Connection, *, host: str, pid: int, version: str, model: str) -> UUID:
    """A new replica row, alive from now on."""
    replica = new_uuid()
    connection.execute(
        text(
            "insert into replicas (id, state, host, pid, version, models)"
            " values (:id, 'alive', :host, :pid, :version, array[:model])"
        ),
        {"id": replica, "host": host, "pid": pid, "version": version, "model": model},
    )
    return replica


_FENCE = text("select clock_timestamp() from replicas where id = :id and state = 'alive' for key share")


def fence(connection: Connection, replica: UUID) -> datetime:
    """The database's time, after locking the replica's row against being declared dead before commit.

    Raises Fenced when that has happened already. FOR KEY SHARE lets heartbeats pass, whose UPDATE changes no
    key; it conflicts with FOR UPDATE, which is what whoever declares a replica dead must lock its row with.
    """
    now: datetime | None = connection.execute(_FENCE, {"id": replica}).scalar()
    if now is None:
        raise Fenced
    return now


_WRITE_HEARTBEAT = text(
    "update replicas set heartbeat_at = clock_timestamp(), reading = :reading"
    " where id = :id and state = 'alive'"
).bindparams(bindparam("reading", type_=ARRAY(Uuid)))
_REMOTELY_READ = text(
    "select distinct response from replicas r, unnest(r.reading) response"
    " where r.id <> :id and r.state = 'alive' and response = any(:responses)"
).bindparams(bindparam("responses", type_=ARRAY(Uuid)))


def write_heartbeat(connection: Connection, replica: UUID, reading: Sequence[UUID] = ()) -> None:
    """Keeps the lease, and tells which responses are read here that run elsewhere. Raises Fenced."""
    kept = connection.execute(_WRITE_HEARTBEAT, {"id": replica, "reading": list(reading)})
    if kept.rowcount == 0:
        raise Fenced


def remotely_read(connection: Connection, replica: UUID, responses: Sequence[UUID]) -> list[UUID]:
    """Those of them that have readers on another replica that lives, as it told with its last heartbeat."""
    if not responses:
        return []
    found = connection.scalars(_REMOTELY_READ, {"id": replica, "responses": list(responses)})
    return list(found)


def mark_stopped(connection: Connection, replica: UUID) -> None:
    """Says that this replica ended in good order. Waits for a commit of it that is in flight."""
    connection.execute(_MARK_STOPPED, {"id": replica})


def recorder_application_name(replica: UUID) -> str:
    """What the connection is called whose commits this replica fences."""
    return f"recorder {replica.hex}"


_HEARTBEATS = text(
    "select id, cast(extract(epoch from heartbeat_at) as float8) from replicas"
    " where state = 'alive' and id <> :id"
)
"""As numbers, which any stored time can be read as; 'infinity' too."""
_SILENT = """
    r.state = 'alive' and exists (
        select 1 from unnest(cast(:ids as uuid[]), cast(:heartbeats as float8[])) as seen (id, heartbeat)
        where seen.id = r.id and seen.heartbeat = cast(extract(epoch from r.heartbeat_at) as float8))
"""
_EXPIRE = text(
    f"""
    update replicas set state = 'dead' where id in (
        select r.id from replicas r where {_SILENT} for update skip locked)
    """  # noqa: S608 - a constant of ours
)
_TERMINATE_STUCK_SESSIONS = text(
    f"""
    select pg_terminate_backend(a.pid)
    from replicas r join pg_stat_activity a
        on a.application_name = 'holdfast recorder ' || replace(r.id::text, '-', '')
    where {_SILENT}
      and a.xact_start < clock_timestamp() - make_interval(secs => :ttl)
      and a.datname = current_database() and a.usename = current_user
    """  # noqa: S608 - a constant of ours
)
_MARK_STOPPED = text(
    "update replicas set state = 'stopped' where id in ("
    "select id from replicas where id = :id and state = 'alive' for update)"
)
_DEAD_OWNERS = text(
    """
    with recursive owners (id) as (
        (select replica_id from responses where status = 'in_progress' and replica_id is not null
         order by replica_id limit 1)
        union all
        select (select r.replica_id from responses r
                where r.status = 'in_progress' and r.replica_id > o.id order by r.replica_id limit 1)
        from owners o where o.id is not null)
    select o.id from owners o
    where o.id is not null and not exists (
        select 1 from replicas p where p.id = o.id and p.state = 'alive')
    """
)
"""Steps from one owner to the next in the index, so it costs as much as there are owners, not responses."""
_RELEASE_ORPHANS = text(
    """
    with left_over as materialized (
        select tenant, id from responses where status = 'in_progress' and replica_id = any(:owners)
        for update skip locked)
    update responses r set replica_id = null, deaths = deaths + 1
    from left_over l
    where r.tenant = l.tenant and r.id = l.id and r.status = 'in_progress' and r.replica_id = any(:owners)
    """
).bindparams(bindparam("owners", type_=ARRAY(Uuid)))
"""The owners are constants of the statement: what is claimed meanwhile, by somebody who lives, is checked
against them again when READ COMMITTED reads the row's newest version."""


def other_heartbeats(connection: Connection, replica: UUID) -> dict[UUID, float]:
    """The last heartbeat of every other replica that is not known to be dead."""
    return {row[0]: row[1] for row in connection.execute(_HEARTBEATS, {"id": replica})}


def expire_replicas(connection: Connection, silent: Mapping[UUID, float], ttl_seconds: float) -> None:
    """Declares those replicas dead whose heartbeat is still the one that was seen.

    One whose commit is in flight holds its row locked; it is looked at again next time. If that commit is
    `ttl_seconds` old, its session is ended: Postgres waits without limit for the rest of a COPY from a
    client that has vanished.
    """
    seen = {"ids": list(silent), "heartbeats": list(silent.values())}
    connection.execute(_TERMINATE_STUCK_SESSIONS, {**seen, "ttl": ttl_seconds})
    connection.execute(_EXPIRE, seen)


def release_orphans(connection: Connection) -> int:
    """Takes unfinished responses from replicas that are dead or stopped; how many nobody owns thereby.

    Such a replica never comes back to life, so its id alone decides. A row that somebody else has locked is
    passed over and found again by the next call.
    """
    owners = list(connection.scalars(_DEAD_OWNERS))
    return connection.execute(_RELEASE_ORPHANS, {"owners": owners}).rowcount if owners else 0
