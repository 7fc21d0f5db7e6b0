"""Deliveries of webhooks as operators see them: lists, and attempts made anew."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, func, select, update

from server.store.keyset_page import rows_after
from server.store.tables import webhook_deliveries
from server.store.webhooks.outbox import RETRIED_FOR

DeliveryState = Literal["pending", "delivered", "given_up"]


@dataclass(frozen=True, slots=True)
class StoredDelivery:
    """A delivery's row."""

    tenant: str
    id: UUID
    endpoint_id: UUID
    event_id: UUID
    response_id: UUID
    type: str
    created_at: datetime
    attempts: int
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    delivered_at: datetime | None
    given_up_at: datetime | None

    @property
    def state(self) -> DeliveryState:
        if self.delivered_at is not None:
            return "delivered"
        return "pending" if self.given_up_at is None else "given_up"


_COLUMNS = webhook_deliveries.c
_SELECT = select(*(_COLUMNS[name] for name in StoredDelivery.__dataclass_fields__))
_STATES: dict[DeliveryState, ColumnElement[bool]] = {
    "pending": _COLUMNS.next_attempt_at.is_not(None),
    "delivered": _COLUMNS.delivered_at.is_not(None),
    "given_up": and_(_COLUMNS.given_up_at.is_not(None), _COLUMNS.delivered_at.is_(None)),
}
STATES: tuple[DeliveryState, ...] = tuple(_STATES)


def list_page(
    connection: Connection,
    tenant: str,
    endpoint: UUID,
    state: DeliveryState | None,
    after: UUID | None,
    limit: int,
    *,
    newest_first: bool,
) -> list[StoredDelivery]:
    """The deliveries of an endpoint that come after one, by age; one more than `limit`. Raises InvalidRequest
    if it has no delivery `after`.
    """
    of_endpoint = _SELECT.where(_COLUMNS.tenant == tenant, _COLUMNS.endpoint_id == endpoint)
    query = of_endpoint if state is None else of_endpoint.where(_STATES[state])
    order, kind = (_COLUMNS.created_at, _COLUMNS.id), "a delivery of this webhook endpoint"
    rows = rows_after(
        connection, query, order, after, limit, descending=newest_first, among=of_endpoint, kind=kind
    )
    return [StoredDelivery(**row._mapping) for row in rows]


def redeliver(connection: Connection, tenant: str, endpoint: UUID, delivery: UUID | None, limit: int) -> int:
    """Makes a delivery due again, or without one the newest that were given up.

    Returns how many. Those that wait already are attempted now.
    """
    chosen = _STATES["given_up"] if delivery is None else _COLUMNS.id == delivery
    newest = (
        select(_COLUMNS.tenant, _COLUMNS.id)
        .where(_COLUMNS.tenant == tenant, _COLUMNS.endpoint_id == endpoint, chosen)
        .order_by(_COLUMNS.created_at.desc())
        .limit(limit)
        .with_for_update(skip_locked=delivery is None)
        .cte("newest")
    )
    again = (
        update(webhook_deliveries)
        .where(_COLUMNS.tenant == newest.c.tenant, _COLUMNS.id == newest.c.id)
        .values(
            next_attempt_at=func.clock_timestamp(),
            give_up_at=func.clock_timestamp() + RETRIED_FOR,
            delivered_at=None,
            given_up_at=None,
            last_error=None,
        )
    )
    return connection.execute(again).rowcount
