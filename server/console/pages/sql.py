"""The SQL page: an editor, the documented questions and the admin views; a query's result, plan and CSV."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.responses import Response

from server.console.console_request import ConsoleRequest
from server.console.formats import csv_value
from server.console.pages.saved_views import view_id
from server.console.sql.result_chart import NUMBERS, chart_of
from server.console.sql.sql_reader import MAX_QUERIES, NO_READER
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer
from server.store.console.admin_views import admin_views
from server.store.console.reader import MAX_QUERY_CHARS, QueryFailed, QueryResult
from server.store.console.saved_views import find_view, views_of

_FILE = Path(__file__).parents[1] / "sql" / "questions.sql"


class Question(NamedTuple):
    title: str
    query: str


@cache
def questions() -> tuple[Question, ...]:
    """All of them in the order of the document."""
    found: list[Question] = []
    title = ""
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("-- "):
            title = line.removeprefix("-- ")
        elif line:
            found.append(Question(title, line))
    return tuple(found)


SHOWN_ROWS = 500
SHOWN_CHARS = 200
TITLE_CHARS = 2000
"""Characters in the tooltip of a value that is cut in the table."""
TRAIL_CHARS = 2000
"""Characters of a query that the audit trail keeps."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a query: a result or an error's sentence."""

    result: QueryResult | None = None
    error: str = ""
    is_plan: bool = False


def show(console: ConsoleRequest) -> Answer:
    """GET /console/sql; `question` or `view` names one whose query is in the editor"""
    number, view = console.argument("question"), console.argument("view")
    known = questions()
    query = known[int(number)].query if number in map(str, range(len(known))) else ""
    if view:
        named = view_id(view)
        saved = console.services.database.read(lambda connection: find_view(connection, named))
        query = "" if saved is None else saved.content
    return _page(console, query, _Outcome())


def run(console: ConsoleRequest) -> Answer:
    """POST /console/sql: the result, or with `wish` the plan or the result as CSV"""
    query = console.form.get("query", "")
    if not query.strip() or len(query) > MAX_QUERY_CHARS:
        raise InvalidRequest(f"A query has 1 to {MAX_QUERY_CHARS:,} characters.", param="query")
    wish = console.form.get("wish", "run")
    try:
        result = _result(console, query, explain=wish == "explain")
    except QueryFailed as failure:
        return _page(console, query, _Outcome(error=str(failure)))
    if wish == "csv":
        return _csv(console, result)
    return _page(console, query, _Outcome(result, is_plan=wish == "explain"))


def _result(console: ConsoleRequest, query: str, *, explain: bool) -> QueryResult:
    """Runs the query; the audit trail says so first. Raises QueryFailed or Overloaded."""
    database, reader = console.services.database, console.sql_reader
    if not reader.may_query:
        raise QueryFailed(NO_READER)
    with reader.query_turn():
        with database.begin() as connection:
            details = {"query": query[:TRAIL_CHARS], "explain": explain}
            console.actor.record(connection, "console.sql", None, "", details)
        return reader.run_query(database.url, query, explain=explain)


def _page(console: ConsoleRequest, query: str, outcome: _Outcome) -> Answer:
    result, chart = outcome.result, None
    if result is not None and not outcome.is_plan:
        names, types = zip(*result.columns, strict=True)
        chart = chart_of(names, types, result.rows)
    views, saved = console.services.database.read(
        lambda connection: (admin_views(connection), views_of(connection, "sql"))
    )
    return console.page(
        "sql/sql.html",
        status=400 if outcome.error else 200,
        query=query,
        outcome=outcome,
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
