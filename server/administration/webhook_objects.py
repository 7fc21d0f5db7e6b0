"""Stored webhook endpoints and deliveries as objects of the API. Pure."""

from datetime import datetime
from typing import Any

from server.protocol import ids, webhooks
from server.store.webhooks.delivery_lists import StoredDelivery
from server.store.webhooks.endpoints import StoredEndpoint


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
        "created_at": int(stored.created_at.timestamp()),
        "updated_at": int(stored.updated_at.timestamp()),
        "disabled_at": _seconds(stored.disabled_at),
        "disabled_reason": stored.disabled_reason,
    }


def delivery_object(stored: StoredDelivery) -> webhooks.Delivery:
    times = ("next_attempt_at", "last_attempt_at", "delivered_at", "given_up_at")
    fields: dict[str, Any] = {name: _seconds(getattr(stored, name)) for name in times}
    return webhooks.Delivery(
        id=ids.webhook_id(stored.id),
        event_id=ids.event_id(stored.event_id),
        webhook_endpoint_id=ids.webhook_endpoint_id(stored.endpoint_id),
        response_id=ids.response_id(stored.response_id),
        type=stored.type,  # type: ignore[arg-type]  # the outbox has no others
        state=stored.state,
        created_at=int(stored.created_at.timestamp()),
        attempts=stored.attempts,
        last_status=stored.last_status,
        last_error=stored.last_error,
        **fields,
    )


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())
