"""Tenants: the list; a tenant with its keys and webhook endpoints; settings, endpoints and erasure."""

from collections.abc import Mapping

import msgspec

from server.administration import audited_erasure, key_changes, tenant_changes, webhook_changes
from server.administration.options_and_form_fields import read_request
from server.caller import DEFAULT_SCOPES, NO_LIMITS
from server.configuration.settings import Config
from server.console.console_request import ConsoleRequest, pages
from server.console.forms import form_fields, read_form
from server.console.pages.administration.keys import new_form_id
from server.errors import InvalidRequest, NotFound
from server.http.asgi.answers import Answer
from server.http.handlers.administration import ERASE_SECONDS
from server.http.handlers.webhooks import OVERLAP
from server.maintenance.erasure import Outcome
from server.protocol.administration.requests import CreateTenant, Erase, UpdateKey, UpdateTenant
from server.protocol.ids import webhook_endpoint_id
from server.protocol.list_pages import PageRequest
from server.protocol.webhook_objects import EVENT_TYPES, CreateEndpoint, UpdateEndpoint
from server.store.administration import stored_keys
from server.store.administration import tenants as stored_tenants
from server.store.console import tenant_queries as listed
from server.store.database import Connection
from server.store.erasure.subject import Subject
from server.store.webhooks import endpoints
from server.store.webhooks.endpoints import StoredEndpoint

PAGE_ROWS = 200
NEW = {"budget_period": NO_LIMITS.budget_period}
"""The values with which the form of a new tenant or key begins."""
_ENDPOINT = "/tenants/{tenant}/webhook_endpoints/{endpoint_id}"
KEY_ROWS = 100
"""The newest keys of a tenant on its page; all are on the page of keys."""


@pages("GET /tenants")
def index(console: ConsoleRequest) -> Answer:
    """`after` is the name that a later page comes after."""
    after = console.argument("after") or None
    rows = console.database.read(
        lambda connection: listed.tenant_rows(connection, after=after, limit=PAGE_ROWS + 1)
    )
    return console.page(
        "administration/tenants.html",
        rows=rows[:PAGE_ROWS],
        next_after=rows[PAGE_ROWS - 1].tenant if len(rows) > PAGE_ROWS else None,
        defaults=_defaults(console.services.config),
        usage_days=listed.USAGE_DAYS,
        fields=form_fields(CreateTenant, NEW),
    )


@pages("POST /tenants")
def create(console: ConsoleRequest) -> Answer:
    requested = read_form(console.form, CreateTenant)
    with console.database.begin() as connection:
        tenant_changes.create_tenant(connection, console.actor, requested.id, requested)
    return console.redirect(f"/console/tenants/{requested.id}")


@pages("GET /tenants/{tenant}")
def show(console: ConsoleRequest) -> Answer:
    name = tenant_of(console)
    newest = PageRequest(None, KEY_ROWS, newest_first=True)
    rows, tenant, keys, hooks = console.database.read(
        lambda connection: (
            listed.tenant_rows(connection, tenant=name),
            tenant_changes.shown_tenant(connection, name),
            key_changes.key_objects(connection, stored_keys.list_page(connection, name, None, newest)),
            endpoints.list_page(connection, name),
        )
    )
    if not rows:
        raise NotFound(f"There is no tenant '{name}'.")
    return console.page(
        "administration/tenant.html",
        row=rows[0],
        tenant=tenant,
        settings=form_fields(UpdateTenant, msgspec.structs.asdict(tenant)),
        keys=keys[:KEY_ROWS],
        more_keys=len(keys) > KEY_ROWS,
        new_key=form_fields(UpdateKey, {**NEW, "scopes": DEFAULT_SCOPES}),
        endpoints=[(webhook_endpoint_id(endpoint.id), endpoint) for endpoint in hooks],
        new_endpoint=form_fields(CreateEndpoint, {"event_types": EVENT_TYPES}),
        once=new_form_id(),
        defaults=_defaults(console.services.config),
        usage_days=listed.USAGE_DAYS,
    )


@pages("POST /tenants/{tenant}")
def update(console: ConsoleRequest) -> Answer:
    """Makes settings that a tenant lacks."""
    name = tenant_of(console)
    requested = read_form(console.form, UpdateTenant)
    with console.database.begin() as connection:
        if stored_tenants.get(connection, name) is None:
            tenant_changes.create_tenant(connection, console.actor, name, requested)
        else:
            tenant_changes.update_tenant(connection, console.actor, name, requested)
    return console.redirect(f"/console/tenants/{name}")


@pages("POST /tenants/{tenant}/delete")
def delete(console: ConsoleRequest) -> Answer:
    """Deletes its settings; what it stored stays."""
    with console.database.begin() as connection:
        tenant_changes.delete_tenant(connection, console.actor, tenant_of(console))
    return console.redirect("/console/tenants")


def _defaults(config: Config) -> Mapping[str, int]:
    """The server's settings that tenants without their own have, by field."""
    return {"retention_days": config.retention_days, "conversation_days": config.conversation_days}


def tenant_of(console: ConsoleRequest) -> str:
    """The tenant that the address names. Raises NotFound for what cannot be one."""
    name: str = console.request.path_params["tenant"]
    if len(name) > 63:
        raise NotFound("There is no such tenant.")
    return name


@pages("POST /tenants/{tenant}/webhook_endpoints")
def create_endpoint(console: ConsoleRequest) -> Answer:
    requested = read_form(console.form, CreateEndpoint)
    seal, allowed = console.services.model.seal, console.services.allowed_receivers
    with console.database.begin() as connection:
        tenant = tenant_of(console)
        created = webhook_changes.create_endpoint(connection, console.actor, seal, allowed, tenant, requested)
    return console.page("administration/new_secret.html", endpoint=created.stored, secret=created.secret)


@pages(f"POST {_ENDPOINT}")
def set_endpoint_enabled(console: ConsoleRequest) -> Answer:
    """`enabled` is yes or no."""
    change = UpdateEndpoint(enabled=console.form.get("enabled") == "yes")
    allowed = console.services.allowed_receivers
    with console.database.begin() as connection:
        stored = _find_endpoint(connection, console)
        webhook_changes.update_endpoint(connection, console.actor, allowed, stored, change)
    return console.redirect(f"/console/tenants/{stored.tenant}")


@pages(f"POST {_ENDPOINT}/rotate")
def rotate_secret(console: ConsoleRequest) -> Answer:
    with console.database.begin() as connection:
        stored = _find_endpoint(connection, console)
        created = webhook_changes.rotate_secret(
            connection, console.actor, console.services.model.seal, stored, OVERLAP
        )
    return console.page("administration/new_secret.html", endpoint=created.stored, secret=created.secret)


@pages(f"POST {_ENDPOINT}/delete")
def delete_endpoint(console: ConsoleRequest) -> Answer:
    with console.database.begin() as connection:
        stored = _find_endpoint(connection, console)
        webhook_changes.delete_endpoint(connection, console.actor, stored)
    return console.redirect(f"/console/tenants/{stored.tenant}")


def _find_endpoint(connection: Connection, console: ConsoleRequest) -> StoredEndpoint:
    name: str = console.request.path_params["endpoint_id"]
    return webhook_changes.find(connection, name, tenant_of(console), lock=True)


@pages("GET /tenants/{tenant}/erase", needs="admin")
def show_erasure(console: ConsoleRequest) -> Answer:
    return _erasure(console, Subject(tenant_of(console), None, False), None, erased=False)


@pages("POST /tenants/{tenant}/erase/count")
def count_erasure(console: ConsoleRequest) -> Answer:
    subject = _subject(console)
    outcome = audited_erasure.count(console.database, subject, console.services.config.lease_seconds)
    return _erasure(console, subject, outcome, erased=False)


@pages("POST /tenants/{tenant}/erase")
def erase(console: ConsoleRequest) -> Answer:
    """Erases for some seconds; the page says whether anything is left."""
    subject = _subject(console)
    if console.form.get("confirmation", "").strip() != subject.tenant:
        raise InvalidRequest(
            f"Type the tenant's name, {subject.tenant}, to erase; nothing was removed.", param="confirmation"
        )
    audited_erasure.refuse_own_tenant(subject, console.caller.tenant)
    lease = console.services.config.lease_seconds
    outcome = audited_erasure.erase(console.database, console.actor, subject, lease, ERASE_SECONDS)
    return _erasure(console, subject, outcome, erased=True)


def _subject(console: ConsoleRequest) -> Subject:
    """Read the tenant or end user from the form. Raises InvalidRequest."""
    user = console.form.get("user", "") or None
    requested = read_request({"user": user, "keep_usage": "keep_usage" in console.form}, Erase)
    return Subject(tenant_of(console), requested.user, requested.keep_usage)


def _erasure(console: ConsoleRequest, subject: Subject, outcome: Outcome | None, *, erased: bool) -> Answer:
    rows = [] if outcome is None else sorted((+outcome.rows).items())
    return console.page(
        "administration/erase.html", subject=subject, outcome=outcome, rows=rows, erased=erased
    )
