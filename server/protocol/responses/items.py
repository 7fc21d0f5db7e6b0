"""Items of conversations, their content parts and JSON; optional fields are absent rather than null."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from server.protocol.files.input_files import file_text
from server.protocol.responses.hosted_items import HOSTED_ID_PREFIXES, HostedItem
from server.protocol.typed import decode_as

Role = Literal["user", "assistant", "system", "developer"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
MAX_TEXT = 10_485_760
"""Characters in one text, the Open Responses specification's limit."""

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Detail = Literal["auto", "low", "high", "original"]


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    bytes: list[int]
    logprob: float


class Logprob(msgspec.Struct, frozen=True):
    """The log probability of an output token and of the most likely alternatives."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopLogprob]


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    text: Text


class InputImage(msgspec.Struct, frozen=True, tag_field="type", tag="input_image"):
    """Stored unchanged; the prompt has a sentence in its place, as models read text only."""

    image_url: str | None = None
    file_id: str | None = None
    detail: Detail = "auto"


class InputFile(msgspec.Struct, frozen=True, tag_field="type", tag="input_file"):
    """A text file, whose text goes into the prompt. `file_data` is a data URL or base64."""

    filename: str | UnsetType = UNSET
    file_data: str | UnsetType = UNSET


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: Text
    annotations: list[dict[str, Any]] = []
    logprobs: list[Logprob] = []


class Refusal(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: Text


ContentPart = InputText | InputImage | InputFile | OutputText | Refusal


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: Text


class SummaryText(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: Text


class Message(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """A message of any role. `phase` is stored and returned unchanged."""

    id: str
    status: ItemStatus
    role: Role
    content: list[ContentPart]
    phase: str | UnsetType = UNSET


class Reasoning(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """A model's reasoning."""

    id: str
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class FunctionCall(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call of a function tool."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class FunctionCallOutput(msgspec.Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """The output of a function call."""

    id: str
    status: ItemStatus
    call_id: str
    output: str | list[ContentPart]


class CustomToolCall(msgspec.Struct, frozen=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool, whose input is free text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class CustomToolCallOutput(msgspec.Struct, frozen=True, tag_field="type", tag="custom_tool_call_output"):
    """The output of a custom tool call."""

    id: str
    status: ItemStatus
    call_id: str
    output: str | list[ContentPart]


class Compaction(msgspec.Struct, frozen=True, tag_field="type", tag="compaction"):
    """A compacted conversation, encrypted: clients send it back but cannot read it."""

    id: str
    status: ItemStatus
    encrypted_content: str


class OtherItem(msgspec.Struct, frozen=True, tag_field="type", tag="holdfast:other"):
    """An item of a type that is not supported, stored and returned with all of its fields."""

    id: str
    status: ItemStatus
    fields: dict[str, Any] = msgspec.field(name="given")
    """All of the item's fields. Stored under the name of earlier releases."""


Item = (
    Message
    | Reasoning
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | Compaction
    | HostedItem
    | OtherItem
)

_ITEM_TYPES: dict[str, type[Item]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(Item) if kind is not OtherItem
}

ID_PREFIXES: dict[type[Item], str] = {
    Message: "msg",
    Reasoning: "rs",
    FunctionCall: "fc",
    FunctionCallOutput: "fco",
    CustomToolCall: "ctc",
    CustomToolCallOutput: "ctco",
    Compaction: "cmp",
    **HOSTED_ID_PREFIXES,
    OtherItem: "item",
}
"""Id prefixes of items, without the underscore."""

IMAGE_UNSEEN = "[An image was given here. This model reads text only and cannot see it.]"


def plain_text(parts: Sequence[ContentPart]) -> str:
    """The text of content parts in the prompt."""
    return "".join(_text_of(part) for part in parts)


def _text_of(part: ContentPart) -> str:
    match part:
        case InputText(text) | OutputText(text):
            return text
        case Refusal(refusal):
            return refusal
        case InputImage():
            return IMAGE_UNSEEN
        case InputFile(filename):
            data = part.file_data if isinstance(part.file_data, str) else ""
            return f"[File {filename or 'without a name'}]\n{file_text(data)}\n[End of file]\n"


def item_type(item: Item) -> str:
    """The item's `type`."""
    return str(item.fields["type"]) if isinstance(item, OtherItem) else str(item.__struct_config__.tag)


def encode_item(item: Item) -> bytes:
    """The item's JSON, as sent to clients and stored."""
    if isinstance(item, OtherItem):
        return msgspec.json.encode({**item.fields, "id": item.id, "status": item.status})
    return msgspec.json.encode(item)


class _TypeField(msgspec.Struct):
    type: str


def decode_item(payload: str | bytes) -> Item:
    """The item of a JSON that `encode_item` returned."""
    kind = _ITEM_TYPES.get(decode_as(payload, _TypeField).type)
    if kind is not None:
        # A client may have sent a hosted item with other fields than the server's own.
        with suppress(*((msgspec.ValidationError,) if kind in HOSTED_ID_PREFIXES else ())):
            item: Item = decode_as(payload, kind)
            return item
    fields: dict[str, Any] = msgspec.json.decode(payload)
    return OtherItem(fields["id"], fields.get("status", "completed"), fields)
