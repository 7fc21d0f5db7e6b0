"""A tenant's webhook endpoints: made, enabled, disabled, given a new secret, deleted."""

from server.administration import webhooks
from server.administration.api_objects import with_given
from server.administration.webhooks import EndpointWithSecret
from server.console.console_request import ConsoleRequest
from server.console.forms import read_body
from server.console.pages.administration.tenants import tenant_of
from server.http.asgi.answers import Answer
from server.http.handlers.webhooks import OVERLAP
from server.protocol.webhooks import CreateTenantEndpoint
from server.store.database import Connection
from server.store.webhooks.endpoints import EndpointProperties, StoredEndpoint
from server.webhooks.attempts import EVENT_TYPES


def create(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}/webhook_endpoints: the answer has its secret"""
    values = {
        "tenant": tenant_of(console),
        "name": console.form.get("name", "").strip(),
        "url": console.form.get("url", "").strip(),
        "event_types": [name for name in EVENT_TYPES if name in console.form],
        "all_responses": "all_responses" in console.form,
    }
    wanted = read_body(values, CreateTenantEndpoint)
    properties = with_given(EndpointProperties(), wanted)
    seal, allowed = console.services.model.seal, console.services.samples.client.allowed
    with console.services.database.begin() as connection:
        made = webhooks.create_endpoint(
            connection, console.actor, seal, allowed, tenant_of(console), properties
        )
    return _secret_page(console, made)


def set_enabled(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}/webhook_endpoints/{endpoint_id}: `enabled` is yes or no"""
    enabled = console.form.get("enabled") == "yes"
    allowed = console.services.samples.client.allowed
    with console.services.database.begin() as connection:
        stored = _find(connection, console)
        webhooks.update_endpoint(
            connection, console.actor, allowed, stored, lambda before: before, enabled=enabled
        )
    return console.redirect(f"/console/tenants/{stored.tenant}")


def rotate(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}/webhook_endpoints/{endpoint_id}/rotate: the answer has the new secret"""
    with console.services.database.begin() as connection:
        stored = _find(connection, console)
        made = webhooks.rotate_secret(connection, console.actor, console.services.model.seal, stored, OVERLAP)
    return _secret_page(console, made)


def delete(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}/webhook_endpoints/{endpoint_id}/delete"""
    with console.services.database.begin() as connection:
        stored = _find(connection, console)
        webhooks.delete_endpoint(connection, console.actor, stored)
    return console.redirect(f"/console/tenants/{stored.tenant}")


def _secret_page(console: ConsoleRequest, made: EndpointWithSecret) -> Answer:
    return console.page(
        "administration/new_secret.html", endpoint=made.stored, secret=made.secret, tenant=made.stored.tenant
    )


def _find(connection: Connection, console: ConsoleRequest) -> StoredEndpoint:
    name: str = console.request.path_params["endpoint_id"]
    return webhooks.find(connection, name, tenant_of(console), lock=True)
