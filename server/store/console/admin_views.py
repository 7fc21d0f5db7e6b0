"""The views of the schema `admin` with the comments of their columns, as the database has them."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, text

_COLUMNS = text("""
    select c.relname, coalesce(obj_description(c.oid, 'pg_class'), '') as view_comment, a.attname,
        format_type(a.atttypid, a.atttypmod), coalesce(col_description(c.oid, a.attnum), '')
    from pg_class c join pg_attribute a on a.attrelid = c.oid
    where c.relnamespace = 'admin'::regnamespace and c.relkind = 'v' and a.attnum > 0 and not a.attisdropped
    order by c.relname, a.attnum limit 1000
""")


class ViewColumn(NamedTuple):
    name: str
    type: str
    comment: str


class AdminView(NamedTuple):
    name: str
    comment: str
    columns: Sequence[ViewColumn]


def admin_views(connection: Connection) -> list[AdminView]:
    """All of them, by name."""
    found: dict[str, tuple[str, list[ViewColumn]]] = {}
    for view, about, name, kind, comment in connection.execute(_COLUMNS):
        found.setdefault(view, (about, []))[1].append(ViewColumn(name, kind, comment))
    return [AdminView(f"admin.{view}", about, columns) for view, (about, columns) in found.items()]
