"""Tenants: the list, a tenant with its keys and webhook endpoints; its settings made, changed and deleted."""

from collections.abc import Mapping

import msgspec

from server.administration import keys, tenants
from server.caller import DEFAULT_SCOPES, NO_LIMITS
from server.configuration.settings import Config
from server.console.console_request import ConsoleRequest
from server.console.forms import form_fields, read_form
from server.console.pages.administration.keys import new_form_id
from server.errors import NotFound
from server.http.asgi.answers import Answer
from server.protocol.administration.requests import CreateTenant, UpdateKey, UpdateTenant
from server.protocol.ids import webhook_endpoint_id
from server.protocol.webhooks import EVENT_TYPES, CreateEndpoint
from server.store.administration import stored_keys
from server.store.administration import tenants as stored_tenants
from server.store.console import tenants as listed
from server.store.webhooks import endpoints

PAGE_ROWS = 200
NEW = {"budget_period": NO_LIMITS.budget_period}
"""The values with which the form of a new tenant or key begins."""
KEY_ROWS = 100
"""The newest keys of a tenant on its page; all are on the page of keys."""


def index(console: ConsoleRequest) -> Answer:
    """GET /console/tenants; `after` is the name that a later page comes after"""
    after = console.argument("after") or None
    rows = console.services.database.read(
        lambda connection: listed.tenants_page(connection, after, PAGE_ROWS)
    )
    return console.page(
        "administration/tenants.html",
        rows=rows[:PAGE_ROWS],
        next_after=rows[PAGE_ROWS - 1].tenant if len(rows) > PAGE_ROWS else None,
        defaults=_defaults(console.services.config),
        usage_days=listed.USAGE_DAYS,
        fields=form_fields(CreateTenant, NEW),
    )


def create(console: ConsoleRequest) -> Answer:
    """POST /console/tenants"""
    requested = read_form(console.form, CreateTenant)
    with console.services.database.begin() as connection:
        tenants.create_tenant(connection, console.actor, requested.id, requested)
    return console.redirect(f"/console/tenants/{requested.id}")


def show(console: ConsoleRequest) -> Answer:
    """GET /console/tenants/{tenant}"""
    name = tenant_of(console)
    row, stored, newest_keys, hooks = console.services.database.read(
        lambda connection: (
            listed.tenant_row(connection, name),
            stored_tenants.get(connection, name),
            stored_keys.list_page(connection, name, limit=KEY_ROWS),
            endpoints.list_page(connection, name),
        )
    )
    if row is None:
        raise NotFound(f"There is no tenant '{name}'.")
    (tenant,), shown_keys = console.services.database.read(
        lambda connection: (
            tenants.tenant_objects(connection, [name], [] if stored is None else [stored]),
            keys.key_objects(connection, newest_keys[:KEY_ROWS]),
        )
    )
    return console.page(
        "administration/tenant.html",
        row=row,
        tenant=tenant,
        settings=form_fields(UpdateTenant, msgspec.structs.asdict(tenant)),
        keys=shown_keys,
        more_keys=len(newest_keys) > KEY_ROWS,
        new_key=form_fields(UpdateKey, {**NEW, "scopes": DEFAULT_SCOPES}),
        endpoints=[(webhook_endpoint_id(endpoint.id), endpoint) for endpoint in hooks],
        new_endpoint=form_fields(CreateEndpoint, {"event_types": EVENT_TYPES}),
        once=new_form_id(),
        defaults=_defaults(console.services.config),
        usage_days=listed.USAGE_DAYS,
    )


def update(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}: settings that a tenant lacks are made"""
    name = tenant_of(console)
    requested = read_form(console.form, UpdateTenant)
    with console.services.database.begin() as connection:
        if stored_tenants.get(connection, name) is None:
            tenants.create_tenant(connection, console.actor, name, requested)
        else:
            tenants.update_tenant(connection, console.actor, name, requested)
    return console.redirect(f"/console/tenants/{name}")


def delete(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}/delete: its settings; what it stored stays"""
    with console.services.database.begin() as connection:
        tenants.delete_tenant(connection, console.actor, tenant_of(console))
    return console.redirect("/console/tenants")


def _defaults(config: Config) -> Mapping[str, int]:
    """The server's settings that tenants without their own have, by field."""
    return {"retention_days": config.retention_days, "conversation_days": config.conversation_days}


def tenant_of(console: ConsoleRequest) -> str:
    """The tenant that the address names. Raises NotFound for what cannot be one."""
    name: str = console.request.path_params["tenant"]
    if "\0" in name or len(name) > 63:
        raise NotFound("There is no such tenant.")
    return name
