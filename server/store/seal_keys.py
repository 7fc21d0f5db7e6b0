"""The encryption key of sealed content when no setting has one; the first replica inserts it for all."""

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from server.store.tables import seal_keys

_SHARED = "shared"


def get_shared(connection: Connection) -> bytes | None:
    """The stored key; None if there is none."""
    key: bytes | None = connection.execute(
        select(seal_keys.c.key).where(seal_keys.c.name == _SHARED)
    ).scalar()
    return key


def insert_shared(connection: Connection, key: bytes) -> None:
    """Inserts the key unless there is one already."""
    connection.execute(insert(seal_keys).values(name=_SHARED, key=key).on_conflict_do_nothing())
