"""The schema of a database: all of it, and its columns beside those that the code declares."""

import re

import psycopg
from sqlalchemy.dialects import postgresql

from server.store.tables import ALL_TABLES

_EVERYTHING = """
    select table_name, column_name, data_type, is_nullable, column_default from information_schema.columns
    where table_schema = current_schema()
    union all
    select tablename, indexname, indexdef, null, null from pg_indexes where schemaname = current_schema()
    union all
    select conrelid::regclass::text, conname, pg_get_constraintdef(oid), null, null from pg_constraint
    where connamespace = current_schema()::regnamespace
    order by 1, 2, 3
"""
_COLUMNS = """
    select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), not a.attnotnull,
        array_position(p.conkey, a.attnum)
    from pg_class c join pg_attribute a on a.attrelid = c.oid
    left join pg_constraint p on p.conrelid = c.oid and p.contype = 'p'
    where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')
        and not c.relispartition and a.attnum > 0 and not a.attisdropped and c.relname <> 'alembic_version'
"""
_DAY = re.compile(r"(?<=_p)\d{10}|(?<=_before_)\d{8}")
"""In the name of a partition."""
Column = tuple[object, ...]
"""Table, name, type, whether it may be null, its place in the primary key."""


def schema(url: str) -> list[tuple[object, ...]]:
    """Columns, indexes and constraints; partitions without their days, as midnight may come in between."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(_EVERYTHING).fetchall()
    return sorted((tuple(_DAY.sub("DAY", cell) if cell else cell for cell in row) for row in rows), key=repr)


def unlike_the_code(url: str) -> set[Column]:
    """The columns that only the database or only the code has, each as it has them."""
    with psycopg.connect(url) as connection:
        return set(connection.execute(_COLUMNS).fetchall()) ^ _declared()


def _declared() -> set[Column]:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    places = {
        (table.name, column.name): place
        for table in ALL_TABLES.tables.values()
        for place, column in enumerate(table.primary_key, 1)
    }
    return {
        (
            name,
            column.name,
            column.type.compile(dialect).lower(),
            column.nullable,
            places.get((name, column.name)),
        )
        for name, table in ALL_TABLES.tables.items()
        for column in table.columns
    }
