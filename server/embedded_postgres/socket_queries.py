"""Connections to the embedded Postgres over its socket: URL, readiness probe, creation of the database.

Knows nothing about processes or files.
"""

from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

import psycopg
from psycopg import sql

from server.embedded_postgres.account import EmbeddedError

PORT = 5432  # only a part of the socket's name
SOCKET_NAME = f".s.PGSQL.{PORT}"


class ServerState(NamedTuple):
    """What a connection attempt shows."""

    #: "up" includes a server that has no connection left to give.
    state: Literal["up", "starting", "recovering", "down"]
    complaint: str = ""


def socket_url(sockets: Path, database: str) -> str:
    """The libpq URL of a database of the Postgres that has its socket in this directory."""
    # With the port, because libpq would otherwise take one from PGPORT.
    return f"postgresql://postgres@/{quote(database)}?host={quote(str(sockets))}&port={PORT}"


def probe(url: str) -> ServerState:
    """Try to connect."""
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        complaint = str(error)
        if "too many clients" in complaint or "connection slots are reserved" in complaint:
            return ServerState("up")
        if "starting up" in complaint:
            return ServerState("starting", complaint)
        if "recovery" in complaint or "not yet accepting" in complaint:
            return ServerState("recovering", complaint)
        return ServerState("down", complaint)
    return ServerState("up")


def create_database(maintenance_url: str, name: str) -> None:
    """Create a database unless there is one of that name."""
    try:
        with psycopg.connect(maintenance_url, autocommit=True) as connection:
            query = "SELECT 1 FROM pg_database WHERE datname = %s"
            if connection.execute(query, [name]).fetchone() is None:
                create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
                connection.execute(create)
    except psycopg.Error as error:
        raise EmbeddedError(f"Cannot create the database {name!r}: {error}") from error
