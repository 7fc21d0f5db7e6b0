"""Replicas: a row per server process, its heartbeat, and the fence that every commit passes.

Only the database's clock counts. A replica id is random for each process start, so a restarted process is
never taken for the one before it.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, Connection, Uuid, bindparam, text

from server.wire.ids import new_uuid


class Fenced(Exception):
    """This replica was declared dead; whatever it still holds belongs to others."""


def register(connection: Connection, *, host: str, pid: int, version: str, model: str) -> UUID:
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


_BEAT = text(
    "update replicas set heartbeat_at = clock_timestamp(), reading = :reading"
    " where id = :id and state = 'alive'"
).bindparams(bindparam("reading", type_=ARRAY(Uuid)))
_READ_ELSEWHERE = text(
    "select distinct response from replicas r, unnest(r.reading) response"
    " where r.id <> :id and r.state = 'alive' and response = any(:responses)"
).bindparams(bindparam("responses", type_=ARRAY(Uuid)))


def beat(connection: Connection, replica: UUID, reading: Sequence[UUID] = ()) -> None:
    """Keeps the lease, and tells which responses are read here that run elsewhere. Raises Fenced."""
    kept = connection.execute(_BEAT, {"id": replica, "reading": list(reading)})
    if kept.rowcount == 0:
        raise Fenced


def read_elsewhere(connection: Connection, replica: UUID, responses: Sequence[UUID]) -> list[UUID]:
    """Those of them that have readers on another replica that lives, as it told with its last heartbeat."""
    if not responses:
        return []
    found = connection.scalars(_READ_ELSEWHERE, {"id": replica, "responses": list(responses)})
    return list(found)


def stop(connection: Connection, replica: UUID) -> None:
    """Says that this replica ended in good order."""
    connection.execute(
        text("update replicas set state = 'stopped' where id = :id and state = 'alive'"), {"id": replica}
    )


def recorder_session(replica: UUID) -> str:
    """What the connection is called whose commits this replica fences."""
    return f"recorder {replica.hex}"


_BURY = text(
    """
    update replicas set state = 'dead' where id in (
        select id from replicas
        where state = 'alive' and heartbeat_at < clock_timestamp() - make_interval(secs => :ttl)
        for update skip locked)
    """
)
_CUT = text(
    """
    select pg_terminate_backend(a.pid)
    from replicas r join pg_stat_activity a
        on a.application_name = 'holdfast recorder ' || replace(r.id::text, '-', '')
    where r.state = 'alive' and r.heartbeat_at < clock_timestamp() - make_interval(secs => :ttl)
      and a.xact_start < clock_timestamp() - make_interval(secs => :ttl)
      and a.datname = current_database() and a.usename = current_user
    """
)
_ABANDON = text(
    """
    update responses r set replica_id = null, deaths = deaths + 1
    where r.status = 'in_progress' and r.replica_id is not null
      and not exists (select 1 from replicas p where p.id = r.replica_id and p.state = 'alive')
    """
)


def bury(connection: Connection, ttl_seconds: float) -> int:
    """Declares replicas dead whose heartbeat is older than that; how many responses nobody owns thereby.

    One whose commit is in flight holds its row locked; it is looked at again next time. If that commit is as
    old as the heartbeat, its session is ended: Postgres waits without limit for the rest of a COPY from a
    client that has vanished. Whatever a replica owns that is not alive any more is left for others.
    """
    connection.execute(_CUT, {"ttl": ttl_seconds})
    connection.execute(_BURY, {"ttl": ttl_seconds})
    return connection.execute(_ABANDON).rowcount


def others_alive(connection: Connection, replica: UUID) -> bool:
    """Whether this replica shares the database with another one that lives, as far as is known."""
    found = connection.execute(
        text("select 1 from replicas where id <> :id and state = 'alive' limit 1"), {"id": replica}
    )
    return found.first() is not None
