"""Webhook endpoints: insert, read, list, change, delete, disable. Secrets are stored sealed."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, delete, func, insert, select, text, update

from server.protocol.list_pages import ALL, PageRequest
from server.store.database import lock
from server.store.keyset_page import rows_after
from server.store.tables import webhook_endpoints


@dataclass(frozen=True, slots=True)
class EndpointProperties:
    name: str = ""
    url: str = ""
    event_types: frozenset[str] = frozenset()
    all_responses: bool = False
    """Whether it gets events of every stored response, and not of background responses alone."""


@dataclass(frozen=True, slots=True)
class StoredEndpoint:
    """An endpoint's row, without its secrets."""

    tenant: str
    id: UUID
    properties: EndpointProperties
    created_at: datetime
    updated_at: datetime
    old_secret_until: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None


_COLUMNS = webhook_endpoints.c
_CHOSEN = tuple(EndpointProperties.__dataclass_fields__)
_OWN = tuple(name for name in StoredEndpoint.__dataclass_fields__ if name != "properties")
_SELECT = select(*(_COLUMNS[name] for name in (*_OWN, *_CHOSEN)))


def _endpoint(row: Row[Any]) -> StoredEndpoint:
    columns = row._mapping
    chosen = {name: columns[name] for name in _CHOSEN}
    properties = EndpointProperties(**{**chosen, "event_types": frozenset(columns["event_types"])})
    return StoredEndpoint(**{name: columns[name] for name in _OWN}, properties=properties)


def _values(properties: EndpointProperties) -> dict[str, Any]:
    chosen = {name: getattr(properties, name) for name in _CHOSEN}
    return {**chosen, "event_types": sorted(properties.event_types)}


def count(connection: Connection, tenant: str) -> int:
    """The number of a tenant's endpoints, which nobody else makes until the transaction ends."""
    lock(connection, f"webhook_endpoints {tenant}")
    query = select(func.count()).select_from(webhook_endpoints).where(_COLUMNS.tenant == tenant)
    return connection.execute(query).scalar_one()


def insert_endpoint(
    connection: Connection, tenant: str, endpoint: UUID, properties: EndpointProperties, secret: str
) -> StoredEndpoint:
    """`secret` is sealed."""
    row = insert(webhook_endpoints).values(tenant=tenant, id=endpoint, secret=secret, **_values(properties))
    return _endpoint(connection.execute(row.returning(*_SELECT.selected_columns)).one())


def get(
    connection: Connection, endpoint: UUID, tenant: str | None = None, *, lock: bool = False
) -> StoredEndpoint | None:
    """An endpoint, of the tenant if one is given; with `lock` its row is locked until commit."""
    query = _SELECT.where(_COLUMNS.id == endpoint)
    if tenant is not None:
        query = query.where(_COLUMNS.tenant == tenant)
    row = connection.execute(query.with_for_update() if lock else query).first()
    return _endpoint(row) if row else None


def list_page(connection: Connection, tenant: str | None, asked: PageRequest = ALL) -> list[StoredEndpoint]:
    """The endpoints after one, by age; one more than the limit. Raises InvalidRequest for an unknown one."""
    query = _SELECT if tenant is None else _SELECT.where(_COLUMNS.tenant == tenant)
    order, kind = (_COLUMNS.created_at, _COLUMNS.id), "a webhook endpoint"
    rows = rows_after(connection, query, order, asked, among=query, kind=kind)
    return [_endpoint(row) for row in rows]


def set_properties(connection: Connection, endpoint: UUID, properties: EndpointProperties) -> None:
    _update(connection, endpoint, **_values(properties))


def set_disabled(connection: Connection, endpoint: UUID, reason: str | None) -> None:
    """Disables an endpoint; enables it without a reason."""
    disabled_at = None if reason is None else func.clock_timestamp()
    _update(connection, endpoint, disabled_at=disabled_at, disabled_reason=reason)


def rotate_secret(connection: Connection, endpoint: UUID, secret: str, overlap: timedelta) -> None:
    """Replaces the secret by a sealed one; the old one signs, too, for `overlap`, unless that is 0."""
    old_secret_columns = (
        {"old_secret": _COLUMNS.secret, "old_secret_until": func.clock_timestamp() + overlap}
        if overlap
        else {"old_secret": None, "old_secret_until": None}
    )
    _update(connection, endpoint, secret=secret, **old_secret_columns)


def _update(connection: Connection, endpoint: UUID, **values: object) -> None:
    change = update(webhook_endpoints).where(_COLUMNS.id == endpoint)
    connection.execute(change.values(updated_at=func.clock_timestamp(), **values))


def disable_gone(connection: Connection, endpoint: UUID, url: str, reason: str) -> bool:
    """Disables an endpoint that still has that URL; False if it is disabled, changed or deleted already."""
    gone = update(webhook_endpoints).where(
        _COLUMNS.id == endpoint, _COLUMNS.url == url, _COLUMNS.disabled_at.is_(None)
    )
    values = {"disabled_at": func.clock_timestamp(), "disabled_reason": reason}
    return connection.execute(gone.values(values)).rowcount == 1


def delete_endpoint(connection: Connection, endpoint: UUID) -> None:
    """Deletes an endpoint; what was to be delivered to it is given up by `outbox.give_up_unwanted`."""
    connection.execute(delete(webhook_endpoints).where(_COLUMNS.id == endpoint))


_SECRETS = text("""
    select secret, case when old_secret_until > clock_timestamp() then old_secret end as old_secret
    from webhook_endpoints where id = :id
""")


def sealed_secrets(connection: Connection, endpoint: UUID) -> list[str]:
    """The sealed secrets that sign now, the current one first; empty without such an endpoint."""
    row = connection.execute(_SECRETS, {"id": endpoint}).first()
    return [] if row is None else [secret for secret in row if secret is not None]


def any_enabled(connection: Connection) -> bool:
    """Whether an endpoint gets deliveries."""
    some = select(_COLUMNS.id).where(_COLUMNS.disabled_at.is_(None)).limit(1)
    return connection.execute(some).first() is not None
