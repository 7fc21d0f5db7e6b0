"""Stored tenants, keys, prices, usage and webhook endpoints as objects of the API. Pure."""

from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from server.caller import SERVER_SETTINGS, Limits
from server.protocol import ids, webhooks
from server.protocol.administration import objects
from server.store.administration.audit_trail import Entry
from server.store.administration.budgets import Standing
from server.store.administration.prices import Price
from server.store.administration.stored_keys import KeyState, StoredKey
from server.store.administration.tenants import StoredTenant
from server.store.administration.usage import Group, UsageRow
from server.store.cluster.replica_list import ListedReplica
from server.store.webhooks.delivery_lists import StoredDelivery
from server.store.webhooks.endpoints import StoredEndpoint


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


def usage_object(row: UsageRow, groups: list[Group]) -> objects.Usage:
    day = None if row.day is None else row.day.isoformat()
    key_id = row.key_id or "" if "key_id" in groups else None
    values: dict[Group, Any] = {"day": day, "tenant": row.tenant, "key_id": key_id, "model": row.model}
    return objects.Usage(
        id=objects.cursor_of([values[name] for name in groups]),
        day=day,
        tenant=row.tenant,
        key_id=key_id,
        model=row.model,
        responses=row.responses,
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        reasoning_tokens=row.reasoning_tokens,
        cost=money(row.cost),
        unpriced_responses=row.unpriced,
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


def endpoint_object(stored: StoredEndpoint) -> webhooks.Endpoint:
    return webhooks.Endpoint(**_endpoint_fields(stored))


def endpoint_with_secret(stored: StoredEndpoint, secret: str) -> webhooks.EndpointWithSecret:
    return webhooks.EndpointWithSecret(**_endpoint_fields(stored), signing_secret=secret)


def _endpoint_fields(stored: StoredEndpoint) -> dict[str, Any]:
    chosen = stored.properties
    return {
        "id": ids.webhook_endpoint_id(stored.id),
        "tenant": stored.tenant,
        "name": chosen.name,
        "url": chosen.url,
        "event_types": sorted(chosen.event_types),
        "all_responses": chosen.all_responses,
        "created_at": _seconds(stored.created_at),
        "updated_at": _seconds(stored.updated_at),
        "disabled_at": _seconds_or_none(stored.disabled_at),
        "disabled_reason": stored.disabled_reason,
    }


def delivery_object(stored: StoredDelivery) -> webhooks.Delivery:
    times = ("next_attempt_at", "last_attempt_at", "delivered_at", "given_up_at")
    fields: dict[str, Any] = {name: _seconds_or_none(getattr(stored, name)) for name in times}
    return webhooks.Delivery(
        id=ids.webhook_id(stored.id),
        event_id=ids.event_id(stored.event_id),
        webhook_endpoint_id=ids.webhook_endpoint_id(stored.endpoint_id),
        response_id=ids.response_id(stored.response_id),
        type=stored.type,  # type: ignore[arg-type]  # the outbox has no others
        state=stored.state,
        created_at=_seconds(stored.created_at),
        attempts=stored.attempts,
        last_status=stored.last_status,
        last_error=stored.last_error,
        **fields,
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
