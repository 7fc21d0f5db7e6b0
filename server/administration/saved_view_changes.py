"""Saved views of the console: save, delete. Each change adds its audit entry in the same transaction."""

from uuid import UUID

from server.administration.actor import Actor
from server.errors import Conflict, InvalidRequest, NotFound
from server.store.console import saved_view_queries
from server.store.console.saved_view_queries import (
    MAX_CONTENT_CHARS,
    MAX_NAME_CHARS,
    MAX_VIEWS,
    SavedView,
    ViewPage,
)
from server.store.database import Connection


def save_view(connection: Connection, actor: Actor, page: ViewPage, name: str, content: str) -> UUID:
    """The new view's id. Raises InvalidRequest; Conflict for a name that is taken."""
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"A name is 1 to {MAX_NAME_CHARS} printable characters.", param="name")
    if len(content) > MAX_CONTENT_CHARS or "\0" in content:
        raise InvalidRequest(f"A saved view has at most {MAX_CONTENT_CHARS:,} characters.", param="content")
    if saved_view_queries.count_views(connection, page) >= MAX_VIEWS:
        raise InvalidRequest(f"A page has at most {MAX_VIEWS} saved views; delete one first.", param="name")
    view = saved_view_queries.insert_view(connection, page, name, content, actor.name)
    if view is None:
        raise Conflict(f"There is a saved view {name!r} already; delete it first.")
    actor.record(connection, "console.save_view", None, str(view), {"page": page, "name": name})
    return view


def delete_view(connection: Connection, actor: Actor, view: UUID) -> SavedView:
    """The deleted view. Raises NotFound."""
    deleted = saved_view_queries.delete_view(connection, view)
    if deleted is None:
        raise NotFound("There is no such saved view.")
    details = {"page": deleted.page, "name": deleted.name}
    actor.record(connection, "console.delete_view", None, str(view), details)
    return deleted
