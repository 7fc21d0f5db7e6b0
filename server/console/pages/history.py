"""The history: a table of responses with filters, a search box, a live tail, and the same rows as CSV."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from server.console.console_request import ConsoleRequest, pages
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer
from server.protocol import ids
from server.protocol.ids import response_id
from server.protocol.responses.response import TERMINAL_STATUSES
from server.store.console import history_queries
from server.store.console.history_queries import HistoryFilter, HistoryRow
from server.store.console.saved_view_queries import SavedView, views_of
from server.store.console.time_limit import TimeOver
from server.store.content.response_pages import PageCursor

MAX_CHARS = 1000
PERIODS: Final[Mapping[str, timedelta | None]] = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "all": None,
}
DEFAULT_PERIOD = "7d"
STATUSES: Final = ("queued", "in_progress", *sorted(TERMINAL_STATUSES))
KINDS: Final = ("response", "chat", "completion")
_NAMES: Final[Mapping[str, str]] = {
    "tenant": "tenant",
    "key": "key_id",
    "model": "model",
    "kind": "kind",
    "status": "status",
    "error": "error_code",
    "user": "end_user",
    "request": "request_id",
    "conversation": "conversation",
}
"""Words before a colon in the box, which are the form's fields, too; and the fields of the filter."""
_METADATA = re.compile(r"([^=\s:]{1,64})=(.{0,512})", re.DOTALL)


def find_response(query: str) -> UUID | None:
    """The response that a query names by its id, by that of a chat or an item, or by its UUID; else None."""
    text = query.strip()
    response = ids.parse_response_id(text) or ids.parse_completion_id(text) or ids.response_of_item(text)
    return response or (ids.parse_uuid(text) if len(text) == 36 else None)


def read_filter(arguments: Mapping[str, str], now: datetime) -> HistoryFilter:
    """The filter of the box `q`, of a field for each column, and of the time. Raises InvalidRequest."""
    period = arguments.get("period") or DEFAULT_PERIOD
    if period not in PERIODS:
        raise InvalidRequest(f"period is one of {', '.join(PERIODS)}.", param="period")
    length = PERIODS[period]
    search = HistoryFilter(since=None if length is None else now - length)
    for name in _NAMES:
        if arguments.get(name):
            search = _with_field(search, name, arguments[name])
    if arguments.get("deaths"):
        search = replace(search, died=True)
    return _with_query(search, arguments.get("q", ""))


def _with_query(search: HistoryFilter, query: str) -> HistoryFilter:
    if len(query) > MAX_CHARS:
        raise InvalidRequest(f"A search has at most {MAX_CHARS} characters.", param="q")
    words = []
    for part in _parts(query):
        name, colon, value = part.partition(":")
        if colon and value and name in _NAMES:
            search = _with_field(search, name, value)
        elif part.startswith("conv_"):
            search = _with_field(search, "conversation", part)
        elif part.startswith("req_"):
            search = _with_field(search, "request", part)
        elif (pair := _METADATA.fullmatch(part)) is not None:
            search = replace(search, metadata={**search.metadata, pair[1]: pair[2]})
        else:
            words.append(f'"{part}"' if " " in part else part)
    return replace(search, words=" ".join(words))


def _parts(query: str) -> list[str]:
    """The query at its spaces; what is in double quotes stays together."""
    reader = shlex.shlex(query, posix=True)
    reader.whitespace_split, reader.commenters, reader.quotes, reader.escape = True, "", '"', ""
    try:
        return list(reader)
    except ValueError:  # a quote that does not end
        return query.replace('"', " ").split()


def _with_field(search: HistoryFilter, name: str, value: str) -> HistoryFilter:
    if name == "status" and value not in STATUSES:
        raise InvalidRequest(f"status is one of {', '.join(STATUSES)}.", param="status")
    if name == "kind" and value not in KINDS:
        raise InvalidRequest(f"kind is one of {', '.join(KINDS)}.", param="kind")
    if name == "conversation":
        conversation = ids.parse_conversation_id(value)
        if conversation is None:
            raise InvalidRequest("A conversation is conv_ and 32 hex digits.", param="conversation")
        return replace(search, conversation=conversation)
    return replace(search, **{_NAMES[name]: value})  # type: ignore[arg-type]  # the other fields are texts


PREVIEW_CHARS = 120
_TEXT = re.compile(r'"(?:text|output|arguments|refusal|content|input)"\s*:\s*"((?:[^"\\]|\\.)*)', re.DOTALL)
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")


def preview(payload_begin: str | None) -> str:
    """The first words of an item in one line; empty without a text. The JSON may end anywhere."""
    match = _TEXT.search(payload_begin or "")
    if match is None:
        return ""
    text = _CUT_ESCAPE.sub("", match[1])
    try:
        decoded = json.loads(f'"{text}"', strict=False)
    except ValueError:
        decoded = text
    words = " ".join(str(decoded[: 8 * PREVIEW_CHARS]).split())
    return words if len(words) <= PREVIEW_CHARS else words[: PREVIEW_CHARS - 1] + "…"


PAGE_ROWS = 50
CSV_ROWS = 10_000
FIELDS = ("q", "period", "tenant", "key", "model", "kind", "status", "error", "user", "request", "deaths")


@pages("GET ")
@pages("GET /history")
def show(console: ConsoleRequest) -> Answer:
    """`before` is the cursor of a later page."""
    arguments = console.arguments(FIELDS)
    response = find_response(arguments.get("q", ""))
    if response is not None:
        return console.redirect(f"/console/responses/{response_id(response)}")
    search, before = _read(console, arguments), _read_cursor(console.argument("before"))
    rows, message = _read_rows(console, search, before)
    shown, older = rows[:PAGE_ROWS], None
    if len(rows) > PAGE_ROWS:
        older = urlencode({**arguments, "before": f"{shown[-1].created_at.isoformat()}/{shown[-1].id.hex}"})
    return console.page(
        "history_rows.html" if console.is_fragment else "history.html",
        503 if message else 200,
        rows=shown,
        message=message,
        arguments=arguments,
        address=urlencode(arguments),
        older=older,
        is_first=before is None,
        known={} if console.is_fragment else console.database.read(history_queries.known_values),
        saved=_saved_views(console),
        saved_address=lambda view: f"/console/history?{view.content}",
        options={"periods": PERIODS, "statuses": STATUSES, "kinds": KINDS},
        preview=preview,
        words_limit=history_queries.WORDS_WITHOUT_INDEX,
    )


def _saved_views(console: ConsoleRequest) -> Sequence[SavedView]:
    """The saved views, which rows that a script asks for do not have beside them."""
    if not console.is_admin or console.is_fragment:
        return ()
    return console.database.read(lambda connection: views_of(connection, "history"))


def _read_rows(
    console: ConsoleRequest, search: HistoryFilter, before: PageCursor | None
) -> tuple[list[HistoryRow], str]:
    """A page's rows and one more, or none and a sentence that says why."""
    try:
        read = partial(history_queries.history_page, contents=console.is_admin)
        rows = console.database.read(lambda connection: read(connection, search, before, PAGE_ROWS + 1))
    except TimeOver as error:
        return [], str(error)
    return rows, ""


@pages("GET /history.csv")
def csv(console: ConsoleRequest) -> Answer:
    """The same rows, the newest 10,000."""
    arguments = console.arguments(FIELDS)
    search = _read(console, arguments)
    rows = console.database.read(
        lambda connection: history_queries.history_page(connection, search, None, CSV_ROWS, contents=False)
    )
    names = HistoryRow._fields[1:-2]
    return console.csv("responses.csv", [names, *([getattr(row, name) for name in names] for row in rows)])


def _read(console: ConsoleRequest, arguments: Mapping[str, str]) -> HistoryFilter:
    search = read_filter(arguments, datetime.now(UTC))
    if search.words and not console.is_admin:
        raise InvalidRequest("Searching for words needs a key that may read contents.", param="q")
    return search


def _read_cursor(cursor: str) -> PageCursor | None:
    if not cursor:
        return None
    time, _, name = cursor.partition("/")
    try:
        return PageCursor(datetime.fromisoformat(time).astimezone(UTC), UUID(hex=name))
    except (ValueError, OverflowError):
        raise InvalidRequest("before must be the position of a response.", param="before") from None
