"""The state of the cluster: unfinished responses, replicas and a list of them, purges, sizes, webhooks."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, select, text

from engine.request import IDLE_PRIORITY
from server.protocol.list_pages import PageRequest
from server.store.cluster.claims import WINDOW_LEFT
from server.store.database import clock
from server.store.keyset_page import rows_after
from server.store.schema.partitions import ranged_partitions, row_by_row
from server.store.tables import replicas
from server.store.webhooks import outbox

MAX_COUNTED = 100_000
_UNFINISHED = text(f"""
    select status, background, count(*),
           cast(extract(epoch from clock_timestamp() - min(queued_at)
                filter (where replica_id is null and priority < {IDLE_PRIORITY})) as float8),
           count(*) filter (where replica_id is null and priority >= {IDLE_PRIORITY}),
           cast(extract(epoch from min({WINDOW_LEFT}) filter (where replica_id is null)) as float8)
    from (
        (select status, background, replica_id, queued_at, priority, created_at from responses
         where replica_id is null and status in ('queued', 'in_progress') limit :most)
        union all
        (select status, background, replica_id, queued_at, priority, created_at from responses
         where status = 'in_progress' and replica_id is not null limit :most)
    ) as unfinished
    group by status, background
""")
"""Both halves are read by partial indexes, so that the cost grows with unfinished responses only."""
_REPLICAS = text(
    "select state, role, count(*) from replicas"
    " where state = 'alive' or heartbeat_at > clock_timestamp() - interval '1 day' group by state, role"
)
_OVERDUE = (
    "select cast(extract(epoch from clock_timestamp() - min(expires_at)) as float8) from responses where "
)
_DATABASE = text("""
    select (select sum(numbackends) from pg_stat_database) as connections,
           cast(current_setting('max_connections') as integer) as max_connections,
           pg_database_size(current_database()) as size
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOverview:
    """Unfinished responses, replicas and connections at one moment."""

    unfinished: Mapping[tuple[str, bool], int]
    """Responses by status and by whether they are background responses."""
    oldest_queued_seconds: float
    """The longest wait of a response without a completion window that no replica runs; 0 without any."""
    waiting_for_idle: int
    """Responses with a completion window that no replica runs."""
    first_window_left: float | None
    """Seconds until the first of their windows ends; None without any."""
    replicas: Mapping[tuple[str, str], int]
    """Replicas that are alive or whose last heartbeat is of the last day, by state and role."""
    purge_lag_seconds: float
    """The time since the expiry of the response that has waited for its purge for longest; 0 without any."""
    connections: int
    """Open connections to the database's server, those of other programs included."""
    max_connections: int
    database_bytes: int
    webhooks: outbox.Pending


def read_overview(connection: Connection, retention_days: int = 0) -> ClusterOverview:
    """Reads the overview in the caller's transaction. Rows that go with their partition are not overdue."""
    unfinished = list(connection.execute(_UNFINISHED, {"most": MAX_COUNTED}))
    replicas = {(state, role): count for state, role, count in connection.execute(_REPLICAS)}
    ranges = row_by_row(ranged_partitions(connection, "responses"), clock(connection), retention_days)
    conditions = [range_.condition("id", "expires_at") for range_ in ranges]
    overdue = [connection.scalar(text(_OVERDUE + condition)) or 0.0 for condition in conditions]
    connections, max_connections, size = connection.execute(_DATABASE).one()
    return ClusterOverview(
        unfinished={(status, background): count for status, background, count, *_ in unfinished},
        oldest_queued_seconds=max((waited or 0.0 for _, _, _, waited, *_ in unfinished), default=0.0),
        waiting_for_idle=sum(idle for *_, idle, _ in unfinished),
        first_window_left=min((left for *_, left in unfinished if left is not None), default=None),
        replicas=replicas,
        purge_lag_seconds=max(0.0, *overdue),
        connections=int(connections or 0),
        max_connections=max_connections,
        database_bytes=size,
        webhooks=outbox.read_pending(connection),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedReplica:
    id: UUID
    state: Any
    role: Any
    host: str
    pid: int
    version: str
    models: list[str]
    started_at: datetime
    heartbeat_age: float
    """Seconds since the last heartbeat, by the database's clock."""


def replicas_page(connection: Connection, state: str | None, asked: PageRequest) -> list[ListedReplica]:
    """The replicas after another, by start, one more than the limit. Raises InvalidRequest without it."""
    columns = replicas.c
    age = func.extract("epoch", func.clock_timestamp() - columns.heartbeat_at)
    *stored, _ = ListedReplica.__dataclass_fields__
    query = every = select(*(columns[name] for name in stored), age.label("heartbeat_age"))
    if state is not None:
        query = query.where(columns.state == state)
    order, kind = (columns.started_at, columns.id), "a replica"
    rows = rows_after(connection, query, order, asked, among=every, kind=kind)
    return [ListedReplica(**row._mapping) for row in rows]


_REMOVE_ENDED = text("""
    delete from replicas p
    where p.state <> 'alive' and p.heartbeat_at < clock_timestamp() - interval '30 days'
      and not exists (select from responses r where r.replica_id = p.id and r.status = 'in_progress')
""")


def remove_ended(connection: Connection) -> int:
    """Removes replicas that ended a month ago; returns how many. Every start of a process adds one."""
    return connection.execute(_REMOVE_ENDED).rowcount
