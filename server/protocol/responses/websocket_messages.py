"""Messages of the Responses WebSocket beside the stream events: client messages and errors."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.protocol.errors import ErrorDetail
from server.protocol.responses.request import CreateResponse


class CreateMessage(CreateResponse, frozen=True, kw_only=True, tag_field="type", tag="response.create"):
    """The body of POST /v1/responses as a message."""

    generate: bool | None = None
    """False prefills the prompt without generating: a response for `previous_response_id`."""
    stream_id: Annotated[str, Meta(max_length=256)] | None = None
    """The client's id for this response's stream, repeated in every event."""


class SteerMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.steer"):
    """Additional input for a response in progress."""

    previous_response_id: str
    input: Any


ClientMessage = CreateMessage | SteerMessage


class SocketError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """An error of one message; the connection stays open."""

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
    """The refused input, returned to the client."""

    sequence_number: int = 0
    error: SteerDetail
    steer: Steer
