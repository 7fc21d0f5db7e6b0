"""The history: a table of responses with filters, a search box, a live tail, and the same rows as CSV."""

import csv as csv_format
import io
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode
from uuid import UUID

from starlette.responses import Response

from server.console.console_request import HEADERS, ConsoleRequest
from server.console.previews import preview
from server.console.search import KINDS, PERIODS, STATUSES, find_response, read_filter
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer
from server.protocol.ids import response_id
from server.store.console import history
from server.store.console.history import Cursor, HistoryFilter, HistoryRow
from server.store.console.saved_views import views_of

PAGE_ROWS = 50
CSV_ROWS = 10_000
FIELDS = ("q", "period", "tenant", "key", "model", "kind", "status", "error", "user", "request", "deaths")
_SPREADSHEET_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def show(console: ConsoleRequest) -> Answer:
    """GET /console/history; `before` is the cursor of a later page"""
    arguments = {name: value for name in FIELDS if (value := console.argument(name))}
    found = find_response(arguments.get("q", ""))
    if found is not None:
        return console.redirect(f"/console/responses/{response_id(found)}")
    wanted, before = _read(console, arguments), _read_cursor(console.argument("before"))
    rows, known, saved = console.services.database.read(
        lambda connection: (
            history.history_page(connection, wanted, before, PAGE_ROWS + 1, contents=console.is_admin),
            {} if console.is_fragment else history.known_values(connection),
            views_of(connection, "history") if console.is_admin and not console.is_fragment else [],
        )
    )
    shown = rows[:PAGE_ROWS]
    older = {**arguments, "before": _cursor_text(shown[-1])} if len(rows) > PAGE_ROWS else None
    return console.page(
        "history_rows.html" if console.is_fragment else "history.html",
        rows=shown,
        arguments=arguments,
        address=urlencode(arguments),
        older=None if older is None else urlencode(older),
        is_first=before is None,
        known=known,
        saved=saved,
        saved_address=lambda view: f"/console/history?{view.content}",
        periods=PERIODS,
        statuses=STATUSES,
        kinds=KINDS,
        preview=preview,
        words_limit=history.WORDS_WITHOUT_INDEX,
    )


def csv(console: ConsoleRequest) -> Answer:
    """GET /console/history.csv: the same rows, the newest 10,000"""
    arguments = {name: value for name in FIELDS if (value := console.argument(name))}
    wanted = _read(console, arguments)
    rows = console.services.database.read(
        lambda connection: history.history_page(connection, wanted, None, CSV_ROWS, contents=False)
    )
    text = io.StringIO()
    writer = csv_format.writer(text)
    names = HistoryRow._fields[1:-2]
    writer.writerow(names)
    for row in rows:
        writer.writerow([csv_value(getattr(row, name)) for name in names])
    headers = {
        **HEADERS,
        "x-request-id": console.request.state.request_id,
        "content-disposition": 'attachment; filename="responses.csv"',
    }
    return Response(text.getvalue(), headers=headers, media_type="text/csv; charset=utf-8")


def csv_value(value: object) -> object:
    """A value of a row as spreadsheets read it; a text that would be a formula there gets an apostrophe."""
    match value:
        case str() if value.startswith(_SPREADSHEET_FORMULA):
            return f"'{value}"
        case datetime():
            return value.astimezone(UTC).isoformat()
        case Mapping():
            return csv_value(" ".join(f"{key}={one}" for key, one in value.items()))
        case _:
            return value


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
