"""The history: a table of responses with filters, a search box, a live tail, and the same rows as CSV."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode
from uuid import UUID

from server.console.console_request import ConsoleRequest
from server.console.contents.previews import preview
from server.console.search import KINDS, PERIODS, STATUSES, find_response, read_filter
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer
from server.protocol.ids import response_id
from server.store.console import history
from server.store.console.history import Cursor, HistoryFilter, HistoryRow
from server.store.console.saved_views import SavedView, views_of
from server.store.console.time_limit import TimeOver

PAGE_ROWS = 50
CSV_ROWS = 10_000
FIELDS = ("q", "period", "tenant", "key", "model", "kind", "status", "error", "user", "request", "deaths")


def show(console: ConsoleRequest) -> Answer:
    """GET /console/history; `before` is the cursor of a later page"""
    arguments = console.arguments(FIELDS)
    found = find_response(arguments.get("q", ""))
    if found is not None:
        return console.redirect(f"/console/responses/{response_id(found)}")
    wanted, before = _read(console, arguments), _read_cursor(console.argument("before"))
    rows, message = _read_rows(console, wanted, before)
    shown = rows[:PAGE_ROWS]
    older = {**arguments, "before": _cursor_text(shown[-1])} if len(rows) > PAGE_ROWS else None
    return console.page(
        "history_rows.html" if console.is_fragment else "history.html",
        503 if message else 200,
        rows=shown,
        message=message,
        arguments=arguments,
        address=urlencode(arguments),
        older=None if older is None else urlencode(older),
        is_first=before is None,
        known={} if console.is_fragment else console.services.database.read(history.known_values),
        saved=_saved_views(console),
        saved_address=lambda view: f"/console/history?{view.content}",
        options={"periods": PERIODS, "statuses": STATUSES, "kinds": KINDS},
        preview=preview,
        words_limit=history.WORDS_WITHOUT_INDEX,
    )


def _saved_views(console: ConsoleRequest) -> Sequence[SavedView]:
    """The saved views, which rows that a script asks for do not have beside them."""
    if not console.is_admin or console.is_fragment:
        return ()
    return console.services.database.read(lambda connection: views_of(connection, "history"))


def _read_rows(
    console: ConsoleRequest, wanted: HistoryFilter, before: Cursor | None
) -> tuple[list[HistoryRow], str]:
    """A page's rows and one more, or none and a sentence that says why."""
    try:
        rows = console.services.database.read(
            lambda connection: history.history_page(
                connection, wanted, before, PAGE_ROWS + 1, contents=console.is_admin
            )
        )
    except TimeOver as error:
        return [], str(error)
    return rows, ""


def csv(console: ConsoleRequest) -> Answer:
    """GET /console/history.csv: the same rows, the newest 10,000"""
    arguments = console.arguments(FIELDS)
    wanted = _read(console, arguments)
    rows = console.services.database.read(
        lambda connection: history.history_page(connection, wanted, None, CSV_ROWS, contents=False)
    )
    names = HistoryRow._fields[1:-2]
    return console.csv("responses.csv", [names, *([getattr(row, name) for name in names] for row in rows)])


def _read(console: ConsoleRequest, arguments: Mapping[str, str]) -> HistoryFilter:
    wanted = read_filter(arguments, datetime.now(UTC))
    if wanted.words and not console.is_admin:
        raise InvalidRequest("Words are searched in contents, which this key does not see.", param="q")
    return wanted


def _cursor_text(row: HistoryRow) -> str:
    return f"{row.created_at.isoformat()}/{row.id.hex}"


def _read_cursor(cursor: str) -> Cursor | None:
    if not cursor:
        return None
    time, _, name = cursor.partition("/")
    try:
        created_at = datetime.fromisoformat(time)
        return Cursor(created_at.astimezone(UTC), UUID(hex=name))
    except (ValueError, OverflowError):
        raise InvalidRequest("before is the place of no response.", param="before") from None
