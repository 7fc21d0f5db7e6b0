"""Tenants' settings: create, update, delete. Each change adds its audit entry in the same transaction."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from server.administration import checks
from server.administration.actor import Actor, described
from server.caller import SERVER_SETTINGS, TenantSettings
from server.errors import Conflict, NotFound
from server.store.administration import stored_keys, tenants
from server.store.administration.tenants import StoredTenant
from server.store.database import Connection


@dataclass(frozen=True, slots=True)
class TenantProperties:
    """What an operator chooses of a tenant."""

    contact: str = ""
    settings: TenantSettings = SERVER_SETTINGS


def create_tenant(connection: Connection, actor: Actor, tenant: str, properties: TenantProperties) -> None:
    """Settings of a tenant that has none; it may have keys. Raises InvalidRequest or Conflict."""
    checks.check_tenant(tenant)
    _check(properties)
    if not tenants.insert_tenant(connection, tenant, properties.contact, properties.settings):
        raise Conflict(f"Tenant {tenant} has settings already; update them.")
    actor.record(connection, "tenant.create", tenant, tenant, described(properties, TenantProperties()))


def update_tenant(
    connection: Connection, actor: Actor, tenant: str, change: Callable[[TenantProperties], TenantProperties]
) -> StoredTenant:
    """The tenant after the change. Raises NotFound for a tenant without settings, or InvalidRequest."""
    stored = tenants.get(connection, tenant, lock=True)
    if stored is None:
        raise _unknown(tenant)
    before = TenantProperties(stored.contact, stored.settings)
    after = change(before)
    if after != before:
        _check(after)
        tenants.set_settings(connection, tenant, after.contact, after.settings)
        actor.record(connection, "tenant.update", tenant, tenant, described(after, before))
    return replace(stored, contact=after.contact, settings=after.settings)


def delete_tenant(connection: Connection, actor: Actor, tenant: str) -> None:
    """Deletes a tenant's settings, and nothing else of it. Raises NotFound; Conflict while a key is valid."""
    if tenants.get(connection, tenant, lock=True) is None:
        raise _unknown(tenant)
    if valid := stored_keys.valid_keys_of(connection, tenant):
        keys = "a valid key" if valid == 1 else f"{valid} valid keys"
        raise Conflict(f"Tenant {tenant} has {keys}; revoke first.")
    tenants.delete_settings(connection, tenant)
    actor.record(connection, "tenant.delete", tenant, tenant, {})


def _unknown(tenant: str) -> NotFound:
    return NotFound(
        f"Tenant {tenant[:100]!r} has no settings of its own; `holdfast tenants list` shows which."
    )


def _check(properties: TenantProperties) -> None:
    checks.check_text(properties.contact, "contact")
    checks.check_settings(properties.settings)
