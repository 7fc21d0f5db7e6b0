"""Builds the Response of a live or stored response, of which only the last event has all fields. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from server.protocol import ids
from server.protocol.decode import decode_as
from server.protocol.responses.items import Item
from server.protocol.responses.response import (
    Echo,
    Ending,
    IncompleteDetails,
    PromptLogprobs,
    Response,
    ResponseError,
    Status,
    Usage,
    make_usage,
)

ONLY_IN_LAST_EVENT = (
    "input_messages",
    "output_messages",
    "prompt_logprobs",
    "stop_reason",
    "cumulative_logprob",
)


def build_response(
    response: UUID,
    created_at: datetime,
    echo: Echo,
    status: Status,
    output: Sequence[Item] | Sequence[msgspec.Raw],
    ending: Ending | None = None,
) -> Response:
    """The response as clients get it. Pass `ending` for one that has ended."""
    completed = ending is not None and ending.status == "completed"
    return Response(
        **msgspec.structs.asdict(echo),
        id=ids.response_id(response),
        created_at=int(created_at.timestamp()),
        status=status,
        completed_at=int(ending.finished_at.timestamp()) if ending and completed else None,
        error=ResponseError(ending.error_code, ending.error_message or "")
        if ending and ending.error_code is not None
        else None,
        incomplete_details=IncompleteDetails(ending.incomplete_reason)
        if ending and ending.incomplete_reason
        else None,
        output=list(output),
        usage=_usage(ending),
        cancel_reason=(ending.cancel_reason if ending else None) or UNSET,
    )


def _usage(ending: Ending | None) -> Usage | None:
    if ending is None:
        return None
    turns = ending.turns if len(ending.turns) > 1 else None
    return make_usage(
        ending.input_tokens, ending.cached_tokens, ending.output_tokens, ending.reasoning_tokens, turns
    )


class _LastResponse(msgspec.Struct):
    usage: Usage | None = None
    input_messages: list[Any] | msgspec.UnsetType = msgspec.UNSET
    output_messages: list[Any] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[PromptLogprobs | None] | msgspec.UnsetType = msgspec.UNSET
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET


class _LastEvent(msgspec.Struct):
    response: _LastResponse


def wants_token_dump(request: str | None) -> bool:
    """Whether a stored request has `enable_response_messages`; one in a text would have escaped quotes."""
    return request is not None and '"enable_response_messages":true' in request


def may_have_stop_reason(request: str | None) -> bool:
    """Whether a stored request has stop strings or tokens, so that its last event has a `stop_reason`."""
    return request is not None and ('"stop":' in request or '"stop_token_ids":' in request)


def restore_token_dump(response: Response, last_event: str) -> Response:
    """An ended response with the fields that only its last event has."""
    last = decode_as(last_event, _LastEvent).response
    return msgspec.structs.replace(response, **msgspec.structs.asdict(last))
