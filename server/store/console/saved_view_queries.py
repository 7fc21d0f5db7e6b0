"""Filters of the history and SQL queries that operators have saved: listed, added, found, deleted."""

from datetime import datetime
from typing import Final, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from server.store.database import lock
from server.store.tables import saved_views

MAX_VIEWS: Final = 200
MAX_NAME_CHARS: Final = 80
MAX_CONTENT_CHARS: Final = 20_000
ViewPage = Literal["history", "sql"]
_COLUMNS = saved_views.c


class SavedView(NamedTuple):
    id: UUID
    page: ViewPage
    name: str
    content: str
    """The query of an address of the history, or the text of an SQL query."""
    created_by: str
    created_at: datetime


_SELECT = select(*(_COLUMNS[name] for name in SavedView._fields))


def views_of(connection: Connection, page: ViewPage) -> list[SavedView]:
    query = _SELECT.where(_COLUMNS.page == page).order_by(_COLUMNS.name).limit(MAX_VIEWS)
    return [SavedView(*row) for row in connection.execute(query)]


def find_view(connection: Connection, view: UUID) -> SavedView | None:
    row = connection.execute(_SELECT.where(_COLUMNS.id == view)).first()
    return None if row is None else SavedView(*row)


def count_views(connection: Connection, page: ViewPage) -> int:
    """The number of a page's views, which nobody else saves until the transaction ends."""
    lock(connection, "saved_views")
    query = select(func.count()).select_from(saved_views).where(_COLUMNS.page == page)
    return connection.execute(query).scalar_one()


def insert_view(
    connection: Connection, page: ViewPage, name: str, content: str, created_by: str
) -> UUID | None:
    """The new view's id; None if the page has one with that name."""
    values = {"page": page, "name": name, "content": content, "created_by": created_by}
    row = insert(saved_views).values(id=func.gen_random_uuid(), **values)
    id_: UUID | None = connection.execute(row.on_conflict_do_nothing().returning(_COLUMNS.id)).scalar()
    return id_


def delete_view(connection: Connection, view: UUID) -> SavedView | None:
    """The view that was deleted; None if there is none."""
    removal = delete(saved_views).where(_COLUMNS.id == view)
    row = connection.execute(removal.returning(*_SELECT.selected_columns)).first()
    return None if row is None else SavedView(*row)
