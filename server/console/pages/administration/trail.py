"""The audit trail, with filters."""

from collections.abc import Mapping
from urllib.parse import urlencode

from server.administration.options_and_form_fields import read_time, time_of
from server.console.console_request import ConsoleRequest, pages
from server.http.asgi.answers import Answer
from server.http.query_and_headers import cursor
from server.protocol.ids import parse_uuid
from server.protocol.list_pages import PageRequest
from server.store.administration import audit_trail
from server.store.administration.audit_trail import ACTIONS, EntryFilter
from server.store.console.time_limit import limit_time
from server.store.database import Connection

PAGE_ROWS = 100
_TIMES = ("since", "until")
_TEXTS = ("actor", "action", "tenant", "target")
FIELDS = (*_TEXTS, *_TIMES)
CONTENT_ACTIONS = frozenset({"console.sql"})
"""Actions whose details only admins see."""


@pages("GET /trail")
def show(console: ConsoleRequest) -> Answer:
    """`after` is the entry that a later page comes after."""
    arguments = console.arguments(FIELDS)
    chosen, after = read_filter(arguments), cursor(console.argument("after"), parse_uuid, "an entry")
    page = PageRequest(after, PAGE_ROWS, newest_first=True)

    def work(connection: Connection) -> list[audit_trail.Entry]:
        with limit_time(connection):
            return audit_trail.entries_page(connection, chosen, page)

    rows = console.database.read(work)
    shown = rows[:PAGE_ROWS]
    older = {**arguments, "after": str(shown[-1].id)} if len(rows) > PAGE_ROWS else None
    return console.page(
        "administration/trail.html",
        rows=shown,
        arguments=arguments,
        older=None if older is None else urlencode(older),
        actions=ACTIONS,
        content_actions=CONTENT_ACTIONS,
    )


def read_filter(arguments: Mapping[str, str]) -> EntryFilter:
    """The filter of a page's address. Raises InvalidRequest."""
    times = {name: time_of(read_time(arguments[name], name)) for name in _TIMES if arguments.get(name)}
    since, until = times.get("since"), times.get("until")
    return EntryFilter(**{name: arguments.get(name) for name in _TEXTS}, since=since, until=until)
