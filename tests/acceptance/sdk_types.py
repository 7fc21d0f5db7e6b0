"""The SDK's own types as judges: pydantic in validating mode, where the SDK itself only constructs.

What the types do not know must be on a list, so that a misspelt field does not pass as an extension.
"""

from collections.abc import Sequence
from typing import Any

from openai import BaseModel
from openai.types.responses import (
    Response,
    ResponseCompactionItem,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseStreamEvent,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import TypeAdapter

from tests.support.sse import Frame

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_RESPONSE: TypeAdapter[Response] = TypeAdapter(Response)

BEYOND_OPENAI: dict[type, set[str]] = {
    Response: {"store", "presence_penalty", "frequency_penalty", "cancel_reason"},
    ResponseCompactionItem: {"status"},
    ResponseFunctionCallArgumentsDoneEvent: {"name"},
    InputTokensDetails: {"input_tokens_per_turn", "cached_tokens_per_turn"},
    OutputTokensDetails: {
        "tool_output_tokens",
        "output_tokens_per_turn",
        "tool_output_tokens_per_turn",
    },
}
"""Fields of the Open Responses specification, OpenAI's document or vLLM that the SDK's types have not."""


def check_event(json_text: str) -> None:
    """Fails unless this is an event of OpenAI's, with its fields and no others."""
    _check_fields(_EVENT.validate_json(json_text))


def check_goes_on(seen: Sequence[Frame], frames: Sequence[Frame]) -> None:
    """Fails unless a stream, of OpenAI's events without a gap, begins with those seen before."""
    assert [frame.raw for frame in frames[: len(seen)]] == [frame.raw for frame in seen]
    for frame in frames:
        check_event(frame.data)
    assert [frame.number for frame in frames] == list(range(len(frames)))


def check_response(json_text: str | bytes) -> Response:
    """The response, if it is one of OpenAI's."""
    response = _RESPONSE.validate_json(json_text)
    _check_fields(response)
    return response


def _check_fields(value: object) -> None:
    if isinstance(value, BaseModel):
        unknown = set(value.model_extra or ()) - BEYOND_OPENAI.get(type(value), set())
        assert not unknown, f"{type(value).__name__} has no {unknown}"
        for name in type(value).model_fields:
            _check_fields(getattr(value, name))
    elif isinstance(value, list):
        for element in value:
            _check_fields(element)
