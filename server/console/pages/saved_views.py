"""Saved views of the history and of the SQL page: saved and deleted; the pages list them."""

from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from server.administration import saved_view_changes
from server.console.console_request import MAX_FIELDS, ConsoleRequest, pages
from server.console.pages.history import FIELDS
from server.errors import InvalidRequest, NotFound
from server.http.asgi.answers import Answer
from server.store.console.saved_view_queries import ViewPage


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
        view = saved_view_changes.save_view(connection, console.actor, kind, name, content)
    if page == "sql":
        return console.redirect("/console/sql", view=str(view))
    return console.redirect(f"/console/history?{content}")


@pages("POST /saved_views/{view_id}/delete")
def delete(console: ConsoleRequest) -> Answer:
    view = view_id(console.request.path_params["view_id"])
    with console.database.begin() as connection:
        deleted = saved_view_changes.delete_view(connection, console.actor, view)
    return console.redirect(f"/console/{deleted.page}")


def view_id(text: str) -> UUID:
    """Raises NotFound."""
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("There is no such saved view.") from None


def history_query(query: str) -> str:
    """The fields of a history in that query of an address, and nothing else. Raises InvalidRequest."""
    try:
        fields = dict(parse_qsl(query, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise InvalidRequest("content must be the query string of a page.", param="content") from None
    return urlencode({name: fields[name] for name in FIELDS if fields.get(name)})
