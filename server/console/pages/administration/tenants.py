"""Tenants: the list, a tenant with its keys and webhook endpoints; its settings made, changed and deleted."""

from server.administration import tenants
from server.administration.api_objects import tenant_object, with_given
from server.administration.tenants import TenantProperties
from server.caller import SCOPES
from server.console.console_request import ConsoleRequest
from server.console.forms import read_body, tenant_values
from server.console.pages.administration.keys import new_form_id
from server.errors import NotFound
from server.http.asgi.answers import Answer
from server.protocol.administration.requests import CreateTenant, UpdateTenant
from server.protocol.ids import webhook_endpoint_id
from server.store.administration import budgets, stored_keys
from server.store.administration import tenants as stored_tenants
from server.store.console import tenants as listed
from server.store.database import clock
from server.store.webhooks import endpoints
from server.webhooks.attempts import EVENT_TYPES

PAGE_ROWS = 200
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
        defaults=console.services.config,
        usage_days=listed.USAGE_DAYS,
    )


def create(console: ConsoleRequest) -> Answer:
    """POST /console/tenants"""
    values = {"id": console.form.get("id", "").strip(), **tenant_values(console.form)}
    wanted = read_body(values, CreateTenant)
    properties = with_given(TenantProperties(), wanted)
    with console.services.database.begin() as connection:
        tenants.create_tenant(connection, console.actor, wanted.id, properties)
    return console.redirect(f"/console/tenants/{wanted.id}")


def show(console: ConsoleRequest) -> Answer:
    """GET /console/tenants/{tenant}"""
    name = tenant_of(console)
    row, stored, keys, hooks, now = console.services.database.read(
        lambda connection: (
            listed.tenant_row(connection, name),
            stored_tenants.get(connection, name),
            stored_keys.list_page(connection, name, None, None, KEY_ROWS, newest_first=True),
            endpoints.list_all(connection, name),
            clock(connection),
        )
    )
    if row is None:
        raise NotFound(f"There is no tenant '{name}'.")
    of_tenant, of_keys = console.services.database.read(
        lambda connection: (
            budgets.of_tenants(connection, [] if stored is None else [stored]),
            budgets.of_keys(connection, keys),
        )
    )
    return console.page(
        "administration/tenant.html",
        row=row,
        tenant=tenant_object(name, stored, of_tenant.get(name)),
        held=of_keys,
        keys=keys[:KEY_ROWS],
        more_keys=len(keys) > KEY_ROWS,
        endpoints=[(webhook_endpoint_id(one.id), one) for one in hooks],
        event_types=EVENT_TYPES,
        now=now,
        once=new_form_id(),
        scopes=SCOPES,
        defaults=console.services.config,
        usage_days=listed.USAGE_DAYS,
    )


def update(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}: settings that a tenant lacks are made"""
    name = tenant_of(console)
    wanted = read_body(tenant_values(console.form), UpdateTenant)
    with console.services.database.begin() as connection:
        if stored_tenants.get(connection, name) is None:
            properties = with_given(TenantProperties(), wanted)
            tenants.create_tenant(connection, console.actor, name, properties)
        else:
            tenants.update_tenant(connection, console.actor, name, lambda before: with_given(before, wanted))
    return console.redirect(f"/console/tenants/{name}")


def delete(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}/delete: its settings; what it stored stays"""
    with console.services.database.begin() as connection:
        tenants.delete_tenant(connection, console.actor, tenant_of(console))
    return console.redirect("/console/tenants")


def tenant_of(console: ConsoleRequest) -> str:
    """The tenant that the address names. Raises NotFound for what cannot be one."""
    name: str = console.request.path_params["tenant"]
    if "\0" in name or len(name) > 63:
        raise NotFound("There is no such tenant.")
    return name
