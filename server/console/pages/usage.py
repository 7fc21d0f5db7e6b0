"""Usage: sums by day, tenant, model, key and user, failures, latencies and costs; the same figures as CSV."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from server.console.console_request import ConsoleRequest, pages
from server.errors import InvalidRequest
from server.http.asgi.answers import Answer
from server.store.administration import usage_sums
from server.store.administration.usage_sums import GROUPINGS, MAX_CHARTED, Grouping, UsageFilter, UsageRow
from server.store.console import history_queries
from server.store.console.time_limit import TimeOver

FIELDS: Final = ("period", "from", "to", "by", "show", "tenant", "model", "key", "user")
PERIODS: Final = (1, 7, 30, 90)
"""Days, today included."""
DEFAULT_PERIOD: Final = 7
MAX_DAYS: Final = 400
MAX_DAYS_OF_USERS: Final = 14
"""Days over which users are grouped at most: each user and day is a row."""
TOP_USERS_DAYS: Final = 7
"""Longer periods show their users only where they are grouped by them."""
MAX_BESIDE: Final = 10
"""Rows of a list that the page is not grouped by."""
MEASURES: Final[Mapping[str, tuple[str, Callable[[UsageRow], int | Decimal]]]] = {
    "tokens": ("tokens in and out", lambda row: row.input_tokens + row.output_tokens),
    "input": ("tokens in", lambda row: row.input_tokens),
    "output": ("tokens out", lambda row: row.output_tokens),
    "requests": ("requests", lambda row: row.responses),
    "failed": ("failed requests", lambda row: row.failed or 0),
    "cost": ("cost", lambda row: row.cost),
}
"""Measures that may be charted: the label, and the function that reads the value of a row."""
DEFAULT_MEASURE: Final = "tokens"
_NAMES: Final[Mapping[str, str]] = {"tenant": "tenant", "model": "model", "key": "key_id", "user": "end_user"}
"""Fields of the form, and those of the filter."""


class UsageChart(NamedTuple):
    """Values by day, the oldest first, of each charted group, the largest first, and of all others."""

    days: list[str]
    names: list[str]
    values: list[list[float]]


def read_filter(arguments: Mapping[str, str], today: date) -> UsageFilter:
    """The filter of a page's address. Raises InvalidRequest."""
    first, last = _read_days(arguments, today)
    by = arguments.get("by") or "tenant"
    if by not in GROUPINGS:
        raise InvalidRequest(f"by is one of {', '.join(GROUPINGS)}.", param="by")
    if (arguments.get("show") or DEFAULT_MEASURE) not in MEASURES:
        raise InvalidRequest(f"show is one of {', '.join(MEASURES)}.", param="show")
    grouping: Grouping = by
    chosen = {name: arguments.get(field) or None for field, name in _NAMES.items()}
    query = UsageFilter.of_days(first, last, by=grouping, **chosen)
    if query.reads_users:
        _check_users(query)
    return query


def _read_days(arguments: Mapping[str, str], today: date) -> tuple[date, date]:
    """The first and the last day. Own dates go before a period."""
    period = arguments.get("period") or str(DEFAULT_PERIOD)
    if period not in map(str, PERIODS):
        raise InvalidRequest(f"period is one of {', '.join(map(str, PERIODS))} days.", param="period")
    last = _read_day("to", arguments.get("to"), today)
    first = _read_day("from", arguments.get("from"), last - timedelta(days=int(period) - 1))
    if not 0 <= (last - first).days < MAX_DAYS:
        raise InvalidRequest(f"from must not be after to, nor over {MAX_DAYS} days before it.", param="from")
    return first, last


def _read_day(name: str, value: str | None, default: date) -> date:
    if not value:
        return default
    try:
        day = date.fromisoformat(value)
    except ValueError:
        raise InvalidRequest(f"{name} must be a day such as 2026-11-23.", param=name) from None
    if not date(2000, 1, 1) <= day <= date(2999, 12, 31):
        raise InvalidRequest(f"{name} must be a day from 2000 to 2999.", param=name)
    return day


def _check_users(query: UsageFilter) -> None:
    """Raises InvalidRequest for what the sums of users do not know."""
    if query.model is not None or query.key_id is not None or query.by in ("model", "key"):
        raise InvalidRequest("Users are summed by tenant and day, not by model or key.", param="user")
    if query.end_user is None and (query.last - query.first).days >= MAX_DAYS_OF_USERS:
        raise InvalidRequest(
            f"Users are grouped over at most {MAX_DAYS_OF_USERS} days; name one for more.", param="by"
        )


def shows_users(query: UsageFilter) -> bool:
    """Whether the page has a list of the largest users beside what it is about."""
    is_short = (query.last - query.first).days < TOP_USERS_DAYS
    return is_short and not query.reads_users and query.model is None and query.key_id is None


def label(row: UsageRow, by: Grouping) -> str:
    if by == "key":
        return row.key_name or row.key_id or "no key"
    return f"{row.end_user} of {row.tenant}" if by == "user" else row.name(by)


def chart(rows: Sequence[UsageRow], query: UsageFilter, measure: str) -> UsageChart:
    """The stacked days. Days without responses are 0; what the charted groups lack of a day is `others`."""
    read = MEASURES[measure][1]
    count = (query.last - query.first).days + 1
    days = [query.first + timedelta(days=number) for number in range(count)]
    position = {day: number for number, day in enumerate(days)}
    groups = [row for row in rows if row.part == query.by][:MAX_CHARTED]
    series: dict[tuple[Any, ...], list[Decimal]] = {_key(row): [Decimal(0)] * count for row in groups}
    rest = [Decimal(0)] * count
    for row in rows:
        if row.day is not None and row.part in ("day", "chart"):
            values = rest if row.part == "day" else series[_key(row)]
            values[position[row.day]] += read(row)
            if row.part == "chart":
                rest[position[row.day]] -= read(row)
    names = [label(row, query.by) for row in groups]
    lines = list(series.values())
    if any(rest):
        names, lines = [*names, "others"], [*lines, rest]
    charted = [[float(value) for value in line] for line in lines]
    return UsageChart([day.isoformat() for day in days], names, charted)


def _key(row: UsageRow) -> tuple[str | None, ...]:
    return row.tenant, row.model, row.key_id, row.end_user


def csv_rows(rows: Sequence[UsageRow]) -> list[list[object]]:
    """A line of names, and one for each row of a day and group, without the columns that none of them has."""
    names = [name for name in UsageRow._fields[1:] if any(getattr(row, name) is not None for row in rows)]
    return [[*names], *([getattr(row, name) for name in names] for row in rows)]


def lists(
    rows: Sequence[UsageRow], users: Sequence[UsageRow], by: Grouping
) -> dict[Grouping, list[UsageRow]]:
    """The largest of each kind: first what the page is grouped by, then `MAX_BESIDE` of each other kind."""
    by_part = {name: [row for row in (*rows, *users) if row.part == name] for name in GROUPINGS}
    order = sorted(GROUPINGS, key=lambda name: name != by)
    return {name: by_part[name][: None if name == by else MAX_BESIDE] for name in order if by_part[name]}


def failures(rows: Sequence[UsageRow]) -> list[UsageRow]:
    """Responses that did not complete by status and code, the most frequent first."""
    failed = [row for row in rows if row.part == "failure" and row.status != "completed"]
    return sorted(failed, key=lambda row: -row.responses)


def narrowed(arguments: Mapping[str, str], row: UsageRow, by: Grouping) -> str:
    """The address of the same page for one group alone; responses without a key cannot be named."""
    fields = {"tenant": row.tenant, "user": row.end_user} if by == "user" else {by: row.name(by)}
    return urlencode({**arguments, **{name: value for name, value in fields.items() if value}})


@pages("GET /usage")
def show(console: ConsoleRequest) -> Answer:
    arguments = console.arguments(FIELDS)
    message, status, shown = "", 200, None
    known = console.database.read(history_queries.known_values)
    try:
        query = read_filter(arguments, datetime.now(UTC).date())
        shown = _read(console, query, arguments.get("show", DEFAULT_MEASURE))
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
        periods=PERIODS,
        measures=MEASURES,
        default_measure=DEFAULT_MEASURE,
        narrowed=narrowed,
        label=label,
        groupings=usage_sums.GROUPINGS,
        measured=usage_sums.MEASURED_RESPONSES,
    )


@pages("GET /usage.csv")
def csv(console: ConsoleRequest) -> Answer:
    """A row for each day and group."""
    query = read_filter(console.arguments(FIELDS), datetime.now(UTC).date())
    rows = console.database.read(lambda connection: usage_sums.read_days_of_groups(connection, query))
    return console.csv("usage.csv", csv_rows(rows))


def _read(console: ConsoleRequest, query: UsageFilter, measure: str) -> dict[str, Any]:
    """Return the template's values for a period, read in one snapshot."""
    with_users = shows_users(query)
    rows, users, refused, latencies = console.database.read(
        lambda connection: (
            usage_sums.read_usage(connection, query),
            usage_sums.read_top_users(connection, query) if with_users else [],
            usage_sums.read_refused(connection, query),
            usage_sums.read_latencies(connection, query),
        )
    )
    return {
        "wanted": query,
        "lists": lists(rows, users, query.by),
        "total": next(row for row in rows if row.part == "total"),
        "days": [row for row in rows if row.part == "day"],
        "failures": failures(rows),
        "refused": refused,
        "latencies": latencies,
        "chart": chart(rows, query, measure),
        "measure": measure,
    }
