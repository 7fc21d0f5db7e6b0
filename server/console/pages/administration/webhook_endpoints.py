"""A tenant's webhook endpoints: made, enabled, disabled, given a new secret, deleted."""

from server.administration import webhooks
from server.administration.webhooks import IssuedEndpoint
from server.console.console_request import ConsoleRequest
from server.console.forms import read_form
from server.console.pages.administration.tenants import tenant_of
from server.http.asgi.answers import Answer
from server.http.handlers.webhooks import OVERLAP
from server.protocol.webhooks import CreateEndpoint, UpdateEndpoint
from server.store.database import Connection
from server.store.webhooks.endpoints import StoredEndpoint


def create(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}/webhook_endpoints: the answer has its secret"""
    requested = read_form(console.form, CreateEndpoint)
    seal, allowed = console.services.model.seal, console.services.allowed_receivers
    with console.services.database.begin() as connection:
        made = webhooks.create_endpoint(
            connection, console.actor, seal, allowed, tenant_of(console), requested
        )
    return _secret_page(console, made)


def set_enabled(console: ConsoleRequest) -> Answer:
    """POST /console/tenants/{tenant}/webhook_endpoints/{endpoint_id}: `enabled` is yes or no"""
    change = UpdateEndpoint(enabled=console.form.get("enabled") == "yes")
    allowed = console.services.allowed_receivers
    with console.services.database.begin() as connection:
        stored = _find(connection, console)
        webhooks.update_endpoint(connection, console.actor, allowed, stored, change)
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


def _secret_page(console: ConsoleRequest, made: IssuedEndpoint) -> Answer:
    return console.page(
        "administration/new_secret.html", endpoint=made.stored, secret=made.secret, tenant=made.stored.tenant
    )


def _find(connection: Connection, console: ConsoleRequest) -> StoredEndpoint:
    name: str = console.request.path_params["endpoint_id"]
    return webhooks.find(connection, name, tenant_of(console), lock=True)
