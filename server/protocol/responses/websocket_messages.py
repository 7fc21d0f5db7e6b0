"""What goes over a WebSocket beside the stream events: what clients ask for, and what no stream tells."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.protocol.errors import ErrorDetail
from server.protocol.responses.request import CreateResponse


class CreateMessage(CreateResponse, frozen=True, kw_only=True, tag_field="type", tag="response.create"):
    """The body of POST /v1/responses as a message."""

    generate: bool | None = None
    """False prepares a response to go on from, without an answer."""
    stream_id: Annotated[str, Meta(max_length=256)] | None = None
    """The client's name for this response's stream; every event repeats it."""


class SteerMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.steer"):
    """More input for the response that runs."""

    previous_response_id: str
    input: Any


ClientMessage = CreateMessage | SteerMessage


class SocketError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """What went wrong with a message; the connection stays usable."""

    status: int
    error: ErrorDetail
    stream_id: str | UnsetType = UNSET


class SteerDetail(msgspec.Struct, frozen=True):
    code: Literal["steering_not_supported"]
    message: str
    type: Literal["invalid_request_error"] = "invalid_request_error"


class Steer(msgspec.Struct, frozen=True):
    previous_response_id: str
    input: Any


class SteerFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.steer.failed"):
    """The client has its input back."""

    sequence_number: int = 0
    error: SteerDetail
    steer: Steer
