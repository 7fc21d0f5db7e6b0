"""Looking for what should not be in a database, in every column of every table."""

import psycopg
from psycopg import sql

_TABLES = """
    select relname from pg_class
    where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and not relispartition order by 1
"""
_HAS = sql.SQL("select 1 from {table} as t where strpos(t::text, %s) > 0 limit 1")


def tables_with(connection: psycopg.Connection, trace: str) -> list[str]:
    """The tables that have a row in which this text occurs; bytes are searched in their hexadecimal form."""
    tables = [name for (name,) in connection.execute(_TABLES)]
    assert len(tables) > 8
    return [
        name
        for name in tables
        if connection.execute(_HAS.format(table=sql.Identifier(name)), [trace]).fetchone()
    ]


def as_uuid(response_id: str) -> str:
    """A response's id as the database writes it."""
    digits = response_id.removeprefix("resp_")
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
