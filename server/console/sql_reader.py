"""`SqlReader`: runs the queries of the SQL page, a few at a time, as a database user that only reads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from server.configuration.settings import Config
from server.errors import Overloaded
from server.store.console import reader_session
from server.store.console.reader_session import QueryFailed, QueryResult

MAX_QUERIES = 2
"""Queries of the SQL page that run at a time in this process."""
NO_READER = (
    "This page needs a database user that only reads. Make one with `holdfast db create-user NAME --as"
    " reader` and set HOLDFAST_READER_DATABASE_URL to the database's URL with that user and its password."
)


class SqlReader:
    """Thread-safe; one in a process."""

    def __init__(self, config: Config) -> None:
        self._is_ours = config.database_url is None and config.reader_database_url is None
        """The reader is a user of the embedded database, made here."""
        self._turns = threading.BoundedSemaphore(MAX_QUERIES)
        self._reader_url = config.reader_database_url

    @property
    def may_query(self) -> bool:
        """Whether there is, or can be, a reader."""
        return self._is_ours or self._reader_url is not None

    @contextmanager
    def query_turn(self) -> Iterator[None]:
        """One of the places for queries. Raises Overloaded."""
        if not self._turns.acquire(blocking=False):
            raise Overloaded(f"{MAX_QUERIES} queries are running already; try again when one has ended.")
        try:
            yield
        finally:
            self._turns.release()

    def run_query(self, own_url: str, query: str, *, explain: bool) -> QueryResult:
        """The result of a query, or its plan. Raises QueryFailed."""
        if self._reader_url is None:
            if not self._is_ours:
                raise QueryFailed(NO_READER)
            self._reader_url = reader_session.prepare_embedded(own_url)
        return reader_session.run_query(self._reader_url, query, explain=explain, is_embedded=self._is_ours)
