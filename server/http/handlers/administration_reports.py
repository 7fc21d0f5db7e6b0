"""The admin API's prices, usage, audit trail and replicas."""

from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Literal, cast, get_args

from starlette.requests import Request

from server.administration import price_changes
from server.administration.objects_from_rows import price_object, replica_object, trail_object, usage_object
from server.administration.options_and_form_fields import time_of
from server.errors import InvalidRequest, bad_cursor
from server.http.handler_services import ApiCall
from server.http.handlers.administration import ADMIN, changing
from server.http.operation import Parameter, RouteTable
from server.http.query_and_headers import (
    MODEL,
    PAGE,
    TENANT,
    one_of,
    page_request,
    text,
    unix_seconds,
)
from server.protocol import ids
from server.protocol.administration import objects
from server.protocol.administration.objects import page_of, read_cursor
from server.protocol.administration.requests import SetPrice, UnixSeconds
from server.protocol.decode import decode
from server.protocol.list_pages import Page
from server.store.administration import audit_trail
from server.store.administration import model_prices as stored_prices
from server.store.administration.audit_trail import EntryFilter
from server.store.administration.usage_sums import GROUPS, NEVER, Group, UsageFilter, UsageRow, usage_page
from server.store.cluster.cluster_overview import replicas_page
from server.store.database import Connection, clock

ReplicaState = Literal["alive", "stopped", "dead"]
DEFAULT_USAGE = timedelta(days=30)
"""Before `end_time`, or now, without a `start_time`."""


routes = RouteTable("administration", "/admin/v1", **ADMIN)


@routes("POST /prices", "Set a model's price from a time on.", objects.Price, takes=SetPrice)
def set_price(call: ApiCall) -> objects.Price:
    requested = decode(call.body, SetPrice)
    with changing(call) as (connection, actor):
        return price_object(price_changes.set_price(connection, actor, requested))


@routes("GET /prices", "List prices, by model and time.", objects.PricePage, parameters=(*PAGE, MODEL))
def list_prices(call: ApiCall) -> Page[objects.Price]:
    page, model = page_request(call.request, "asc", _price_cursor), text(call.request, "model")
    listed = call.database.read(lambda connection: stored_prices.list_page(connection, model, page))
    return page_of([price_object(price) for price in listed], page.limit)


@routes(
    "GET /usage",
    "Get usage: sums of the usage ledger.",
    objects.UsagePage,
    parameters=(
        *PAGE,
        Parameter("start_time", UnixSeconds, "Ended from then on; 30 days ago if not given."),
        Parameter("end_time", UnixSeconds, "Ended before then."),
        Parameter(
            "group_by[]", list[Group], "Fields that the sums are grouped by; one sum in all if not given."
        ),
        TENANT,
        Parameter("key_id", str, "Filter by key."),
        MODEL,
    ),
)
def usage(call: ApiCall) -> Page[objects.UsageSums]:
    groups = _groups(call.request)
    page = page_request(call.request, "asc", partial(_usage_cursor, groups=groups))

    def work(connection: Connection) -> list[UsageRow]:
        chosen = _usage_filter(call.request, clock(connection))
        return usage_page(connection, chosen, groups, page)

    return page_of([usage_object(row, groups) for row in call.database.read(work)], page.limit)


@routes(
    "GET /audit_trail",
    "List the audit trail, by age.",
    objects.TrailPage,
    parameters=(
        *PAGE,
        TENANT,
        Parameter("actor", str, "Filter by actor."),
        Parameter("action", str, "Filter by the beginning of the action."),
        Parameter("target", str, "Filter by target."),
        Parameter("since", UnixSeconds, "From then on."),
        Parameter("until", UnixSeconds, "Before then."),
    ),
)
def list_trail(call: ApiCall) -> Page[objects.TrailEntry]:
    page = page_request(call.request, parse=ids.parse_uuid, kind="an entry")
    chosen = _entry_filter(call.request)
    entries = call.database.read(lambda connection: audit_trail.entries_page(connection, chosen, page))
    return page_of([trail_object(entry) for entry in entries], page.limit)


@routes(
    "GET /replicas",
    "List server processes, by their start.",
    objects.ReplicaPage,
    parameters=(*PAGE, Parameter("state", ReplicaState, "Filter by state.")),
)
def list_replicas(call: ApiCall) -> Page[objects.Replica]:
    page = page_request(call.request, parse=ids.parse_uuid, kind="a replica")
    state = one_of(call.request, "state", get_args(ReplicaState))
    listed = call.database.read(lambda connection: replicas_page(connection, state, page))
    return page_of([replica_object(replica) for replica in listed], page.limit)


def _usage_filter(request: Request, now: datetime) -> UsageFilter:
    start, end = unix_seconds(request, "start_time"), unix_seconds(request, "end_time")
    before = now if end is None else time_of(end)
    return UsageFilter(
        start=before - DEFAULT_USAGE if start is None else time_of(start),
        end=NEVER if end is None else before,
        tenant=text(request, "tenant"),
        key_id=text(request, "key_id"),
        model=text(request, "model"),
    )


def _entry_filter(request: Request) -> EntryFilter:
    since, until = unix_seconds(request, "since"), unix_seconds(request, "until")
    return EntryFilter(
        **{name: text(request, name) for name in ("actor", "action", "tenant", "target")},
        since=None if since is None else time_of(since),
        until=None if until is None else time_of(until),
    )


def _groups(request: Request) -> list[Group]:
    """Return the groupings of sums, in the order in which sums are sorted."""
    names = set(request.query_params.getlist("group_by[]") + request.query_params.getlist("group_by"))
    if not names <= set(GROUPS):
        raise InvalidRequest(f"group_by is one or more of {', '.join(GROUPS)}.", param="group_by")
    return [name for name in GROUPS if name in names]


def _usage_cursor(after: str, groups: list[Group]) -> list[object]:
    refusal = bad_cursor(after, "sums with the same group_by")
    try:
        values = read_cursor(after)
        if len(values) != len(groups) or None in values or not groups:
            raise refusal
        return [
            date.fromisoformat(value) if name == "day" else value
            for name, value in zip(groups, cast("list[str]", values), strict=True)
        ]
    except ValueError:
        raise refusal from None


def _price_cursor(after: str) -> tuple[str, datetime]:
    try:
        model, time = read_cursor(after)
        if model is None or time is None:
            raise bad_cursor(after, "a price")
        return model, datetime.fromisoformat(time).astimezone(UTC)
    except (ValueError, OverflowError):
        raise bad_cursor(after, "a price") from None
