"""Tenants' settings: create, update, delete. Each change adds its audit entry in the same transaction."""

from collections.abc import Collection
from dataclasses import dataclass

from server.administration.actor import Actor, described
from server.administration.objects_from_rows import tenant_object
from server.administration.options_and_form_fields import with_request
from server.caller import SERVER_SETTINGS, TenantSettings, check_tenant
from server.errors import Conflict, NotFound
from server.protocol.administration.objects import Tenant
from server.protocol.administration.requests import UpdateTenant
from server.store.administration import budget_standings, stored_keys, tenants
from server.store.database import Connection


@dataclass(frozen=True, slots=True)
class TenantProperties:
    contact: str = ""
    settings: TenantSettings = SERVER_SETTINGS


def create_tenant(connection: Connection, actor: Actor, tenant: str, request: UpdateTenant) -> Tenant:
    """Settings of a tenant that has none; it may have keys. Raises InvalidRequest or Conflict."""
    check_tenant(tenant)
    properties = with_request(TenantProperties(), request)
    if not tenants.insert_tenant(connection, tenant, properties.contact, properties.settings):
        raise Conflict(f"Tenant {tenant} has settings already; update them.")
    actor.record(connection, "tenant.create", tenant, tenant, described(properties, TenantProperties()))
    return shown_tenant(connection, tenant)


def update_tenant(connection: Connection, actor: Actor, tenant: str, request: UpdateTenant) -> Tenant:
    """The tenant after the change. Raises NotFound for a tenant without settings, or InvalidRequest."""
    stored = tenants.get(connection, tenant, lock=True)
    if stored is None:
        raise _unknown(tenant)
    before = TenantProperties(stored.contact, stored.settings)
    after = with_request(before, request)
    if after != before:
        tenants.set_settings(connection, tenant, after.contact, after.settings)
        actor.record(connection, "tenant.update", tenant, tenant, described(after, before))
    return shown_tenant(connection, tenant)


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


def shown_tenant(connection: Connection, name: str) -> Tenant:
    """The tenant of that name, with or without settings, as `tenant_objects` has it."""
    return tenant_objects(connection, [name])[0]


def tenant_objects(connection: Connection, names: Collection[str]) -> list[Tenant]:
    """The tenants as the admin API shows them, with what is left of their budgets."""
    stored = tenants.of_names(connection, names)
    standings = budget_standings.of_tenants(connection, stored.values())
    return [tenant_object(name, stored.get(name), standings.get(name)) for name in names]
