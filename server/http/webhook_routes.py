"""The routes of webhooks: /v1/webhook_endpoints, as OpenAI's, for tenants, and the same under /admin/v1."""

from typing import Any, Literal

from server.http.handlers import webhooks
from server.http.openapi import Operation, Parameter
from server.http.query_and_headers import PAGE
from server.http.services import Handler
from server.protocol import webhooks as objects

ONE = "/webhook_endpoints/{webhook_endpoint_id}"
_STATE = Parameter("state", Literal["pending", "delivered", "given_up"], "Filter by state.")
_TENANT = Parameter("tenant", str, "Filter by tenant.")


def _route(
    admin: bool, method: str, path: str, handler: Handler, says: str, gives: Any, **more: Any
) -> Operation[Handler]:
    """A route of one of the two APIs."""
    group, prefix = ("administration", "/admin/v1") if admin else ("webhooks", "/v1")
    if admin:
        more |= {"scope": "admin", "tag": "administration"}
    name = more.pop("name", handler.__name__)
    return Operation(f"{method} {prefix}{path}", handler, says, gives, operation_id=f"{group}.{name}", **more)


def _endpoint_routes(admin: bool) -> list[Operation[Handler]]:
    return [
        _route(
            admin,
            "POST",
            "/webhook_endpoints",
            webhooks.create_webhook_endpoint,
            "Create a webhook endpoint; its secret is in this answer only.",
            objects.EndpointWithSecret,
            takes=objects.CreateTenantEndpoint if admin else objects.CreateEndpoint,
        ),
        _route(
            admin,
            "GET",
            "/webhook_endpoints",
            webhooks.list_webhook_endpoints,
            "List webhook endpoints, by age.",
            objects.EndpointPage,
            parameters=(*PAGE, _TENANT) if admin else PAGE,
        ),
        _route(
            admin,
            "GET",
            ONE,
            webhooks.retrieve_webhook_endpoint,
            "Retrieve a webhook endpoint.",
            objects.Endpoint,
        ),
        _route(
            admin,
            "POST",
            ONE,
            webhooks.update_webhook_endpoint,
            "Update a webhook endpoint; omitted properties stay.",
            objects.Endpoint,
            takes=objects.UpdateEndpoint,
        ),
        _route(
            admin,
            "DELETE",
            ONE,
            webhooks.delete_webhook_endpoint,
            "Delete a webhook endpoint; pending deliveries are given up.",
            objects.DeletedEndpoint,
        ),
    ]


def _trial_routes(admin: bool) -> list[Operation[Handler]]:
    """Routes of secrets and samples."""
    return [
        _route(
            admin,
            "POST",
            f"{ONE}/rotate_secret",
            webhooks.rotate_webhook_secret,
            "Rotate a webhook endpoint's secret; the new one is in this answer only.",
            objects.EndpointWithSecret,
            takes=objects.RotateSecret,
            needs_body=False,
        ),
        _route(
            admin,
            "POST",
            f"{ONE}/test",
            webhooks.test_webhook_endpoint,
            "Test a webhook endpoint: send it a sample and return its answer.",
            objects.SampleResult,
            takes=objects.SendSample,
        ),
    ]


def _delivery_routes(admin: bool) -> list[Operation[Handler]]:
    return [
        _route(
            admin,
            "GET",
            f"{ONE}/deliveries",
            webhooks.list_webhook_deliveries,
            "List a webhook endpoint's deliveries, by age.",
            objects.DeliveryPage,
            parameters=(*PAGE, _STATE),
        ),
        _route(
            admin,
            "POST",
            f"{ONE}/deliveries/{{delivery_id}}/redeliver",
            webhooks.redeliver_webhooks,
            "Redeliver one delivery now.",
            objects.Redelivered,
            name="redeliver_webhook",
        ),
        _route(
            admin,
            "POST",
            f"{ONE}/redeliver",
            webhooks.redeliver_webhooks,
            "Redeliver the newest deliveries that were given up.",
            objects.Redelivered,
        ),
    ]


WEBHOOK_ROUTES: list[Operation[Handler]] = [
    *_endpoint_routes(admin=False),
    *_trial_routes(admin=False),
    *_delivery_routes(admin=False),
    Operation(
        "GET /v1/webhook_event_types",
        webhooks.list_webhook_event_types,
        "List the event types that webhooks report.",
        objects.EventTypeList,
        operation_id="webhooks.list_webhook_event_types",
    ),
    *_endpoint_routes(admin=True),
    *_trial_routes(admin=True),
    *_delivery_routes(admin=True),
]
