"""Saved views of the history and of the SQL page: saved and deleted; the pages list them."""

from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from server.console.console_request import MAX_FIELDS, ConsoleRequest, pages
from server.console.pages.history import FIELDS
from server.errors import Conflict, InvalidRequest, NotFound
from server.http.asgi.answers import Answer
from server.protocol.ids import parse_uuid
from server.store.console import saved_view_queries
from server.store.console.saved_view_queries import MAX_CONTENT_CHARS, MAX_NAME_CHARS, MAX_VIEWS, ViewPage
from server.store.database import Connection


@pages("POST /saved_views")
def save(console: ConsoleRequest) -> Answer:
    page, name = console.form.get("page"), console.form.get("name", "").strip()
    if page == "sql":
        content = console.form.get("query", "").strip()
        if not content:
            raise InvalidRequest("Write a query to save.", param="query")
    elif page == "history":
        content = history_query(console.form.get("content", ""))
    else:
        raise InvalidRequest("page is history or sql.", param="page")
    kind: ViewPage = "sql" if page == "sql" else "history"
    with console.database.begin() as connection:
        view = _save(connection, console, kind, name, content)
    if page == "sql":
        return console.redirect("/console/sql", view=str(view))
    return console.redirect(f"/console/history?{content}")


def _save(connection: Connection, console: ConsoleRequest, page: ViewPage, name: str, content: str) -> UUID:
    """The new view's id. Raises InvalidRequest; Conflict for a name that is taken."""
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"A name is 1 to {MAX_NAME_CHARS} printable characters.", param="name")
    if len(content) > MAX_CONTENT_CHARS:
        raise InvalidRequest(f"A saved view has at most {MAX_CONTENT_CHARS:,} characters.", param="content")
    if saved_view_queries.count_views(connection, page) >= MAX_VIEWS:
        raise InvalidRequest(f"A page has at most {MAX_VIEWS} saved views; delete one first.", param="name")
    view = saved_view_queries.insert_view(connection, page, name, content, console.actor.name)
    if view is None:
        raise Conflict(f"There is a saved view {name!r} already; delete it first.")
    console.actor.record(connection, "console.save_view", None, str(view), {"page": page, "name": name})
    return view


@pages("POST /saved_views/{view_id}/delete")
def delete(console: ConsoleRequest) -> Answer:
    view = view_id(console.request.path_params["view_id"])
    with console.database.begin() as connection:
        deleted = saved_view_queries.delete_view(connection, view)
        if deleted is None:
            raise NotFound("There is no such saved view.")
        details = {"page": deleted.page, "name": deleted.name}
        console.actor.record(connection, "console.delete_view", None, str(view), details)
    return console.redirect(f"/console/{deleted.page}")


def view_id(text: str) -> UUID:
    """The id of a saved view. Raises NotFound for what cannot be one."""
    view = parse_uuid(text)
    if view is None:
        raise NotFound("There is no such saved view.")
    return view


def history_query(query: str) -> str:
    """The fields of a history in that query of an address, and nothing else. Raises InvalidRequest."""
    try:
        fields = dict(parse_qsl(query, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise InvalidRequest("content must be the query string of a page.", param="content") from None
    return urlencode({name: fields[name] for name in FIELDS if fields.get(name)})
