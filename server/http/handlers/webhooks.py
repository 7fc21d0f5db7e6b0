"""/v1/webhook_endpoints of the caller's tenant, and /admin/v1/webhook_endpoints of every tenant."""

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from server.administration import webhooks
from server.administration.api_objects import delivery_object, endpoint_object, endpoint_with_secret
from server.caller import Caller
from server.delivery.stored_responses import bad_cursor
from server.http.handlers.administration import actor_of, secret_response
from server.http.json_responses import json_response
from server.http.query_and_headers import one_of, page_request, text
from server.http.services import Services
from server.protocol import ids
from server.protocol.administration.objects import page_of
from server.protocol.decode import decode
from server.protocol.webhooks import (
    EVENT_TYPES,
    CreateEndpoint,
    CreateTenantEndpoint,
    DeletedEndpoint,
    EventTypeList,
    Redelivered,
    RotateSecret,
    SampleResult,
    SendSample,
    UpdateEndpoint,
)
from server.store.database import Connection
from server.store.webhooks import delivery_lists, endpoints
from server.store.webhooks.endpoints import StoredEndpoint

OVERLAP = timedelta(hours=24)
"""The time for which a rotation keeps the old secret; OpenAI's value."""
ADMIN = "/admin/"


def create_webhook_endpoint(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /v1/webhook_endpoints"""
    requested = decode(body, CreateTenantEndpoint if _is_admin(request) else CreateEndpoint)
    tenant = requested.tenant if isinstance(requested, CreateTenantEndpoint) else caller.tenant
    with services.database.begin() as connection:
        made = webhooks.create_endpoint(
            connection,
            actor_of(caller, request),
            services.model.seal,
            services.allowed_receivers,
            tenant,
            requested,
        )
    return secret_response(request, endpoint_with_secret(made.stored, made.secret))


def list_webhook_endpoints(services: Services, caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /v1/webhook_endpoints"""
    asked = page_request(request)
    tenant = text(request, "tenant") if _is_admin(request) else caller.tenant
    with services.database.begin() as connection:
        start = ids.parse_webhook_endpoint_id(asked.after or "")
        after = None if start is None else endpoints.get(connection, start, tenant)
        if asked.after and after is None:
            raise bad_cursor(asked.after, "a webhook endpoint")
        stored = endpoints.list_page(connection, tenant, after, asked.limit, newest_first=asked.newest_first)
    return json_response(request, page_of([endpoint_object(row) for row in stored], asked.limit))


def retrieve_webhook_endpoint(services: Services, caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /v1/webhook_endpoints/{webhook_endpoint_id}"""
    with services.database.begin() as connection:
        stored = _find(connection, caller, request)
    return json_response(request, endpoint_object(stored))


def update_webhook_endpoint(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /v1/webhook_endpoints/{webhook_endpoint_id}"""
    requested = decode(body, UpdateEndpoint)
    with services.database.begin() as connection:
        stored = webhooks.update_endpoint(
            connection,
            actor_of(caller, request),
            services.allowed_receivers,
            _find(connection, caller, request, lock=True),
            requested,
        )
    return json_response(request, endpoint_object(stored))


def delete_webhook_endpoint(services: Services, caller: Caller, request: Request, _body: bytes) -> Response:
    """DELETE /v1/webhook_endpoints/{webhook_endpoint_id}"""
    with services.database.begin() as connection:
        stored = _find(connection, caller, request, lock=True)
        webhooks.delete_endpoint(connection, actor_of(caller, request), stored)
    return json_response(request, DeletedEndpoint(ids.webhook_endpoint_id(stored.id)))


def rotate_webhook_secret(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret"""
    requested = decode(body, RotateSecret) if body else RotateSecret()
    overlap = OVERLAP if requested.keep_old_secret_active_for_24_hours else timedelta(0)
    with services.database.begin() as connection:
        stored = _find(connection, caller, request, lock=True)
        made = webhooks.rotate_secret(
            connection, actor_of(caller, request), services.model.seal, stored, overlap
        )
    return secret_response(request, endpoint_with_secret(made.stored, made.secret))


def test_webhook_endpoint(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /v1/webhook_endpoints/{webhook_endpoint_id}/test: sends a sample at once"""
    requested = decode(body, SendSample)
    with services.database.begin() as connection:
        stored = _find(connection, caller, request)
        sealed = endpoints.sealed_secrets(connection, stored.id)
    status = services.send_sample(stored, sealed, requested.event_type)
    endpoint = ids.webhook_endpoint_id(stored.id)
    result = SampleResult(webhook_endpoint_id=endpoint, event_type=requested.event_type, status_code=status)
    return json_response(request, result)


def list_webhook_event_types(
    _services: Services, _caller: Caller, request: Request, _body: bytes
) -> Response:
    """GET /v1/webhook_event_types"""
    return json_response(request, EventTypeList(data=list(EVENT_TYPES)))


def list_webhook_deliveries(services: Services, caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /v1/webhook_endpoints/{webhook_endpoint_id}/deliveries"""
    asked, state = page_request(request), one_of(request, "state", delivery_lists.STATES)
    with services.database.begin() as connection:
        stored = _find(connection, caller, request)
        start = ids.parse_webhook_id(asked.after or "")
        after = None if start is None else delivery_lists.get(connection, stored.tenant, stored.id, start)
        if asked.after and after is None:
            raise bad_cursor(asked.after, "a delivery of this webhook endpoint")
        deliveries = delivery_lists.list_page(
            connection, stored.tenant, stored.id, state, after, asked.limit, newest_first=asked.newest_first
        )
    return json_response(request, page_of([delivery_object(row) for row in deliveries], asked.limit))


def redeliver_webhooks(services: Services, caller: Caller, request: Request, _body: bytes) -> Response:
    """POST /v1/webhook_endpoints/{webhook_endpoint_id}/redeliver, or …/deliveries/{delivery_id}/redeliver"""
    with services.database.begin() as connection:
        stored = _find(connection, caller, request)
        delivery = request.path_params.get("delivery_id")
        count = webhooks.redeliver(connection, actor_of(caller, request), stored, delivery)
    endpoint = ids.webhook_endpoint_id(stored.id)
    return json_response(request, Redelivered(webhook_endpoint_id=endpoint, deliveries=count))


def _is_admin(request: Request) -> bool:
    """Whether the address is the admin API's, which a key with its scope alone reaches."""
    return request.url.path.startswith(ADMIN)


def _find(connection: Connection, caller: Caller, request: Request, *, lock: bool = False) -> StoredEndpoint:
    tenant = None if _is_admin(request) else caller.tenant
    return webhooks.find(connection, request.path_params["webhook_endpoint_id"], tenant, lock=lock)
