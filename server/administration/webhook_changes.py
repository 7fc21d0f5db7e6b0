"""Webhook endpoints: create, update, rotate, delete, redeliver. Each change adds its audit entry.

Audit entries name an endpoint's host: the path and query of a URL may hold a receiver's secrets.
"""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from msgspec import UNSET

from server.administration.actor import Actor
from server.administration.options_and_form_fields import with_request
from server.caller import check_tenant
from server.errors import InvalidRequest, NotFound
from server.outbound_http import allowed_addresses
from server.protocol.ids import new_uuid, parse_webhook_endpoint_id, parse_webhook_id, webhook_endpoint_id
from server.protocol.webhook_objects import CreateEndpoint, UpdateEndpoint
from server.sealing.cipher import Seal
from server.store.database import Connection
from server.store.webhooks import endpoints, outbox
from server.store.webhooks.endpoints import EndpointProperties, StoredEndpoint
from server.webhooks.signed_message import make_secret

MAX_ENDPOINTS = 16
MAX_OVERLAP = timedelta(days=7)
"""The most time for which the secret before a rotation signs, too."""
MAX_REDELIVERED = 1000
"""Deliveries of one request to attempt again all that were given up."""
BY_OPERATOR = "It was disabled by its owner or an operator."


@dataclass(frozen=True, slots=True)
class NewSecret:
    """An endpoint and its new secret, which is shown once."""

    stored: StoredEndpoint
    secret: str


def create_endpoint(
    connection: Connection,
    actor: Actor,
    seal: Seal,
    allowed: allowed_addresses.AllowedAddresses,
    tenant: str,
    request: CreateEndpoint,
) -> NewSecret:
    """A new endpoint of a tenant. Raises InvalidRequest."""
    check_tenant(tenant)
    properties = with_request(EndpointProperties(), request)
    host = _check(properties, allowed)
    if endpoints.count(connection, tenant) >= MAX_ENDPOINTS:
        raise InvalidRequest(f"A tenant has at most {MAX_ENDPOINTS} webhook endpoints; delete one first.")
    endpoint, secret = new_uuid(), make_secret()
    sealed = _sealed(seal, tenant, endpoint, secret)
    stored = endpoints.insert_endpoint(connection, tenant, endpoint, properties, sealed)
    details = {"host": host, "all_responses": properties.all_responses}
    actor.record(connection, "webhook.create", tenant, webhook_endpoint_id(endpoint), details)
    return NewSecret(stored, secret)


def update_endpoint(
    connection: Connection,
    actor: Actor,
    allowed: allowed_addresses.AllowedAddresses,
    endpoint: StoredEndpoint,
    request: UpdateEndpoint,
) -> StoredEndpoint:
    """The locked endpoint after the change. Raises InvalidRequest."""
    before, after = endpoint.properties, with_request(endpoint.properties, request)
    enabled = request.enabled
    details: dict[str, object] = {}
    if after != before:
        details["host"] = _check(after, allowed)
        names = EndpointProperties.__dataclass_fields__
        details["changed"] = sorted(name for name in names if getattr(after, name) != getattr(before, name))
        endpoints.set_properties(connection, endpoint.id, after)
    if enabled is not UNSET and enabled == (endpoint.disabled_at is not None):
        details["enabled"] = enabled
        endpoints.set_disabled(connection, endpoint.id, None if enabled else BY_OPERATOR)
    if details:
        actor.record(connection, "webhook.update", endpoint.tenant, webhook_endpoint_id(endpoint.id), details)
    stored = endpoints.get(connection, endpoint.id)
    assert stored is not None
    return stored


def rotate_secret(
    connection: Connection, actor: Actor, seal: Seal, endpoint: StoredEndpoint, overlap: timedelta
) -> NewSecret:
    """Gives the locked endpoint a new secret; for `overlap` both sign events. Raises InvalidRequest."""
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise InvalidRequest(f"overlap is from 0 to {MAX_OVERLAP.days} days.", param="overlap")
    secret = make_secret()
    sealed = _sealed(seal, endpoint.tenant, endpoint.id, secret)
    endpoints.rotate_secret(connection, endpoint.id, sealed, overlap)
    details = {"overlap_seconds": int(overlap.total_seconds())}
    actor.record(connection, "webhook.rotate", endpoint.tenant, webhook_endpoint_id(endpoint.id), details)
    stored = endpoints.get(connection, endpoint.id)
    assert stored is not None
    return NewSecret(stored, secret)


def delete_endpoint(connection: Connection, actor: Actor, endpoint: StoredEndpoint) -> None:
    """Deletes the locked endpoint; what waits for it is given up."""
    endpoints.delete_endpoint(connection, endpoint.id)
    actor.record(connection, "webhook.delete", endpoint.tenant, webhook_endpoint_id(endpoint.id), {})


def redeliver(connection: Connection, actor: Actor, endpoint: StoredEndpoint, delivery: str | None) -> int:
    """Makes a delivery due again, or the newest that were given up; returns how many. Raises NotFound."""
    chosen = None if delivery is None else parse_webhook_id(delivery)
    count = 0
    if delivery is None or chosen is not None:
        count = outbox.redeliver(connection, endpoint.tenant, endpoint.id, chosen, MAX_REDELIVERED)
    if delivery is not None and count == 0:
        raise NotFound(f"There is no delivery {delivery[:100]!r} of this webhook endpoint.")
    details = {"deliveries": count}
    actor.record(connection, "webhook.redeliver", endpoint.tenant, webhook_endpoint_id(endpoint.id), details)
    return count


def find(connection: Connection, text: str, tenant: str | None, *, lock: bool = False) -> StoredEndpoint:
    """The endpoint with that id, of the tenant if one is given. Raises NotFound."""
    endpoint = parse_webhook_endpoint_id(text)
    stored = None if endpoint is None else endpoints.get(connection, endpoint, tenant, lock=lock)
    if stored is None:
        raise NotFound(f"There is no webhook endpoint {text[:100]!r}.")
    return stored


def _sealed(seal: Seal, tenant: str, endpoint: UUID, secret: str) -> str:
    return seal.seal("webhook", tenant, webhook_endpoint_id(endpoint), secret)


def _check(properties: EndpointProperties, allowed: allowed_addresses.AllowedAddresses) -> str:
    """The URL's host. Raises InvalidRequest for one that may not be called."""
    try:
        url = allowed_addresses.read_url(properties.url)
        allowed_addresses.check_url(url, allowed)
    except allowed_addresses.Refused as refusal:
        raise InvalidRequest(str(refusal), param="url") from None
    return allowed_addresses.host_and_port(url)[0]
