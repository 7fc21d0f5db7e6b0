"""Replica leases: a row and a heartbeat for each server process, expiry, and the fence of every commit.

A heartbeat writes the database's time. Expiry compares it for equality with the one seen before, so no clock
needs to be correct. The replica id is a new UUID for each process start, so a restarted process is a new
replica. `HeartbeatWatch` decides which other replicas have been silent for a whole lease.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text

from server.protocol.ids import new_uuid
from server.store.keyset_page import distinct

HEARTBEAT_SECONDS = 1.0
HEARTBEATS_PER_LEASE = 4
"""The least number of heartbeats per lease; short leases shorten the interval."""


def heartbeat_interval(lease_seconds: float) -> float:
    return min(HEARTBEAT_SECONDS, lease_seconds / HEARTBEATS_PER_LEASE)


class Fenced(Exception):
    """Raised where this replica was declared dead: its responses belong to other replicas."""


_REGISTER = text(
    "insert into replicas (id, state, host, pid, version, revision, role, models)"
    " values (:id, 'alive', :host, :pid, :version, :revision, :role, :models)"
)


def register_replica(
    connection: Connection,
    *,
    host: str,
    pid: int,
    version: str,
    role: str,
    models: Sequence[str],
    revision: str,
) -> UUID:
    """Inserts a new replica, alive from now on, whose release needs that revision; returns its id."""
    replica = new_uuid()
    row = {"host": host, "pid": pid, "version": version, "revision": revision, "role": role}
    connection.execute(_REGISTER, {"id": replica, "models": list(models), **row})
    return replica


_FENCE = text("select clock_timestamp() from replicas where id = :id and state = 'alive' for key share")


def fence(connection: Connection, replica: UUID) -> datetime:
    """Locks the replica against being declared dead before commit; returns the database's time.

    Raises Fenced if the replica is not alive. FOR KEY SHARE does not conflict with a heartbeat's UPDATE,
    which changes no key. It conflicts with FOR UPDATE, with which expiry locks the row.
    """
    now: datetime | None = connection.execute(_FENCE, {"id": replica}).scalar()
    if now is None:
        raise Fenced
    return now


_WRITE_HEARTBEAT = text(
    "update replicas set heartbeat_at = clock_timestamp(), reading = cast(:reading as uuid[])"
    " where id = :id and state = 'alive'"
)
_REMOTELY_READ = text(
    "select distinct response from replicas r, unnest(r.reading) response"
    " where r.id <> :id and r.state = 'alive' and response = any(cast(:responses as uuid[]))"
)


def write_heartbeat(connection: Connection, replica: UUID, reading: Sequence[UUID] = ()) -> None:
    """Renews the lease and stores which responses of other replicas have readers here. Raises Fenced."""
    renewed = connection.execute(_WRITE_HEARTBEAT, {"id": replica, "reading": list(reading)})
    if renewed.rowcount == 0:
        raise Fenced


def remotely_read(connection: Connection, replica: UUID, responses: Sequence[UUID]) -> list[UUID]:
    """The `responses` that have readers on another living replica, as of its last heartbeat."""
    if not responses:
        return []
    return list(connection.scalars(_REMOTELY_READ, {"id": replica, "responses": list(responses)}))


def mark_stopped(connection: Connection, replica: UUID) -> None:
    """Marks this replica as stopped. Waits for its commits in flight."""
    connection.execute(_MARK_STOPPED, {"id": replica})


def recorder_application_name(replica: UUID) -> str:
    """The `application_name` of the replica's recorder connection, by which expiry finds its session."""
    return f"recorder {replica.hex}"


HeartbeatTime = str
"""A heartbeat's time, in decimal seconds of the epoch: exact however floats are rounded; or 'Infinity'."""
_HEARTBEATS = text(
    "select id, cast(extract(epoch from heartbeat_at) as text) from replicas"
    " where state = 'alive' and id <> :id"
)
_SILENT = """
    r.state = 'alive' and exists (
        select 1 from unnest(cast(:ids as uuid[]), cast(:heartbeats as text[])) as seen (id, heartbeat)
        where seen.id = r.id and seen.heartbeat = cast(extract(epoch from r.heartbeat_at) as text))
"""
_EXPIRE = text(f"""
    update replicas set state = 'dead' where id in (
        select r.id from replicas r where {_SILENT} for update skip locked)
""")
_TERMINATE_STUCK_SESSIONS = text(f"""
    select pg_terminate_backend(a.pid)
    from replicas r join pg_stat_activity a
        on a.application_name = 'holdfast recorder ' || replace(r.id::text, '-', '')
    where {_SILENT}
      and a.xact_start < clock_timestamp() - make_interval(secs => :ttl)
      and a.datname = current_database() and a.usename = current_user
""")
_MARK_STOPPED = text(
    "update replicas set state = 'stopped' where id in ("
    "select id from replicas where id = :id and state = 'alive' for update)"
)
_OWNED = "status = 'in_progress' and replica_id is not null"
_DEAD_OWNERS = text(f"""
    with recursive {distinct("owners", "replica_id", "responses", _OWNED)}
    select o.replica_id from owners o
    where o.replica_id is not null and not exists (
        select 1 from replicas p where p.id = o.replica_id and p.state = 'alive')
""")
COUNTED_DEATH = """
    case when (case when r.attempt > 1
        then r.attempt = (
            select e.attempt from response_events_hot e
            where e.tenant = r.tenant and e.response_id = r.id order by e.first_seq desc limit 1)
        else exists (
            select from response_events_hot e
            where e.tenant = r.tenant and e.response_id = r.id and e.token_ids is not null)
    end) then 0 else 1 end
"""
"""1 for a response `r` whose attempt dies without progress, else 0. An attempt that stored tokens, or as a
further one anything, did not die of this response at once; the next one goes on from there."""
_RELEASE_ORPHANS = text(f"""
    with left_over as materialized (
        select tenant, id, replica_id from responses
        where status = 'in_progress' and replica_id = any(cast(:owners as uuid[]))
        for update skip locked)
    update responses r set replica_id = null, deaths = deaths + {COUNTED_DEATH}
    from left_over l
    where r.tenant = l.tenant and r.id = l.id and r.status = 'in_progress'
      and r.replica_id = any(cast(:owners as uuid[]))
    returning l.replica_id
""")
"""The owners are parameters, not a subquery: READ COMMITTED checks the newest version of a concurrently
claimed row against them again, so a living replica's claim is kept."""


def other_heartbeats(connection: Connection, replica: UUID) -> dict[UUID, HeartbeatTime]:
    """The last heartbeat of every other living replica, by id."""
    return {row[0]: row[1] for row in connection.execute(_HEARTBEATS, {"id": replica})}


def expire_replicas(connection: Connection, silent: Mapping[UUID, HeartbeatTime], ttl_seconds: float) -> int:
    """Declares replicas dead whose heartbeat is still the one in `silent`; returns how many.

    A replica with a commit in flight holds a row lock and is skipped (SKIP LOCKED) until the next call. A
    recorder session whose transaction is older than `ttl_seconds` is terminated: Postgres waits without limit
    for the rest of a COPY from a client that has vanished.
    """
    seen = {"ids": list(silent), "heartbeats": list(silent.values())}
    connection.execute(_TERMINATE_STUCK_SESSIONS, {**seen, "ttl": ttl_seconds})
    return connection.execute(_EXPIRE, seen).rowcount


def release_orphans(connection: Connection) -> dict[UUID, int]:
    """Releases the unfinished responses of dead and stopped replicas; returns how many of which replica.

    A replica never becomes alive again, so its id decides. Locked rows are skipped until the next call.
    """
    owners = list(connection.scalars(_DEAD_OWNERS))
    return dict(Counter(connection.scalars(_RELEASE_ORPHANS, {"owners": owners}))) if owners else {}


_OBSERVATIONS_PER_LEASE = 4
"""A gap between two observations counts for at most this part of a lease, so that a replica has had several
turns to beat before it is declared dead."""


class HeartbeatWatch:
    """Decides which other replicas were silent for a whole lease, from this replica's observations.

    A replica counts as silent while its heartbeat does not change although this replica's own heartbeats are
    all written. So a database outage, a suspended machine or a changed clock count against nobody: nothing is
    observed meanwhile, and afterwards every replica has time to beat again.

    `observe` is called with all heartbeats after each of this replica's own, `failed` if that failed.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease = lease_seconds
        self._max_step = lease_seconds / _OBSERVATIONS_PER_LEASE
        self._observed_at: float | None = None
        self._silent: dict[UUID, tuple[HeartbeatTime, float]] = {}
        """The last heartbeat of each replica, and the seconds for which it has not changed."""

    def failed(self) -> None:
        """Forgets all observations: they prove nothing once this replica's own heartbeat has failed."""
        self._observed_at = None
        self._silent.clear()

    def observe(self, now: float, heartbeats: Mapping[UUID, HeartbeatTime]) -> dict[UUID, HeartbeatTime]:
        """The replicas that have been silent for a lease, with their last heartbeats.

        `now` is in seconds of this replica's monotonic clock. After a gap longer than a lease the observation
        starts over: this replica was suspended, or as good as that.
        """
        gap = now - self._observed_at if self._observed_at is not None else 0.0
        if gap > self._lease:
            self._silent.clear()
        elapsed = min(gap, self._max_step)
        self._observed_at = now
        before, self._silent = self._silent, {}
        for replica, heartbeat in heartbeats.items():
            seen, silence = before.get(replica, (heartbeat, -elapsed))
            self._silent[replica] = (heartbeat, silence + elapsed if heartbeat == seen else 0.0)
        return {
            replica: heartbeat
            for replica, (heartbeat, silence) in self._silent.items()
            if silence >= self._lease
        }
