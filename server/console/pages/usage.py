"""Usage: sums by day, tenant, model, key and user, failures, latencies and costs; the same figures as CSV."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from server.console.console_request import ConsoleRequest
from server.console.figures import usage as figures
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer
from server.store.administration import usage
from server.store.administration.usage import UsageFilter
from server.store.console import history
from server.store.console.time_limit import TimeOver


def show(console: ConsoleRequest) -> Answer:
    """GET /console/usage"""
    arguments = console.arguments(figures.FIELDS)
    message, status, shown = "", 200, None
    known = console.services.database.read(history.known_values)
    try:
        wanted = figures.read_filter(arguments, datetime.now(UTC).date())
        shown = _read(console, wanted, arguments.get("show", figures.DEFAULT_MEASURE))
    except (InvalidRequest, TimeOver) as error:
        message, status = str(error), 400 if isinstance(error, InvalidRequest) else 503
    return console.page(
        "usage.html",
        status,
        message=message,
        shown=shown,
        arguments=arguments,
        address=urlencode(arguments),
        known=known,
        figures=figures,
        groupings=usage.GROUPINGS,
        measured=usage.MEASURED_RESPONSES,
    )


def csv(console: ConsoleRequest) -> Answer:
    """GET /console/usage.csv: a row for each day and group"""
    wanted = figures.read_filter(console.arguments(figures.FIELDS), datetime.now(UTC).date())
    rows = console.services.database.read(lambda connection: usage.read_days_of_groups(connection, wanted))
    return console.csv("usage.csv", figures.csv_rows(rows))


def _read(console: ConsoleRequest, wanted: UsageFilter, measure: str) -> dict[str, Any]:
    """What the page shows of a period, of one snapshot."""
    with_users = figures.shows_users(wanted)
    rows, users, refused, latencies = console.services.database.read(
        lambda connection: (
            usage.read_usage(connection, wanted),
            usage.read_top_users(connection, wanted) if with_users else [],
            usage.read_refused(connection, wanted),
            usage.read_latencies(connection, wanted),
        )
    )
    return {
        "wanted": wanted,
        "lists": figures.lists(rows, users, wanted.by),
        "total": next(row for row in rows if row.part == "total"),
        "days": [row for row in rows if row.part == "day"],
        "failures": figures.failures(rows),
        "refused": refused,
        "latencies": latencies,
        "chart": figures.chart(rows, wanted, measure),
        "measure": measure,
    }
