"""The index by which `admin.search` finds words in the history: an operator makes and drops it."""

from typing import Final

from sqlalchemy import text

from server.store.schema.concurrent_indexes import build
from server.store.schema.session import connect

INDEX: Final = "ix_items_words"
LOCK_SECONDS = 60.0
"""How long a build waits for older transactions, and a drop for those that read items."""


def turn_on(url: str) -> None:
    """Builds the index partition by partition, beside traffic; a repeated call goes on where one has failed.

    Raises DatabaseError.
    """
    with connect(url) as session:
        connection = session.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text("set statement_timeout = 0"))
        build(connection, INDEX, "items", "using gin (admin.words(payload))", lock_seconds=LOCK_SECONDS)


def turn_off(url: str) -> None:
    """Drops the index. Raises DatabaseError."""
    with connect(url) as connection:
        connection.execute(text(f"set local lock_timeout = '{LOCK_SECONDS:.0f}s'"))
        connection.execute(text(f"drop index if exists {INDEX}"))
        connection.commit()


def is_on(url: str) -> bool:
    """Whether the index is there and whole."""
    query = text("select indisvalid from pg_index where indexrelid = to_regclass(:name)")
    with connect(url) as connection:
        return bool(connection.scalar(query, {"name": INDEX}))
