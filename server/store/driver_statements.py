"""Statements of a transaction by psycopg itself, without SQLAlchemy's part of them, which takes longer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from server.store.database_errors import DatabaseError
from server.store.timeout_connection import TimeoutConnection


@contextmanager
def psycopg_connection(connection: Connection, statement: str = "copy") -> Iterator[TimeoutConnection]:
    """The underlying psycopg connection, in the same transaction. Raises DatabaseError, with `statement`.

    A connection that is lost is invalidated, so that the transaction's end does not hide why it was.
    """
    raw = connection.connection.driver_connection
    assert isinstance(raw, TimeoutConnection)
    try:
        yield raw
    except psycopg.Error as error:
        if raw.closed:
            connection.invalidate(error)
        raise as_database_error(statement, error) from error


def execute(
    connection: Connection, statement: tuple[str, Sequence[str]], parameters: Mapping[str, object]
) -> list[tuple[Any, ...]]:
    """The rows of a statement of `arrays.with_numbers` in the same transaction. Raises DatabaseError."""
    query, names = statement
    with psycopg_connection(connection, query) as raw:
        return raw.run(query, [parameters[name] for name in names], prepare=False)


def execute_later(
    connection: Connection, statement: tuple[str, Sequence[str]], parameters: Mapping[str, object]
) -> None:
    """Has a statement as of `execute`, whose rows are not needed, sent with the transaction's next one, or
    with its commit: an exchange with Postgres costs more than the statement. Raises DatabaseError.
    """
    query, names = statement
    with psycopg_connection(connection, query) as raw:
        raw.later(query, [parameters[name] for name in names])


def as_database_error(statement: str, error: psycopg.Error) -> DatabaseError:
    translated = DBAPIError.instance(statement, None, error, psycopg.Error)
    assert isinstance(translated, DatabaseError)
    return translated
