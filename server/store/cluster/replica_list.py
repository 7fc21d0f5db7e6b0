"""The list of replicas: their state, role, models and the age of their heartbeat."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, select, text

from server.store.keyset_page import page
from server.store.tables import replicas

_COLUMNS = ("id", "state", "role", "host", "pid", "version", "models", "started_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedReplica:
    """A row of the table of replicas."""

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


def replicas_page(
    connection: Connection, state: str | None, after: UUID | None, limit: int, *, newest_first: bool
) -> list[ListedReplica] | None:
    """The replicas that come after one, by start, one more than `limit`; None if there is no `after`."""
    columns = replicas.c
    age = func.extract("epoch", func.clock_timestamp() - columns.heartbeat_at)
    query = select(*(columns[name] for name in _COLUMNS), age.label("heartbeat_age"))
    if state is not None:
        query = query.where(columns.state == state)
    start = None
    if after is not None:
        start = connection.execute(select(columns.started_at, columns.id).where(columns.id == after)).first()
        if start is None:
            return None
    rows = connection.execute(
        page(query, (columns.started_at, columns.id), start, limit, descending=newest_first)
    )
    return [ListedReplica(**row._mapping) for row in rows]


_REMOVE_ENDED = text(
    """
    delete from replicas p
    where p.state <> 'alive' and p.heartbeat_at < clock_timestamp() - interval '30 days'
      and not exists (select from responses r where r.replica_id = p.id and r.status = 'in_progress')
    """
)


def remove_ended(connection: Connection) -> int:
    """Removes replicas that ended a month ago; returns how many. Every start of a process adds one."""
    return connection.execute(_REMOVE_ENDED).rowcount
