"""Stored tenants, keys, prices, usage and webhook endpoints as objects of the API. Pure."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, TypeVar
from uuid import UUID

from msgspec import Struct

from server.administration.actor import as_json
from server.caller import SERVER_SETTINGS, Limits
from server.protocol import ids, webhook_objects
from server.protocol.administration import objects
from server.store.administration.audit_trail import Entry
from server.store.administration.budget_standings import Standing
from server.store.administration.model_prices import StoredPrice
from server.store.administration.stored_keys import KeyState, StoredKey
from server.store.administration.tenants import StoredTenant
from server.store.administration.usage_sums import Group, UsageRow
from server.store.cluster.cluster_overview import ListedReplica
from server.store.webhooks.endpoints import StoredEndpoint
from server.store.webhooks.outbox import StoredDelivery

S = TypeVar("S", bound=Struct)


def _object_of(kind: type[S], *sources: object, **values: Any) -> S:
    """The object with `values`, and for other fields the attribute of the first source that has one."""
    for name in kind.__struct_fields__:
        source = next((source for source in sources if hasattr(source, name)), None)
        if name not in values and source is not None:
            values[name] = _json_form(getattr(source, name))
    return kind(**values)


def _json_form(value: object) -> object:
    """Times as Unix seconds, days in ISO 8601, money and ids as text, sets as sorted lists."""
    match value:
        case datetime():
            return int(value.timestamp())
        case date():
            return value.isoformat()
        case UUID():
            return str(value)
        case _:
            return as_json(value)


def tenant_object(name: str, stored: StoredTenant | None, standing: Standing | None = None) -> objects.Tenant:
    """`stored` is None for a tenant without settings of its own, `standing` for one without a budget."""
    settings = SERVER_SETTINGS if stored is None else stored.settings
    own = {"created_at": None, "contact": ""} if stored is None else {}
    budget = _budget(settings.limits, standing)
    return _object_of(objects.Tenant, stored, settings, settings.limits, id=name, budget=budget, **own)


def key_object(kind: type[S], key: StoredKey, now: datetime, standing: Standing | None, **more: Any) -> S:
    limits = key.properties.limits
    state: KeyState = "valid" if key.is_valid(now) else "expired" if key.revoked_at is None else "revoked"
    budget = _budget(limits, standing)
    return _object_of(kind, key, key.properties, limits, state=state, budget=budget, **more)


def _budget(limits: Limits, standing: Standing | None) -> objects.BudgetStanding | None:
    if standing is None:
        return None
    tokens, cost = standing.tokens_left(limits), as_json(standing.cost_left(limits))
    return _object_of(objects.BudgetStanding, standing, remaining_tokens=tokens, remaining_cost=cost)


def price_object(price: StoredPrice) -> objects.Price:
    cursor = objects.cursor_of([price.model, price.valid_from.astimezone(UTC).isoformat()])
    return _object_of(objects.Price, price, id=cursor)


def usage_object(row: UsageRow, groups: Sequence[Group]) -> objects.UsageSums:
    day = None if row.day is None else row.day.isoformat()
    key_id = row.key_id or "" if "key_id" in groups else None
    values: dict[Group, Any] = {"day": day, "tenant": row.tenant, "key_id": key_id, "model": row.model}
    cursor = objects.cursor_of([values[name] for name in groups])
    return _object_of(objects.UsageSums, row, id=cursor, key_id=key_id, unpriced_responses=row.unpriced)


def trail_object(entry: Entry) -> objects.TrailEntry:
    return _object_of(objects.TrailEntry, entry, at=entry.at.timestamp())


def replica_object(replica: ListedReplica) -> objects.Replica:
    age = round(float(replica.heartbeat_age), 3)
    return _object_of(objects.Replica, replica, heartbeat_age_seconds=age)


def endpoint_object(stored: StoredEndpoint) -> webhook_objects.Endpoint:
    identifier = ids.webhook_endpoint_id(stored.id)
    return _object_of(webhook_objects.Endpoint, stored, stored.properties, id=identifier)


def endpoint_with_secret(stored: StoredEndpoint, secret: str) -> webhook_objects.EndpointWithSecret:
    identifier = ids.webhook_endpoint_id(stored.id)
    kind = webhook_objects.EndpointWithSecret
    return _object_of(kind, stored, stored.properties, id=identifier, signing_secret=secret)


def delivery_object(stored: StoredDelivery) -> webhook_objects.Delivery:
    return _object_of(
        webhook_objects.Delivery,
        stored,
        id=ids.webhook_id(stored.id),
        event_id=ids.event_id(stored.event_id),
        webhook_endpoint_id=ids.webhook_endpoint_id(stored.endpoint_id),
        response_id=ids.response_id(stored.response_id),
    )
