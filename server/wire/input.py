"""The `input` of a request as items: messages, typed or easy, calls and outputs, whatever clients replay.

Foreign ids, unknown fields and item types without a meaning here are accepted; what is known and wrong is
refused with its path. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from server.wire.decode import convert
from server.wire.errors import DecodeFailure
from server.wire.files import FileError, file_text
from server.wire.items import (
    Compaction,
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    Detail,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    ItemStatus,
    McpCall,
    Message,
    OtherItem,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    Role,
    SummaryText,
    Text,
)
from server.wire.tools import Tool, read_tools

MAX_NESTING = 32
"""Levels of a part of an item whose shape is free: what is decoded must be encoded again, at whatever depth
of the stack."""


@dataclass(frozen=True, slots=True)
class ItemReference:
    """An item that the server has already; the client names it in place of sending it."""

    id: str
    path: str


@dataclass(frozen=True, slots=True)
class AdditionalTools:
    """Tools that come among the items."""

    tools: list[Tool]


Given = Item | ItemReference | AdditionalTools


class _Message(msgspec.Struct, kw_only=True):
    role: Role
    content: Text | list[dict[str, Any]]
    phase: str | None = None


class _Reasoning(msgspec.Struct, kw_only=True):
    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class _Call(msgspec.Struct, kw_only=True):
    call_id: str
    name: str
    arguments: Text = ""
    input: Text = ""
    namespace: str | None = None
    status: ItemStatus | None = None


class _Output(msgspec.Struct, kw_only=True):
    call_id: str
    output: Text | list[dict[str, Any]]
    status: ItemStatus | None = None


class _Compaction(msgspec.Struct, kw_only=True):
    encrypted_content: Text


class _Reference(msgspec.Struct, kw_only=True):
    id: str


class _Tools(msgspec.Struct, kw_only=True):
    tools: list[dict[str, Any]]


class _OutputTextGiven(msgspec.Struct, kw_only=True):
    text: Text
    annotations: list[dict[str, Any]] | None = None


class _Image(msgspec.Struct, kw_only=True):
    image_url: str | None = None
    file_id: str | None = None
    detail: Detail | None = None


class _File(msgspec.Struct, kw_only=True):
    filename: str | None = None
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None


def read_input(value: str | list[dict[str, Any]], name: str = "input") -> list[Given]:
    """The `input` parameter, or one of that name; a string is one user message. Items have no ids yet.

    Raises DecodeFailure with the item's path for anything that this server cannot put before a model.
    """
    if isinstance(value, str):
        return [Message("", "completed", "user", [InputText(value)])]
    given = [_read_item(element, f"{name}[{index}]") for index, element in enumerate(value)]
    return [item for item in given if item is not None]


def _read_item(element: dict[str, Any], path: str) -> Given | None:
    kind = element.get("type", "message" if "role" in element or "content" in element else None)
    if kind is None and isinstance(element.get("id"), str):
        kind = "item_reference"  # the form of older clients
    if not isinstance(kind, str):
        raise DecodeFailure(
            f"Input items of type {_shown(kind)} are not supported.", f"{path}.type", "unsupported_value"
        )
    reader = _READERS.get(kind)
    if reader is not None:
        return reader(element, path)
    if kind not in _WITHOUT_MEANING:
        raise DecodeFailure(
            f"Input items of type {_shown(kind)} are not supported.", f"{path}.type", "unsupported_value"
        )
    if _is_deeper(element, MAX_NESTING):
        raise DecodeFailure("The item is nested too deeply.", path, "unsupported_value")
    return OtherItem("", "completed", {**element, "type": kind})


def _read_message(element: dict[str, Any], path: str) -> Item:
    given: _Message = convert(element, _Message, path)
    phase = given.phase if given.phase is not None else UNSET
    return Message("", "completed", given.role, _read_content(given, path), phase)


def _read_content(message: _Message, path: str) -> list[ContentPart]:
    """The parts of a message; a string becomes the one part that the role implies."""
    if isinstance(message.content, str):
        if message.role == "assistant":
            return [OutputText(text=message.content)]
        return [InputText(text=message.content)]
    return [_read_part(part, f"{path}.content[{index}]") for index, part in enumerate(message.content)]


def _read_reasoning(element: dict[str, Any], path: str) -> Item:
    given: _Reasoning = convert(element, _Reasoning, path)
    return Reasoning(
        "",
        "completed",
        given.summary,
        given.content if given.content is not None else UNSET,
        given.encrypted_content if given.encrypted_content is not None else UNSET,
    )


def _read_function_call(element: dict[str, Any], path: str) -> Item:
    given: _Call = convert(element, _Call, path)
    namespace = given.namespace if given.namespace is not None else UNSET
    return FunctionCall(
        "", given.status or "completed", given.call_id, given.name, given.arguments, namespace
    )


def _read_custom_call(element: dict[str, Any], path: str) -> Item:
    given: _Call = convert(element, _Call, path)
    namespace = given.namespace if given.namespace is not None else UNSET
    return CustomToolCall("", given.status or "completed", given.call_id, given.name, given.input, namespace)


def _read_output(
    kind: type[FunctionCallOutput] | type[CustomToolCallOutput],
) -> Callable[[dict[str, Any], str], Item]:
    def read(element: dict[str, Any], path: str) -> Item:
        given: _Output = convert(element, _Output, path)
        output: str | list[ContentPart]
        if isinstance(given.output, str):
            output = given.output
        else:
            output = [_read_part(part, f"{path}.output[{n}]") for n, part in enumerate(given.output)]
        return kind("", given.status or "completed", given.call_id, output)

    return read


def _read_compaction(element: dict[str, Any], path: str) -> Item:
    given: _Compaction = convert(element, _Compaction, path)
    return Compaction("", "completed", given.encrypted_content)


def _read_mcp_call(element: dict[str, Any], path: str) -> Item:
    if _is_deeper(element, MAX_NESTING):
        raise DecodeFailure("The item is nested too deeply.", path, "unsupported_value")
    given: McpCall = convert({"status": "completed", **element, "id": ""}, McpCall, path)
    return given


def _read_reference(element: dict[str, Any], path: str) -> ItemReference:
    reference: _Reference = convert(element, _Reference, path)
    return ItemReference(reference.id, path)


def _read_additional_tools(element: dict[str, Any], path: str) -> AdditionalTools:
    given: _Tools = convert(element, _Tools, path)
    return AdditionalTools(read_tools(given.tools, f"{path}.tools"))


def _ignore(_element: dict[str, Any], _path: str) -> None:
    """Says something to OpenAI's servers alone."""


_READERS: dict[str, Callable[[dict[str, Any], str], Given | None]] = {
    "message": _read_message,
    "reasoning": _read_reasoning,
    "function_call": _read_function_call,
    "function_call_output": _read_output(FunctionCallOutput),
    "custom_tool_call": _read_custom_call,
    "custom_tool_call_output": _read_output(CustomToolCallOutput),
    "compaction": _read_compaction,
    "mcp_call": _read_mcp_call,
    "item_reference": _read_reference,
    "additional_tools": _read_additional_tools,
    "configuration_update": _ignore,
}


_WITHOUT_MEANING = frozenset(
    {
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""Items of tools that OpenAI's servers carry out: kept in the history, not put before the model."""


def _read_part(part: dict[str, Any], path: str) -> ContentPart:
    match part.get("type"):
        case "input_text" | "text" | "summary_text" | "reasoning_text":
            text: InputText = convert({**part, "type": "input_text"}, InputText, path)
            return text
        case "output_text":
            return _read_output_text(part, path)
        case "refusal":
            refusal: Refusal = convert(part, Refusal, path)
            return refusal
        case "input_image" | "computer_screenshot":
            image: _Image = convert(part, _Image, path)
            return InputImage(image.image_url, image.file_id, image.detail or "auto")
        case "input_file":
            return _read_file(part, path)
    raise DecodeFailure(
        f"Content of type {_shown(part.get('type'))} is not supported; this model reads text.",
        f"{path}.type",
        "unsupported_value",
    )


def _read_output_text(part: dict[str, Any], path: str) -> OutputText:
    given: _OutputTextGiven = convert(part, _OutputTextGiven, path)
    annotations = given.annotations or []
    if _is_deeper(annotations, MAX_NESTING):
        raise DecodeFailure("Annotations are nested too deeply.", f"{path}.annotations", "unsupported_value")
    return OutputText(given.text, annotations)


def _read_file(part: dict[str, Any], path: str) -> InputFile:
    given: _File = convert(part, _File, path)
    if given.file_data is None:
        where = "file_url" if given.file_url is not None else "file_id"
        raise DecodeFailure(
            "Files are read from file_data only: send the file's content as a data URL.",
            f"{path}.{where}",
            "unsupported_value",
        )
    try:
        file_text(given.file_data)
    except FileError as error:
        raise DecodeFailure(str(error), f"{path}.file_data", "unsupported_value") from error
    return InputFile(given.filename if given.filename is not None else UNSET, given.file_data)


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
