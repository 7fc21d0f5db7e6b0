"""Stored tenants, keys and prices as objects of the admin API, and its requests as changes of them. Pure."""

from dataclasses import fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar

from msgspec import UNSET, Struct

from server.caller import SERVER_SETTINGS, Limits
from server.protocol.administration import objects
from server.protocol.administration.requests import SetPrice
from server.store.administration.audit_trail import Entry
from server.store.administration.budgets import Standing
from server.store.administration.prices import Price
from server.store.administration.stored_keys import KeyState, StoredKey
from server.store.administration.tenants import StoredTenant
from server.store.administration.usage_ledger import Group, UsageSum
from server.store.cluster.replica_list import ListedReplica

T = TypeVar("T")


def with_given(value: T, body: Struct) -> T:
    """The dataclass with those fields replaced that the body has, also those of nested dataclasses."""
    given: dict[str, Any] = {}
    for one in fields(value):  # type: ignore[arg-type]  # T is a dataclass
        own = getattr(value, one.name)
        if hasattr(own, "__dataclass_fields__"):
            given[one.name] = with_given(own, body)
        elif (sent := getattr(body, one.name, UNSET)) is not UNSET:
            given[one.name] = _stored_form(one.name, sent)
    return replace(value, **given)  # type: ignore[type-var]


def _stored_form(name: str, sent: Any) -> object:
    if name == "budget_cost" and sent is not None:
        return Decimal(sent)
    if name == "expires_at" and sent is not None:
        return time_of(sent)
    return frozenset(sent) if isinstance(sent, list) else sent


def time_of(unix_seconds: int) -> datetime:
    return datetime.fromtimestamp(unix_seconds, UTC)


def price_of(body: SetPrice, now: datetime) -> Price:
    """The price that a request sets; from now on unless it says when."""
    cached = body.input if body.cached_input is None else body.cached_input
    valid_from = now if body.valid_from is None else time_of(body.valid_from)
    return Price(body.model, valid_from, Decimal(body.input), Decimal(cached), Decimal(body.output))


def tenant_object(name: str, stored: StoredTenant | None, standing: Standing | None = None) -> objects.Tenant:
    """`stored` is None for a tenant without settings of its own, `standing` for one without a budget."""
    settings = SERVER_SETTINGS if stored is None else stored.settings
    return objects.Tenant(
        id=name,
        created_at=None if stored is None else _seconds(stored.created_at),
        contact="" if stored is None else stored.contact,
        max_unfinished=settings.max_unfinished,
        max_queued=settings.max_queued,
        max_stored_bytes=settings.max_stored_bytes,
        retention_days=settings.retention_days,
        conversation_days=settings.conversation_days,
        **_limits(settings.limits, standing),
    )


def key_object(key: StoredKey, now: datetime, standing: Standing | None) -> objects.Key:
    return objects.Key(**_key_fields(key, now, standing))


def created_key_object(
    key: StoredKey, now: datetime, standing: Standing | None, text: str, replaces: str | None
) -> objects.CreatedKey:
    return objects.CreatedKey(**_key_fields(key, now, standing), value=text, replaces=replaces)


def _key_fields(key: StoredKey, now: datetime, standing: Standing | None) -> dict[str, Any]:
    chosen = key.properties
    state: KeyState = "valid" if key.is_valid(now) else "expired" if key.revoked_at is None else "revoked"
    times = ("first_used_at", "last_used_at", "revoked_at")
    return {
        **{name: _seconds_or_none(getattr(key, name)) for name in times},
        **{name: getattr(key, name) for name in ("id", "tenant", "replaced_by", "first_key")},
        **{name: getattr(chosen, name) for name in ("name", "priority_floor", "ends_streams")},
        **_limits(chosen.limits, standing),
        "state": state,
        "created_at": _seconds(key.created_at),
        "expires_at": _seconds_or_none(chosen.expires_at),
        "scopes": sorted(chosen.scopes),
        "models": None if chosen.models is None else sorted(chosen.models),
        "tools": None if chosen.tools is None else sorted(chosen.tools),
    }


def price_object(price: Price) -> objects.Price:
    return objects.Price(
        id=objects.cursor_of([price.model, price.valid_from.astimezone(UTC).isoformat()]),
        model=price.model,
        valid_from=_seconds(price.valid_from),
        input=money(price.input),
        cached_input=money(price.cached_input),
        output=money(price.output),
    )


def usage_object(row: UsageSum, groups: list[Group]) -> objects.Usage:
    day = None if row.day is None else row.day.isoformat()
    values: dict[Group, Any] = {"day": day, "tenant": row.tenant, "key_id": row.key_id, "model": row.model}
    return objects.Usage(
        id=objects.cursor_of([values[name] for name in groups]),
        day=day,
        tenant=row.tenant,
        key_id=row.key_id,
        model=row.model,
        responses=row.responses,
        input_tokens=int(row.input_tokens),
        cached_tokens=int(row.cached_tokens),
        output_tokens=int(row.output_tokens),
        reasoning_tokens=int(row.reasoning_tokens),
        cost=money(row.cost),
        unpriced_responses=row.unpriced_responses,
    )


def trail_object(entry: Entry) -> objects.TrailEntry:
    return objects.TrailEntry(
        id=str(entry.id),
        at=entry.at.timestamp(),
        actor=entry.actor,
        action=entry.action,
        tenant=entry.tenant,
        target=entry.target,
        request_id=entry.request_id,
        details=entry.details,
    )


def replica_object(replica: ListedReplica) -> objects.Replica:
    return objects.Replica(
        id=str(replica.id),
        state=replica.state,
        role=replica.role,
        host=replica.host,
        pid=replica.pid,
        version=replica.version,
        models=replica.models,
        started_at=_seconds(replica.started_at),
        heartbeat_age_seconds=round(float(replica.heartbeat_age), 3),
    )


def money(amount: Decimal) -> str:
    """The amount with all of its digits, without an exponent."""
    return format(amount, "f")


def budget_object(limits: Limits, standing: Standing) -> objects.BudgetStanding:
    left = standing.cost_left(limits)
    return objects.BudgetStanding(
        spent_tokens=standing.spent_tokens,
        reserved_tokens=standing.reserved_tokens,
        remaining_tokens=standing.tokens_left(limits),
        spent_cost=money(standing.spent_cost),
        reserved_cost=money(standing.reserved_cost),
        remaining_cost=None if left is None else money(left),
    )


def _limits(limits: Limits, standing: Standing | None) -> dict[str, Any]:
    return {
        **{one.name: getattr(limits, one.name) for one in fields(Limits)},
        "budget_cost": None if limits.budget_cost is None else money(limits.budget_cost),
        "budget": None if standing is None else budget_object(limits, standing),
    }


def _seconds(time: datetime) -> int:
    return int(time.timestamp())


def _seconds_or_none(time: datetime | None) -> int | None:
    return None if time is None else _seconds(time)
