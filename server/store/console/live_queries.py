"""The cluster's present work: replicas, the oldest running responses, the queue. All by partial indexes."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, text

from engine.request import IDLE_PRIORITY
from server.store.cluster.claims import WINDOW_LEFT
from server.store.console.time_limit import limit_time

MAX_REPLICAS: Final = 50
MAX_RUNNING: Final = 100
MAX_QUEUED: Final = 100
MAX_COUNTED: Final = 10_000
_REPLICAS = text(f"""
    select p.id, p.state, p.role, p.host, p.pid, p.version, p.models,
        cast(extract(epoch from clock_timestamp() - p.started_at) as float8) as up,
        cast(extract(epoch from clock_timestamp() - p.heartbeat_at) as float8) as heartbeat_age,
        (select count(*) from (
            select from responses r where r.replica_id = p.id and r.status = 'in_progress' limit {MAX_COUNTED}
        ) as counted) as running
    from replicas p
    where p.state = 'alive' or p.heartbeat_at > clock_timestamp() - interval '1 hour'
    order by p.state = 'alive' desc, p.heartbeat_at desc limit {MAX_REPLICAS}
""")
_AGE = "cast(extract(epoch from clock_timestamp() - r.created_at) as float8) as age"
_RUNNING = text(f"""
    select r.id, r.response, r.tenant, r.model, r.background, r.end_user, r.age, r.attempt, r.deaths,
        r.cancel_requested, p.host, p.pid, r.replica_id, coalesce(h.first_seq + h.n, 0) as events
    from (
        select r.id, admin.name_of('resp_', r.id) as response, r.tenant, r.model, r.background,
            r.end_user, {_AGE}, r.attempt, r.deaths,
            r.cancel_requested_at is not null as cancel_requested, r.replica_id, r.created_at
        from responses r where r.replica_id is not null and r.status = 'in_progress'
        order by r.created_at limit {MAX_RUNNING}
    ) as r
    left join replicas p on p.id = r.replica_id
    left join lateral (
        select first_seq, n from response_events_hot h where h.tenant = r.tenant and h.response_id = r.id
        order by first_seq desc limit 1
    ) as h on true
    order by r.created_at
""")
_QUEUED = text(f"""
    select r.id, admin.name_of('resp_', r.id) as response, r.tenant, r.model, r.priority, {_AGE}, r.deaths,
        cast(extract(epoch from clock_timestamp() - r.queued_at) as float8) as queued_for
    from responses r where r.replica_id is null and r.status in ('queued', 'in_progress')
    order by r.priority, r.queued_at limit {MAX_QUEUED}
""")
_COUNTS = text(f"""
    select (select count(*) from (
        select from responses where replica_id is not null and status = 'in_progress' limit {MAX_COUNTED}
    ) as running), count(*), count(*) filter (where priority >= {IDLE_PRIORITY}), min({WINDOW_LEFT})
    from (
        select priority, created_at from responses
        where replica_id is null and status in ('queued', 'in_progress') limit {MAX_COUNTED}
    ) as queued
""")


class Cluster(NamedTuple):
    """Lists with their first rows, and how many there are, up to MAX_COUNTED. Times are in seconds."""

    replicas: Sequence[Row[Any]]
    """Processes that are alive, or were within the last hour, with the stored responses that they run."""
    running: Sequence[Row[Any]]
    """The oldest responses that a replica generates, with the events that are committed."""
    queued: Sequence[Row[Any]]
    """Responses that wait for a replica, in its order."""
    running_count: int
    queued_count: int
    idle_count: int
    """Responses of the queue that wait for idle capacity, in a completion window."""
    first_window_left: timedelta | None
    """Until the first of their windows ends."""


def read_cluster(connection: Connection) -> Cluster:
    """Reads the lists and counts in the caller's transaction. Raises TimeOver."""
    with limit_time(connection):
        lists = (connection.execute(query).all() for query in (_REPLICAS, _RUNNING, _QUEUED))
        replicas, running, queued = lists
        return Cluster(replicas, running, queued, *connection.execute(_COUNTS).one())
