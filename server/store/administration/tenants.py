"""Tenants' settings: insert, read, change, delete. A tenant without a row has the server's settings."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update
from sqlalchemy.dialects.postgresql import insert

from server.caller import SERVER_SETTINGS, Caller, Limits, TenantSettings
from server.protocol.list_pages import ALL, PageRequest
from server.store import tables
from server.store.keyset_page import page
from server.store.tables import api_keys


@dataclass(frozen=True, slots=True)
class StoredTenant:
    tenant: str
    contact: str
    created_at: datetime
    settings: TenantSettings


TABLE = tables.tenants
_LIMITS = tuple(field.name for field in fields(Limits))
_OWN = tuple(field.name for field in fields(TenantSettings) if field.name != "limits")
_PREFIX = "tenant_"
SETTINGS_COLUMNS = [
    *(TABLE.c[name].label(_PREFIX + name) for name in (*_OWN, *_LIMITS)),
    TABLE.c.tenant.label(_PREFIX + "row"),
]
"""The columns that `settings_of_row` needs, in a query that joins tenants to something else."""


def limit_values(limits: Limits) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in _LIMITS}


def limits_of_row(columns: Mapping[Any, Any], prefix: str = "") -> Limits:
    """The limits in a row whose columns of them have this prefix."""
    return Limits(**{name: columns[prefix + name] for name in _LIMITS})


def settings_of_row(columns: Mapping[Any, Any]) -> TenantSettings:
    """The settings in a row with SETTINGS_COLUMNS; the server's if the tenant has no row."""
    if columns[_PREFIX + "row"] is None:
        return SERVER_SETTINGS
    return _settings(columns, _PREFIX)


def _settings(columns: Mapping[Any, Any], prefix: str = "") -> TenantSettings:
    own = {name: columns[prefix + name] for name in _OWN}
    return TenantSettings(**own, limits=limits_of_row(columns, prefix))


def _values(contact: str, settings: TenantSettings) -> dict[str, Any]:
    own = {name: getattr(settings, name) for name in _OWN}
    return {"contact": contact, **own, **limit_values(settings.limits)}


def _tenant(row: Row[Any]) -> StoredTenant:
    return StoredTenant(row.tenant, row.contact, row.created_at, _settings(row._mapping))


def insert_tenant(connection: Connection, tenant: str, contact: str, settings: TenantSettings) -> bool:
    """Inserts a tenant's settings; False if it has some."""
    row = insert(TABLE).values(tenant=tenant, **_values(contact, settings)).on_conflict_do_nothing()
    return connection.execute(row.returning(TABLE.c.tenant)).first() is not None


def get(connection: Connection, tenant: str, *, lock: bool = False) -> StoredTenant | None:
    """A tenant's settings; None if it has the server's. With `lock` the row is locked until commit."""
    query = select(TABLE).where(TABLE.c.tenant == tenant)
    row = connection.execute(query.with_for_update() if lock else query).first()
    return _tenant(row) if row else None


def settings_of(connection: Connection, tenant: str) -> TenantSettings:
    """A tenant's settings; the server's if it has none of its own."""
    stored = get(connection, tenant)
    return SERVER_SETTINGS if stored is None else stored.settings


def caller_for(connection: Connection, operator: Caller, tenant: str) -> Caller:
    """An operator as a caller of that tenant, whose settings hold."""
    if operator.tenant == tenant:
        return operator
    return replace(operator, tenant=tenant, settings=settings_of(connection, tenant))


def names_page(connection: Connection, asked: PageRequest = ALL) -> list[str]:
    """The names of tenants with settings or keys that come after a name; one more than the limit."""
    known = select(TABLE.c.tenant).union(select(api_keys.c.tenant)).subquery()
    after_name = asked._replace(after=asked.after and [asked.after])
    return list(connection.scalars(page(select(known.c.tenant), [known.c.tenant], after_name)))


def has_keys(connection: Connection, tenant: str) -> bool:
    """Whether a key of the tenant was ever made."""
    some = select(api_keys.c.id).where(api_keys.c.tenant == tenant).limit(1)
    return connection.execute(some).first() is not None


def of_names(connection: Connection, names: Collection[str]) -> dict[str, StoredTenant]:
    """Settings of the named tenants by name; tenants without settings are left out."""
    rows = connection.execute(select(TABLE).where(TABLE.c.tenant.in_(names)))
    return {row.tenant: _tenant(row) for row in rows}


def set_settings(connection: Connection, tenant: str, contact: str, settings: TenantSettings) -> None:
    connection.execute(update(TABLE).where(TABLE.c.tenant == tenant).values(**_values(contact, settings)))


def delete_settings(connection: Connection, tenant: str) -> bool:
    """Deletes a tenant's settings, and nothing else of it; False if there were none."""
    return connection.execute(delete(TABLE).where(TABLE.c.tenant == tenant)).rowcount == 1
