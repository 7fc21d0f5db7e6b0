"""Sums of usage for the admin API and the console: of a time, by day, of the largest groups.

Sums of whole days come of the views' sums by day. So they equal `admin.usage_daily`, `users_daily` and
`failures_daily` at any moment, and cost the same whatever the number of responses. Those of other times, and
latencies, are made of the ledger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple, get_args

from sqlalchemy import Connection, Row, text

from server.protocol.list_pages import PageRequest
from server.store.console.time_limit import limit_time
from server.store.tables import TOKENS

MAX_GROUPS: Final = 50
"""The length of a list of the largest groups."""
MAX_CHARTED: Final = 7
"""Groups that a chart shows by themselves."""
MAX_CSV_ROWS: Final = 50_000
MEASURED_RESPONSES: Final = 3_000
"""The newest of the period, of whose completed ones percentiles are computed."""
Group = Literal["day", "tenant", "key_id", "model"]
GROUPS: Final[Mapping[Group, str]] = {
    "day": "day",
    "tenant": "tenant",
    "key_id": "coalesce(key_id, '')",
    "model": "model",
}
"""Columns by which the admin API groups and sorts sums, in this order."""
Grouping = Literal["tenant", "model", "key", "user"]
GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)
_COLUMNS: Final[Mapping[Grouping, tuple[str, ...]]] = {
    "tenant": ("tenant",),
    "model": ("model",),
    "key": ("key_id", "key_name"),
    "user": ("tenant", "end_user"),
}
"""An end user is one of a tenant: the same name with another tenant is somebody else."""
_FIELD: Final[Mapping[Grouping, str]] = {
    "tenant": "tenant",
    "model": "model",
    "key": "key_id",
    "user": "end_user",
}
_NAME: Final = {**_FIELD, "key": "coalesce(key_id, '')"}
NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """The responses that ended from `start` on and before `end`, and conditions; None ones hold for all."""

    start: datetime
    end: datetime = NEVER
    by: Grouping = "tenant"
    """The grouping of the chart and of the CSV."""
    tenant: str | None = None
    model: str | None = None
    key_id: str | None = None
    end_user: str | None = None

    @classmethod
    def of_days(cls, first: date, last: date, **conditions: Any) -> "UsageFilter":
        """Whole days in UTC, `last` included."""
        begins, ends = (datetime.combine(day, time(), UTC) for day in (first, last + timedelta(days=1)))
        return cls(start=begins, end=ends, **conditions)

    @property
    def reads_users(self) -> bool:
        """Whether it is about end users, whose sums know neither models nor keys nor failures."""
        return self.by == "user" or self.end_user is not None

    @property
    def first(self) -> date:
        """The first day, in UTC."""
        return self.start.astimezone(UTC).date()

    @property
    def last(self) -> date:
        return (self.end.astimezone(UTC) - timedelta(microseconds=1)).date()

    @property
    def has_whole_days(self) -> bool:
        return all(end.astimezone(UTC).time() == time() for end in (self.start, self.end))


class UsageRow(NamedTuple):
    """Sums over ended responses. `part` says which columns are not summed over."""

    part: str
    """total, day, tenant, model, key, user, failure (status and code) or chart (a day of a group)."""
    day: date | None
    tenant: str | None
    model: str | None
    key_id: str | None
    key_name: str | None
    end_user: str | None
    status: str | None
    error_code: str | None
    responses: int
    failed: int | None
    """None for users."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost: Decimal
    unpriced: int

    def name(self, by: Grouping) -> str:
        """The name of its group; empty for responses without a key."""
        return getattr(self, _FIELD[by]) or ""

    @property
    def failed_share(self) -> float | None:
        return self.failed / self.responses if self.responses and self.failed is not None else None

    @property
    def cached_share(self) -> float | None:
        return self.cached_tokens / self.input_tokens if self.input_tokens else None


_ROW: Final = ", ".join(UsageRow._fields)


def read_usage(connection: Connection, filters: UsageFilter) -> list[UsageRow]:
    """The period's sums: in all, by day, of the largest groups, of failures, by day of charted groups."""
    query = f"""
        select {_ROW} from (
            select *, row_number() over (partition by part order by input_tokens + output_tokens desc,
                responses desc, tenant, model, key_id, end_user) as place
            from ({_sums(filters, _parts(filters))}) as sums
        ) as ranked
        where part = 'day' or place <= {MAX_GROUPS} order by part, day, place
    """
    rows = _rows(connection, query, filters)
    largest = [row for row in rows if row.part == filters.by][:MAX_CHARTED]
    return rows + _charted(connection, filters, largest)


def usage_page(
    connection: Connection, filters: UsageFilter, groups: Sequence[Group], asked: PageRequest
) -> list[UsageRow]:
    """The sums of the groups that come after the one with the values `asked.after`; one more than the limit.

    `groups` are in the order of GROUPS, and so are the values.
    """
    keys = [GROUPS[name] for name in groups]
    values = {f"after_{number}": value for number, value in enumerate(asked.after or ())}
    place, sign = ", ".join(f":{name}" for name in values), "<" if asked.newest_first else ">"
    follows = f"where ({', '.join(keys)}) {sign} ({place})"
    sorted_by = ", ".join(f"{key} desc" if asked.newest_first else key for key in keys)
    order = f"order by {sorted_by} limit {asked.limit + 1}"
    query = f"""
        select {_ROW} from ({_sums(filters, {"group": groups})}) as sums
        {follows if values else ""} {order if keys else ""}
    """
    return _rows(connection, query, filters, **values)


def _charted(connection: Connection, filters: UsageFilter, groups: Sequence[UsageRow]) -> list[UsageRow]:
    """The sums of these groups by day."""
    name, condition = _NAME[filters.by], f"{_NAME[filters.by]} = any(:names)"
    if filters.by == "user":
        condition = (
            f"(tenant, {name}) in (select * from unnest(cast(:tenants as text[]), cast(:names as text[])))"
        )
    parts = {"chart": ("day", *_COLUMNS[filters.by])}
    named = {
        "names": [group.name(filters.by) for group in groups],
        "tenants": [group.tenant for group in groups],
    }
    sums = _sums(filters, parts, where=f"and {condition}")
    return _rows(connection, f"select {_ROW} from ({sums}) as sums order by day", filters, **named)


def read_days_of_groups(connection: Connection, filters: UsageFilter) -> list[UsageRow]:
    """A row for each day and group, for CSV."""
    parts = {"chart": ("day", *_COLUMNS[filters.by])}
    order = f"order by {', '.join(parts['chart'])} limit {MAX_CSV_ROWS}"
    query = f"select {_ROW} from ({_sums(filters, parts)}) as sums {order}"
    return _rows(connection, query, filters)


def read_top_users(connection: Connection, filters: UsageFilter) -> list[UsageRow]:
    """The end users with the most tokens."""
    parts = {"user": _COLUMNS["user"]}
    order = f"order by input_tokens + output_tokens desc, tenant, end_user limit {MAX_GROUPS}"
    query = f"select {_ROW} from ({_sums(filters, parts, users=True)}) as sums {order}"
    return _rows(connection, query, filters)


def read_refused(connection: Connection, filters: UsageFilter) -> Sequence[Row[Any]]:
    """Requests answered with an error object, by status and code, the most frequent first."""
    condition = "" if filters.tenant is None else "and tenant = :tenant"
    query = f"""
        select status as http_status, nullif(error_code, '') as error_code,
            sum(requests)::bigint as requests from refused_requests
        where hour >= :begins and hour < :ends {condition}
        group by 1, 2 order by 3 desc, 1, 2 limit {MAX_GROUPS}
    """
    return _execute(connection, query, filters)


def read_latencies(connection: Connection, filters: UsageFilter) -> Sequence[Row[Any]]:
    """Percentiles in seconds (p50, p95, p99) over the newest completed responses of the period: of all, whose
    name is null, then of each group, the largest first.
    """
    conditions, _ = _conditions(filters)
    name = _NAME[filters.by]
    percentiles = "percentile_cont(array[0.5, 0.95, 0.99]) within group (order by {})"
    query = f"""
        select {name} as name, count(*) as responses,
            {percentiles.format("first_token_seconds")} as first_token,
            {percentiles.format("total_seconds")} as total
        from (
            select * from admin.usage where finished_at >= :begins and finished_at < :ends {conditions}
            order by finished_at desc limit {MEASURED_RESPONSES}
        ) as newest
        where status = 'completed' group by grouping sets ((), (1))
        order by grouping({name}) desc, 2 desc limit {MAX_GROUPS}
    """
    return _execute(connection, query, filters)


def _parts(filters: UsageFilter) -> dict[str, tuple[str, ...]]:
    """The columns of each part's groups."""
    shown: Sequence[Grouping] = ("tenant", "user") if filters.reads_users else ("tenant", "model", "key")
    failures = {} if filters.reads_users else {"failure": ("status", "error_code")}
    return {"total": (), "day": ("day",), **{name: _COLUMNS[name] for name in shown}, **failures}


_LEDGER: Final = """(
    select cast(finished_at at time zone 'utc' as date) as day, tenant, nullif(key_id, '') as key_id, model,
        status, error_code, 1 as responses, input_tokens, cached_tokens, output_tokens, reasoning_tokens,
        cost, (cost is null)::integer as unpriced
    from usage_ledger where finished_at >= :begins and finished_at < :ends
)"""


def _sums(
    filters: UsageFilter, parts: Mapping[str, Sequence[str]], *, users: bool | None = None, where: str = ""
) -> str:
    """A query of `UsageRow`s, which reads the sums by day once."""
    users = filters.reads_users if users is None else users
    columns = UsageRow._fields[1 : UsageRow._fields.index("responses")]
    absent = {"model", "key_id", "key_name", "status", "error_code"} if users else {"end_user"}
    grouped = [name for name in columns if any(name in part for part in parts.values())]
    bits = {name: 1 << (len(grouped) - 1 - place) for place, name in enumerate(grouped)}
    of_part = {
        name: sum(bit for column, bit in bits.items() if column not in part) for name, part in parts.items()
    }
    which = " ".join(f"when {mask} then '{name}'" for name, mask in of_part.items())
    part = f"case grouping({', '.join(grouped)}) {which} end" if grouped else f"'{next(iter(parts))}'"
    shown = [name if name in grouped else f"cast(null as text) as {name}" for name in columns]
    sets = ", ".join(f"({', '.join(part)})" for part in parts.values())
    failed = (
        "null::bigint" if users else "coalesce(sum(responses) filter (where status = 'failed'), 0)::bigint"
    )
    counts = ", ".join(
        f"coalesce(sum({name}), 0)::bigint as {name}" for name in ("responses", *TOKENS, "unpriced")
    )
    assert not absent & set(grouped)
    source = "admin.users_daily" if users else "admin.usage_daily" if filters.has_whole_days else _LEDGER
    conditions, _ = _conditions(filters)
    return f"""
        select {part} as part, {", ".join(shown)},
            {failed} as failed, coalesce(sum(cost), 0) as cost, {counts}
        from {source} as sums
        where day between :first and :last {conditions} {where} group by grouping sets ({sets})
    """


def _conditions(filters: UsageFilter) -> tuple[str, dict[str, Any]]:
    """The SQL after a condition on the time, and the parameters of all conditions."""
    values = {name: getattr(filters, name) for name in ("tenant", "model", "key_id", "end_user")}
    chosen = {name: value for name, value in values.items() if value is not None}
    conditions = " ".join(f"and {name} = :{name}" for name in chosen)
    times = {"first": filters.first, "last": filters.last, "begins": filters.start, "ends": filters.end}
    return conditions, {**times, **chosen}


def _rows(connection: Connection, query: str, filters: UsageFilter, **named: object) -> list[UsageRow]:
    return [UsageRow._make(row) for row in _execute(connection, query, filters, **named)]


def _execute(connection: Connection, query: str, filters: UsageFilter, **named: object) -> Sequence[Row[Any]]:
    with limit_time(connection):
        return connection.execute(text(query), {**_conditions(filters)[1], **named}).all()
