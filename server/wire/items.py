"""Items, which conversations are made of: OpenAI's fields, absent rather than null where clients differ."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from server.wire.decode import convert
from server.wire.errors import DecodeFailure

Role = Literal["user", "assistant", "system", "developer"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
MAX_TEXT = 10_485_760
"""Characters in one text, the Open Responses specification's limit."""

MAX_NESTING = 32
"""Levels of an annotation, the one part of an item whose shape is free: what is decoded must be encoded
again, at whatever depth of the stack."""

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    text: Text


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: Text
    annotations: list[dict[str, Any]] = []


class Refusal(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: Text


ContentPart = InputText | OutputText | Refusal


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: Text


class SummaryText(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: Text


class Message(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """A message of either side. `phase` is a client's or model's label, replayed as given."""

    id: str
    status: ItemStatus
    role: Role
    content: list[ContentPart]
    phase: str | UnsetType = UNSET


class Reasoning(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """What a model thought before it answered."""

    id: str
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class FunctionCall(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A model's wish that a function be called."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class FunctionCallOutput(msgspec.Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """What the function gave, from whoever called it."""

    id: str
    status: ItemStatus
    call_id: str
    output: str | list[ContentPart]


class CustomToolCall(msgspec.Struct, frozen=True, tag_field="type", tag="custom_tool_call"):
    """A call of a tool that takes free text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class CustomToolCallOutput(msgspec.Struct, frozen=True, tag_field="type", tag="custom_tool_call_output"):
    id: str
    status: ItemStatus
    call_id: str
    output: str | list[ContentPart]


Item = Message | Reasoning | FunctionCall | FunctionCallOutput | CustomToolCall | CustomToolCallOutput


class MessageInput(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a client writes it: the typed form, or the easy form with a string for content."""

    role: Role
    content: Text | list[dict[str, Any]]
    phase: str | None = None


class ReasoningInput(msgspec.Struct, frozen=True, kw_only=True):
    """A reasoning item that a client plays back; any subset of its parts may be there."""

    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


PARTS: dict[str, type[ContentPart]] = {
    "input_text": InputText,
    "output_text": OutputText,
    "refusal": Refusal,
}


def read_input(value: str | list[dict[str, Any]]) -> list[MessageInput | ReasoningInput]:
    """The `input` parameter as typed items; a string is one user message.

    Raises DecodeFailure with the item's path for anything that this server cannot put before a model.
    """
    if isinstance(value, str):
        return [MessageInput(role="user", content=value)]
    return [_read_item(element, f"input[{index}]") for index, element in enumerate(value)]


def _read_item(element: dict[str, Any], path: str) -> MessageInput | ReasoningInput:
    match element.get("type", "message"):
        case "message":
            message: MessageInput = convert(element, MessageInput, path)
            read_content(message, path)
            return message
        case "reasoning":
            reasoning: ReasoningInput = convert(element, ReasoningInput, path)
            return reasoning
        case other:
            raise DecodeFailure(
                f"Input items of type {_shown(other)} are not supported; use messages.",
                f"{path}.type",
                "unsupported_value",
            )


def read_content(message: MessageInput, path: str = "input") -> list[ContentPart]:
    """The parts of a message; a string becomes the one part that the role implies."""
    if isinstance(message.content, str):
        if message.role == "assistant":
            return [OutputText(text=message.content)]
        return [InputText(text=message.content)]
    return [_read_part(part, f"{path}.content[{index}]") for index, part in enumerate(message.content)]


def _read_part(part: dict[str, Any], path: str) -> ContentPart:
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in PARTS:
        raise DecodeFailure(
            f"Content of type {_shown(kind)} is not supported; this model reads text.",
            f"{path}.type",
            "unsupported_value",
        )
    converted: ContentPart = convert(part, PARTS[kind], path)
    if isinstance(converted, OutputText) and _is_deeper(converted.annotations, MAX_NESTING):
        raise DecodeFailure("Annotations are nested too deeply.", f"{path}.annotations", "unsupported_value")
    return converted


def _is_deeper(value: object, levels: int) -> bool:
    match value:
        case list():
            inner = value
        case dict():
            inner = list(value.values())
        case _:
            return False
    return levels == 0 or any(_is_deeper(element, levels - 1) for element in inner)


def _shown(value: object) -> str:
    """What a caller sent, short enough to be said back."""
    if not isinstance(value, str):
        return "null" if value is None else type(value).__name__
    return repr(value[:100])


def plain_text(parts: list[ContentPart]) -> str:
    """The text of a message as a model reads it."""
    return "".join(part.refusal if isinstance(part, Refusal) else part.text for part in parts)
