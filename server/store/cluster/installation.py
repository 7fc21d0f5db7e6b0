"""Recognises a restored copy of the data; holds its unfinished background responses until told otherwise.

The row of `installation` says in which cluster and database the data was when a server last started on it. A
dump that is restored takes the row along to another one. A standby that is promoted, or a cluster that is
restored from its own base backup, has the same identifier, so a failover is never taken for a copy.
"""

from typing import Final, NamedTuple

from sqlalchemy import Connection, text

from server.store.database import commit_synchronously
from server.store.database_errors import DatabaseError, TransientError

NOT_HELD: Final = "created_at >= coalesce((select held_before from installation), '-infinity')"
"""SQL: whether a response may be claimed to be generated."""
_SYSTEM = text("select (pg_control_system()).system_identifier::text")
_DATABASE = text("select oid::bigint from pg_database where datname = current_database()")
_RECORD = text("""
    insert into installation (name, system_identifier, database_oid) values ('shared', :system, :oid)
    on conflict do nothing
""")
_LOCK = text("select system_identifier, database_oid from installation for update")
_MOVE = text("""
    update installation set system_identifier = :system, database_oid = :oid,
        recorded_at = clock_timestamp()
""")
_HOLD = text("update installation set held_before = clock_timestamp()")
_ADOPT = text("update installation set held_before = null")
_HELD: Final = f"""
    background and status in ('queued', 'in_progress') and cancel_requested_at is null and not {NOT_HELD}
"""
_COUNT = text(f"select count(*) from responses where {_HELD}")
_CANCEL = text(f"""
    update responses set cancel_requested_at = clock_timestamp(), cancel_reason = 'operator' where {_HELD}
""")


class Identity(NamedTuple):
    """A database of a cluster. `system` is empty if this user may not ask for it."""

    system: str
    oid: int


def identity(connection: Connection) -> Identity:
    """The cluster and the database of this connection."""
    try:
        with connection.begin_nested():
            system: str = connection.execute(_SYSTEM).scalar_one()
    except TransientError:
        raise
    except DatabaseError:  # no right to it, or a database that only speaks Postgres' protocol
        system = ""
    return Identity(system, connection.execute(_DATABASE).scalar_one())


def is_copy(recorded: Identity, current: Identity) -> bool:
    """Whether the data has come to another database than the recorded one, as far as both are known. Pure."""
    known = recorded.system and current.system
    return recorded.oid != current.oid or bool(known and recorded.system != current.system)


def recognise(connection: Connection) -> int:
    """Records where the data is, holds what is unfinished of a copy, and returns how many are held."""
    current = identity(connection)
    parameters = current._asdict()
    connection.execute(_RECORD, parameters)
    recorded = Identity(*connection.execute(_LOCK).one())
    if is_copy(recorded, current):
        commit_synchronously(connection)
        connection.execute(_HOLD)
    if recorded != current:
        connection.execute(_MOVE, parameters)
    return count_held(connection)


def hold(connection: Connection) -> int:
    """Holds what is unfinished from now on, as in a copy; returns how many responses that are."""
    recognise(connection)
    connection.execute(_HOLD)
    return count_held(connection)


def adopt(connection: Connection, *, cancel: bool) -> int:
    """Ends the holding: servers go on with what was held, or cancel it; returns how many those are."""
    connection.execute(_LOCK)
    held = connection.execute(_CANCEL).rowcount if cancel else count_held(connection)
    connection.execute(_ADOPT)
    return held


def count_held(connection: Connection) -> int:
    """The background responses that are held."""
    return int(connection.execute(_COUNT).scalar_one())
