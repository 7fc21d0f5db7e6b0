"""The key that replicas seal with when no setting gives them one: the first to start makes it for all."""

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from server.store.tables import seal_keys

_SHARED = "shared"


def get_shared(connection: Connection) -> bytes | None:
    """The key that is kept here, if one was ever needed."""
    key: bytes | None = connection.execute(
        select(seal_keys.c.key).where(seal_keys.c.name == _SHARED)
    ).scalar()
    return key


def insert_shared(connection: Connection, key: bytes) -> None:
    """Keeps the key, unless there is one."""
    connection.execute(insert(seal_keys).values(name=_SHARED, key=key).on_conflict_do_nothing())
