"""`limit_time`: the time limit of a page's statements, and `TimeOver` for those that reach it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection

from server.store.database import set_timeouts
from server.store.database_errors import DatabaseError, is_statement_timeout

TIME_LIMIT_MS: Final = 2000
"""The time of each statement of a page. A search that takes longer is cut off, and the page says so."""


class TimeOver(Exception):
    """A statement took longer than `TIME_LIMIT_MS`: the page's filters should be narrower."""

    def __init__(self) -> None:
        super().__init__(
            f"This takes longer than {TIME_LIMIT_MS // 1000} s. Narrow the time, or name a tenant."
        )


@contextmanager
def limit_time(connection: Connection) -> Iterator[None]:
    """Sets the limit for this transaction. Raises TimeOver for a statement of the block that reaches it."""
    set_timeouts(connection, lock_ms=TIME_LIMIT_MS, statement_ms=TIME_LIMIT_MS)
    try:
        yield
    except DatabaseError as error:
        if is_statement_timeout(error):
            raise TimeOver from error
        raise
