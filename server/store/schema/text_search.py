"""The index by which `admin.search` finds words in the history: an operator makes and drops it."""

from typing import Final

from sqlalchemy import Connection, text

from server.store.schema.concurrent_indexes import build
from server.store.schema.schema_session import TABLE_LOCK_TIMEOUT, try_for_locks

INDEX: Final = "ix_items_words"
LOCK_SECONDS = 60.0
"""The wait of a build for older transactions, and of a build or a removal for those that use items."""


def turn_on(url: str) -> None:
    """Builds the index partition by partition, beside traffic; a repeated call goes on where one has failed.
    `url` leads to a session, not to a pooler. Raises DatabaseError.
    """

    def make(session: Connection, left: float) -> None:
        connection = session.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text(f"set statement_timeout = 0; set lock_timeout = '{TABLE_LOCK_TIMEOUT}'"))
        build(connection, INDEX, "items", "using gin (admin.words(payload))", lock_seconds=left)

    try_for_locks(url, LOCK_SECONDS, make)


def turn_off(url: str) -> None:
    """Drops the index. Raises DatabaseError."""

    def drop(connection: Connection, _left: float) -> None:
        connection.execute(text(f"set local lock_timeout = '{TABLE_LOCK_TIMEOUT}'"))
        connection.execute(text(f"drop index if exists {INDEX}"))
        connection.commit()

    try_for_locks(url, LOCK_SECONDS, drop)
