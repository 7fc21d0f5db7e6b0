"""The SQL page: an editor, the documented questions and the admin views; a query's result, plan and CSV."""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
from starlette.responses import Response

from server.console.console_request import ConsoleRequest, pages
from server.console.pages.saved_views import view_id
from server.console.sql_reader import MAX_QUERIES, NO_READER
from server.console.value_formats import csv_value
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer
from server.store.console.reader_session import MAX_QUERY_CHARS, QueryFailed, QueryResult, admin_views
from server.store.console.saved_view_queries import find_view, views_of

_FILE = Path(__file__).parents[1] / "questions.sql"


class Question(NamedTuple):
    title: str
    query: str


@cache
def questions() -> tuple[Question, ...]:
    """All of them in the order of the document."""
    parsed: list[Question] = []
    title = ""
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("-- "):
            title = line.removeprefix("-- ")
        elif line:
            parsed.append(Question(title, line))
    return tuple(parsed)


SHOWN_ROWS = 500
SHOWN_CHARS = 200
TITLE_CHARS = 2000
"""Characters in the tooltip of a value that is cut in the table."""
TRAIL_CHARS = 2000
"""Characters of a query that the audit trail keeps."""


@pages("GET /sql", needs="admin")
def show(console: ConsoleRequest) -> Answer:
    """`question` or `view` names one whose query is in the editor."""
    number, view = console.argument("question"), console.argument("view")
    known = questions()
    query = known[int(number)].query if number in map(str, range(len(known))) else ""
    if view:
        named = view_id(view)
        saved = console.database.read(lambda connection: find_view(connection, named))
        query = "" if saved is None else saved.content
    return _page(console, query)


@pages("POST /sql")
def run(console: ConsoleRequest) -> Answer:
    """The result, or with `wish` the plan or the result as CSV."""
    query = console.form.get("query", "")
    if not query.strip() or len(query) > MAX_QUERY_CHARS:
        raise InvalidRequest(f"A query has 1 to {MAX_QUERY_CHARS:,} characters.", param="query")
    wish = console.form.get("wish", "run")
    try:
        result = _result(console, query, explain=wish == "explain")
    except QueryFailed as failure:
        return _page(console, query, error=str(failure))
    if wish == "csv":
        return _csv(console, result)
    return _page(console, query, result, is_plan=wish == "explain")


def _result(console: ConsoleRequest, query: str, *, explain: bool) -> QueryResult:
    """Runs the query; the audit trail says so first. Raises QueryFailed or Overloaded."""
    database, reader = console.database, console.sql_reader
    if not reader.may_query:
        raise QueryFailed(NO_READER)
    with reader.query_turn():
        with database.begin() as connection:
            details = {"query": query[:TRAIL_CHARS], "explain": explain}
            console.actor.record(connection, "console.sql", None, "", details)
        return reader.run_query(database.url, query, explain=explain)


def _page(
    console: ConsoleRequest,
    query: str,
    result: QueryResult | None = None,
    *,
    is_plan: bool = False,
    error: str = "",
) -> Answer:
    chart = None
    if result is not None and not is_plan:
        names, types = zip(*result.columns, strict=True)
        chart = chart_of(names, types, result.rows)
    views, saved = console.database.read(
        lambda connection: (admin_views(connection), views_of(connection, "sql"))
    )
    return console.page(
        "sql/sql.html",
        status=400 if error else 200,
        query=query,
        error=error,
        is_plan=is_plan,
        result=result,
        chart=None if chart is None else msgspec.json.encode(chart._asdict()).decode(),
        number_types=NUMBERS,
        shown_rows=SHOWN_ROWS,
        shown_chars=SHOWN_CHARS,
        title_chars=TITLE_CHARS,
        questions=questions(),
        views=views,
        saved=saved,
        saved_address=lambda view: f"/console/sql?view={view.id}",
        no_reader="" if console.sql_reader.may_query else NO_READER,
        max_chars=MAX_QUERY_CHARS,
        max_queries=MAX_QUERIES,
    )


def _csv(console: ConsoleRequest, result: QueryResult) -> Response:
    """The result as a file, in which a number that begins with a minus is no formula."""
    numbers = [column.type_oid in NUMBERS for column in result.columns]
    names = [csv_value(column.name) for column in result.columns]
    return console.csv("result.csv", [names, *result.rows], numbers)


MAX_POINTS: Final = 2000
MAX_SERIES: Final = 8
NUMBERS: Final = frozenset({20, 21, 23, 26, 700, 701, 1700})
"""Postgres' types of numbers, by oid."""
TIMES: Final = frozenset({1082, 1114, 1184})
"""date, timestamp, timestamptz."""
NOTHING: Final = "-"
"""Stands for null in the name of a series."""
Row = Sequence[str | None]


class ResultChart(NamedTuple):
    """`x` are Unix seconds or numbers, ascending; of names, their places in `names`."""

    kind: Literal["time", "number", "name"]
    x: list[float]
    names: list[str]
    series: list[tuple[str, list[float | None]]]
    """Name and values, one for each x."""


def chart_of(names: Sequence[str], types: Sequence[int], rows: Sequence[Row]) -> ResultChart | None:
    """The chart of a result's first rows; None if there is nothing to draw.

    Of rows with the same first value the first number is drawn, a series for each text beside it; the largest
    are kept.
    """
    numbers = [place for place in range(1, len(types)) if types[place] in NUMBERS]
    if not numbers or len(rows) < 2:
        return None
    kind: Literal["time", "number", "name"] = (
        "time" if types[0] in TIMES else "number" if types[0] in NUMBERS else "name"
    )
    points = [(_place(row[0], kind), row) for row in rows[:MAX_POINTS]]
    known = [(place, row) for place, row in points if place is not None]
    places = list(dict.fromkeys(place for place, _row in known))
    if kind != "name":
        places.sort()
    index = {place: number for number, place in enumerate(places)}
    if len(places) < 2:
        return None
    texts = [place for place in range(1, len(types)) if types[place] not in NUMBERS]
    series_by_name: dict[str, list[float | None]] = {}
    for place, row in known:
        for series, value in _values(names, row, numbers, texts, grouped=len(places) < len(known)):
            series_by_name.setdefault(series, [None] * len(places))[index[place]] = value
    largest = sorted(series_by_name.items(), key=lambda pair: -sum(abs(value or 0) for value in pair[1]))
    shown_names = {name for name, _values in largest[:MAX_SERIES]}
    drawn = [(name, values) for name, values in series_by_name.items() if name in shown_names]
    if kind == "name":
        return ResultChart(kind, [float(number) for number in index.values()], list(map(str, places)), drawn)
    return ResultChart(kind, [float(place) for place in places], [], drawn)


def _values(
    names: Sequence[str], row: Row, numbers: Sequence[int], texts: Sequence[int], *, grouped: bool
) -> list[tuple[str, float | None]]:
    """The series to which a row belongs, each with its value."""
    if not grouped:
        return [(names[place], _number(row[place])) for place in numbers]
    group = ", ".join(row[place] or NOTHING for place in texts)
    first = numbers[0]
    return [(f"{names[first]} {group[:60]}".strip(), _number(row[first]))]


def _place(value: str | None, kind: str) -> Any:
    if value is None:
        return None
    if kind == "name":
        return value[:60]
    return _number(value) if kind == "number" else _unix_seconds(value)


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "nan")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _unix_seconds(value: str) -> float | None:
    """The time that Postgres has written; None for infinity and years that Python lacks."""
    try:
        if len(value) == 10:
            day = date.fromisoformat(value)
            return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
        time = datetime.fromisoformat(value)
        return time.replace(tzinfo=time.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None
