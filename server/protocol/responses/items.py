"""Items, which conversations are made of: OpenAI's fields, absent rather than null where clients differ."""

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
    """How likely a token of the text was, and the likeliest in its place."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopLogprob]


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    text: Text


class InputImage(msgspec.Struct, frozen=True, tag_field="type", tag="input_image"):
    """Kept as it was given; a model that reads text alone is told that there was one."""

    image_url: str | None = None
    file_id: str | None = None
    detail: Detail = "auto"


class InputFile(msgspec.Struct, frozen=True, tag_field="type", tag="input_file"):
    """A text file, read into the prompt. `file_data` is a data URL or base64."""

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
    """What a custom tool gave."""

    id: str
    status: ItemStatus
    call_id: str
    output: str | list[ContentPart]


class Compaction(msgspec.Struct, frozen=True, tag_field="type", tag="compaction"):
    """What a longer conversation was shortened to, sealed: the client carries it and cannot read it."""

    id: str
    status: ItemStatus
    encrypted_content: str


class OtherItem(msgspec.Struct, frozen=True, tag_field="type", tag="holdfast:other"):
    """An item of a type that has no meaning here, kept for the client that gave it."""

    id: str
    status: ItemStatus
    given: dict[str, Any]
    """All of its fields."""


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
"""What the ids of items begin with."""

IMAGE_UNSEEN = "[An image was given here. This model reads text only and cannot see it.]"


def plain_text(parts: Sequence[ContentPart]) -> str:
    """The text of a message as a model reads it."""
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
    """OpenAI's name of the item's type."""
    return str(item.given["type"]) if isinstance(item, OtherItem) else str(item.__struct_config__.tag)


def encode_item(item: Item) -> bytes:
    """The item's JSON, as clients see it and the store keeps it."""
    if isinstance(item, OtherItem):
        return msgspec.json.encode({**item.given, "id": item.id, "status": item.status})
    return msgspec.json.encode(item)


class _TypeField(msgspec.Struct):
    type: str


def decode_item(payload: str | bytes) -> Item:
    """An item from what `encode_item` made of it."""
    kind = _ITEM_TYPES.get(decode_as(payload, _TypeField).type)
    if kind is not None:
        # A client may have given one of the server's own kind that is not as ours are.
        with suppress(*((msgspec.ValidationError,) if kind in HOSTED_ID_PREFIXES else ())):
            item: Item = decode_as(payload, kind)
            return item
    given: dict[str, Any] = msgspec.json.decode(payload)
    return OtherItem(given["id"], given.get("status", "completed"), given)
