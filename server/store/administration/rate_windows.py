"""Rate windows of keys and tenants: read with a lock, written back, deleted when they are long over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, text


class WindowKey(NamedTuple):
    """Whose window it is, and of what."""

    tenant: str
    key_id: str
    """The key as which requests are counted; empty for the tenant's own window."""
    kind: str
    """`requests` or `tokens`."""


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """A locked window; `now` is the database's time in Unix seconds."""

    newest: int
    slots: Sequence[int]
    now: float


_LOCK = text(
    """
    select newest, slots, cast(extract(epoch from clock_timestamp()) as double precision),
        set_config('synchronous_commit', 'off', true)
    from rate_windows where tenant = :tenant and key_id = :key_id and kind = :kind for update
    """
)
"""A crash of Postgres may lose the last bookings; no request waits for the disk."""
_INSERT = text(
    """
    insert into rate_windows (tenant, key_id, kind, newest, slots)
    values (:tenant, :key_id, :kind, 0, '{}') on conflict do nothing
    """
)
_WRITE = text(
    """
    update rate_windows set newest = :newest, slots = :slots
    where tenant = :tenant and key_id = :key_id and kind = :kind
    """
)
_DELETE_OLD = text(
    """
    delete from rate_windows where (tenant, key_id, kind) in (
        select tenant, key_id, kind from rate_windows
        where newest < extract(epoch from clock_timestamp()) - :age limit 1000 for update skip locked)
    """
)


def lock(connection: Connection, key: WindowKey) -> StoredWindow:
    """The newest version of the window, locked until the transaction ends; an empty one is made if needed."""
    row = connection.execute(_LOCK, key._asdict()).first()
    if row is None:
        connection.execute(_INSERT, key._asdict())
        row = connection.execute(_LOCK, key._asdict()).one()
    newest, slots, now, _ = row
    return StoredWindow(newest, slots, now)


def write(connection: Connection, key: WindowKey, newest: int, slots: Sequence[int]) -> None:
    """Writes a locked window."""
    connection.execute(_WRITE, {**key._asdict(), "newest": newest, "slots": list(slots)})


def delete_old(connection: Connection, age_seconds: float) -> int:
    """Deletes windows in which nothing was booked for so long; returns how many."""
    return connection.execute(_DELETE_OLD, {"age": age_seconds}).rowcount
