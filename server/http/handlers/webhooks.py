"""/v1/webhook_endpoints of the caller's tenant, and /admin/v1/webhook_endpoints of every tenant."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from starlette.responses import Response

from server.administration import webhook_changes
from server.administration.objects_from_rows import delivery_object, endpoint_object, endpoint_with_secret
from server.http.handler_services import ApiCall, Handler
from server.http.handlers.administration import ADMIN, changing, secret_response
from server.http.operation import Parameter, RouteTable
from server.http.query_and_headers import PAGE, TENANT, one_of, page_request, read_optional, text
from server.protocol import ids
from server.protocol import webhook_objects as objects
from server.protocol.administration.objects import page_of
from server.protocol.decode import decode
from server.protocol.list_pages import Page
from server.store.database import Connection
from server.store.webhooks import endpoints, outbox
from server.store.webhooks.endpoints import StoredEndpoint

OVERLAP = timedelta(hours=24)
"""The time for which a rotation keeps the old secret; OpenAI's value."""
_ONE = "/webhook_endpoints/{webhook_endpoint_id}"
_STATE = Parameter("state", outbox.DeliveryState, "Filter by state.")

tenant_routes = RouteTable("webhooks", "/v1")
admin_routes = RouteTable("administration", "/admin/v1", **ADMIN)


def _both(route: str, says: str, gives: Any, **more: Any) -> Callable[[Handler], Handler]:
    """Adds a handler to both APIs, under the same name."""

    def add(handler: Handler) -> Handler:
        tenant_routes(route, says, gives, **more)(handler)
        return admin_routes(route, says, gives, **more)(handler)

    return add


_CREATES = ("POST /webhook_endpoints", "Create a webhook endpoint; its secret is in this answer only.")
_LISTS = ("GET /webhook_endpoints", "List webhook endpoints, by age.", objects.EndpointPage)


@tenant_routes(*_CREATES, objects.EndpointWithSecret, takes=objects.CreateEndpoint)
@admin_routes(*_CREATES, objects.EndpointWithSecret, takes=objects.CreateTenantEndpoint)
def create_webhook_endpoint(call: ApiCall) -> Response:
    requested = decode(call.body, objects.CreateTenantEndpoint if _is_admin(call) else objects.CreateEndpoint)
    tenant = getattr(requested, "tenant", call.caller.tenant)
    seal, allowed = call.services.model.seal, call.services.allowed_receivers
    with changing(call) as (connection, actor):
        created = webhook_changes.create_endpoint(connection, actor, seal, allowed, tenant, requested)
    return secret_response(call, endpoint_with_secret(created.stored, created.secret))


@tenant_routes(*_LISTS, parameters=PAGE)
@admin_routes(*_LISTS, parameters=(*PAGE, TENANT))
def list_webhook_endpoints(call: ApiCall) -> Page[objects.Endpoint]:
    page = page_request(call.request, parse=ids.parse_webhook_endpoint_id, kind="a webhook endpoint")
    tenant = text(call.request, "tenant") if _is_admin(call) else call.caller.tenant
    with call.database.begin() as connection:
        stored = endpoints.list_page(connection, tenant, page)
    return page_of([endpoint_object(row) for row in stored], page.limit)


@_both(f"GET {_ONE}", "Retrieve a webhook endpoint.", objects.Endpoint)
def retrieve_webhook_endpoint(call: ApiCall) -> objects.Endpoint:
    with call.database.begin() as connection:
        return endpoint_object(_find(connection, call))


@_both(
    f"POST {_ONE}",
    "Update a webhook endpoint; omitted properties stay.",
    objects.Endpoint,
    takes=objects.UpdateEndpoint,
)
def update_webhook_endpoint(call: ApiCall) -> objects.Endpoint:
    requested, allowed = decode(call.body, objects.UpdateEndpoint), call.services.allowed_receivers
    with changing(call) as (connection, actor):
        stored = _find(connection, call, lock=True)
        return endpoint_object(webhook_changes.update_endpoint(connection, actor, allowed, stored, requested))


@_both(
    f"DELETE {_ONE}", "Delete a webhook endpoint; pending deliveries are given up.", objects.DeletedEndpoint
)
def delete_webhook_endpoint(call: ApiCall) -> objects.DeletedEndpoint:
    with changing(call) as (connection, actor):
        stored = _find(connection, call, lock=True)
        webhook_changes.delete_endpoint(connection, actor, stored)
    return objects.DeletedEndpoint(ids.webhook_endpoint_id(stored.id))


@_both(
    f"POST {_ONE}/rotate_secret",
    "Rotate a webhook endpoint's secret; the new one is in this answer only.",
    objects.EndpointWithSecret,
    takes=objects.RotateSecret,
    needs_body=False,
)
def rotate_webhook_secret(call: ApiCall) -> Response:
    requested = read_optional(call.body, objects.RotateSecret)
    overlap = OVERLAP if requested.keep_old_secret_active_for_24_hours else timedelta(0)
    with changing(call) as (connection, actor):
        stored = _find(connection, call, lock=True)
        created = webhook_changes.rotate_secret(connection, actor, call.services.model.seal, stored, overlap)
    return secret_response(call, endpoint_with_secret(created.stored, created.secret))


@_both(
    f"POST {_ONE}/test",
    "Test a webhook endpoint: send it a sample and return its answer.",
    objects.SampleResult,
    takes=objects.SendSample,
)
def test_webhook_endpoint(call: ApiCall) -> objects.SampleResult:
    kind = decode(call.body, objects.SendSample).event_type
    with call.database.begin() as connection:
        stored = _find(connection, call)
        sealed = endpoints.sealed_secrets(connection, stored.id)
    status = call.services.send_sample(stored, sealed, kind)
    endpoint = ids.webhook_endpoint_id(stored.id)
    return objects.SampleResult(webhook_endpoint_id=endpoint, event_type=kind, status_code=status)


@_both(
    f"GET {_ONE}/deliveries",
    "List a webhook endpoint's deliveries, by age.",
    objects.DeliveryPage,
    parameters=(*PAGE, _STATE),
)
def list_webhook_deliveries(call: ApiCall) -> Page[objects.Delivery]:
    kind, state = "a delivery of this webhook endpoint", one_of(call.request, "state", outbox.STATES)
    page = page_request(call.request, parse=ids.parse_webhook_id, kind=kind)
    with call.database.begin() as connection:
        stored = _find(connection, call)
        deliveries = outbox.list_page(connection, stored.tenant, stored.id, state, page)
    return page_of([delivery_object(row) for row in deliveries], page.limit)


@_both(f"POST {_ONE}/redeliver", "Redeliver the newest deliveries that were given up.", objects.Redelivered)
@_both(
    f"POST {_ONE}/deliveries/{{delivery_id}}/redeliver",
    "Redeliver one delivery now.",
    objects.Redelivered,
    name="redeliver_webhook",
)
def redeliver_webhooks(call: ApiCall) -> objects.Redelivered:
    with changing(call) as (connection, actor):
        stored = _find(connection, call)
        count = webhook_changes.redeliver(
            connection, actor, stored, call.request.path_params.get("delivery_id")
        )
    endpoint = ids.webhook_endpoint_id(stored.id)
    return objects.Redelivered(webhook_endpoint_id=endpoint, deliveries=count)


@tenant_routes(
    "GET /webhook_event_types", "List the event types that webhooks report.", objects.EventTypeList
)
def list_webhook_event_types(_call: ApiCall) -> objects.EventTypeList:
    return objects.EventTypeList(data=list(objects.EVENT_TYPES))


def _is_admin(call: ApiCall) -> bool:
    """Whether the address is the admin API's, which a key with its scope alone reaches."""
    return call.request.url.path.startswith("/admin/")


def _find(connection: Connection, call: ApiCall, *, lock: bool = False) -> StoredEndpoint:
    tenant = None if _is_admin(call) else call.caller.tenant
    return webhook_changes.find(
        connection, call.request.path_params["webhook_endpoint_id"], tenant, lock=lock
    )
