"""Webhook endpoints and deliveries as objects of the API, and requests about them. Times are Unix seconds.

Endpoints, their secrets and samples are OpenAI's; `tenant`, `all_responses`, `disabled_reason`, `enabled` and
deliveries are this server's own.
"""

from typing import Annotated, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from server.protocol.administration.objects import Identified
from server.protocol.administration.requests import Name, TenantName
from server.protocol.list_pages import page_type

MAX_URL = 2048
EventType = Literal["response.completed", "response.failed", "response.cancelled", "response.incomplete"]
EVENT_TYPES: tuple[EventType, ...] = get_args(EventType)
EventTypes = Annotated[list[EventType], Meta(min_length=1, max_length=4)]
Url = Annotated[str, Meta(min_length=1, max_length=MAX_URL)]
State = Literal["pending", "delivered", "given_up"]


class UpdateEndpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/webhook_endpoints/{webhook_endpoint_id}; what is not given stays."""

    name: Annotated[Name | UnsetType, Meta(description="Name, a note for yourself.")] = UNSET
    url: Annotated[Url | UnsetType, Meta(description="Address to which webhooks are sent.")] = UNSET
    event_types: Annotated[EventTypes | UnsetType, Meta(description="Events that are sent.")] = UNSET
    all_responses: Annotated[
        bool | UnsetType,
        Meta(description="Report every stored response, and not background responses alone."),
    ] = UNSET
    enabled: Annotated[
        bool | UnsetType, Meta(description="Enable an endpoint that was disabled, or disable it.")
    ] = UNSET


class CreateEndpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/webhook_endpoints."""

    name: Annotated[Name, Meta(description="Name, a note for yourself.")]
    url: Annotated[Url, Meta(description="Address to which webhooks are sent.")]
    event_types: Annotated[EventTypes, Meta(description="Events that are sent.")]
    all_responses: Annotated[
        bool, Meta(description="Report every stored response, and not background responses alone.")
    ] = False


class CreateTenantEndpoint(CreateEndpoint, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/v1/webhook_endpoints."""

    tenant: Annotated[TenantName, Meta(description="Tenant that owns it.")]


class RotateSecret(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret."""

    keep_old_secret_active_for_24_hours: bool = False


class SendSample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/webhook_endpoints/{webhook_endpoint_id}/test."""

    event_type: EventType


class Endpoint(Identified, frozen=True, kw_only=True):
    """A webhook endpoint, without its secret."""

    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    tenant: str
    name: str
    url: str
    event_types: list[EventType]
    all_responses: bool
    signing_secret_hint: None = None
    created_at: int
    updated_at: int
    disabled_at: int | None
    disabled_reason: str | None


class EndpointWithSecret(Endpoint, frozen=True, kw_only=True):
    """A new endpoint, or one with a new secret; the secret is in no other answer."""

    signing_secret: str


class DeletedEndpoint(Struct, frozen=True):
    """The result of DELETE /v1/webhook_endpoints/{webhook_endpoint_id}."""

    id: str
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    deleted: bool = True


class SampleResult(Struct, frozen=True, kw_only=True):
    """A receiver's answer to a sample."""

    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: EventType
    status_code: int
    success: Literal[True] = True
    """True once the receiver has answered; `status_code` is its status."""


class EventTypeList(Struct, frozen=True, kw_only=True):
    """The event types that this server sends."""

    object: Literal["list"] = "list"
    data: list[EventType]


class Delivery(Identified, frozen=True, kw_only=True):
    """An event on its way to an endpoint, or there."""

    object: Literal["webhook_delivery"] = "webhook_delivery"
    event_id: str
    webhook_endpoint_id: str
    response_id: str
    type: EventType
    state: State
    created_at: int
    """The end of the response."""
    attempts: int
    next_attempt_at: int | None
    last_attempt_at: int | None
    last_status: int | None
    """The HTTP status of the last answer; null without one."""
    last_error: str | None
    """Why the last attempt failed."""
    delivered_at: int | None
    given_up_at: int | None


class Redelivered(Struct, frozen=True, kw_only=True):
    """The number of deliveries that are attempted again."""

    object: Literal["webhook_endpoint.redelivered"] = "webhook_endpoint.redelivered"
    webhook_endpoint_id: str
    deliveries: int


EndpointPage = page_type("EndpointPage", Endpoint, "webhook endpoints")
DeliveryPage = page_type("DeliveryPage", Delivery, "deliveries")
