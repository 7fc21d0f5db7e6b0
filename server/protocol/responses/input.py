"""The `input` of a request as items: messages, typed or easy, calls and outputs, whatever clients replay.

Foreign ids, unknown fields and item types without a meaning here are accepted; what is known and wrong is
refused with its path. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from server.protocol.decode import convert
from server.protocol.errors import DecodeFailure
from server.protocol.openapi_types import InputContentParam, ToolParam
from server.protocol.responses.hosted_items import (
    CallStatus,
    ListedTool,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpError,
    McpListTools,
)
from server.protocol.responses.items import (
    Compaction,
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    ItemStatus,
    Message,
    OtherItem,
    OutputText,
    Reasoning,
    ReasoningText,
    Role,
    SummaryText,
    Text,
    decode_item,
    encode_item,
)
from server.protocol.responses.parts import MAX_NESTING, TypeReader, abbreviated, is_nested_deeper, read_part
from server.protocol.responses.tools import Tool, log_ignored_tools, read_tools

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ItemReference:
    """An item that the server has already; the client names it in place of sending it."""

    id: str
    path: str


@dataclass(frozen=True, slots=True)
class AdditionalTools:
    """Tools that come among the items."""

    tools: list[Tool]


@dataclass(frozen=True, slots=True)
class CompactionTrigger:
    """The wish that everything before it become one sealed item, and nothing else be generated."""


InputItem = Item | ItemReference | AdditionalTools | CompactionTrigger


class _Message(msgspec.Struct, kw_only=True):
    role: Role
    content: Text | list[InputContentParam]
    phase: str | None = None


class _Reasoning(msgspec.Struct, kw_only=True):
    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class _Call(msgspec.Struct, kw_only=True):
    call_id: str
    name: str
    namespace: str | None = None
    status: ItemStatus | None = None


class _FunctionCall(_Call, kw_only=True):
    arguments: Text = ""


class _CustomToolCall(_Call, kw_only=True):
    input: Text = ""


class _Output(msgspec.Struct, kw_only=True):
    call_id: str
    output: Text | list[InputContentParam]
    status: ItemStatus | None = None


class _McpListTools(msgspec.Struct, kw_only=True):
    id: str | None = None
    server_label: str
    tools: list[ListedTool] = []
    error: str | None = None


class _McpApprovalRequest(msgspec.Struct, kw_only=True):
    id: str
    server_label: str
    name: str
    arguments: Text


class _McpApprovalResponse(msgspec.Struct, kw_only=True):
    id: str | None = None
    approval_request_id: str
    approve: bool
    reason: str | None = None


class _McpCall(msgspec.Struct, kw_only=True):
    id: str | None = None
    server_label: str
    name: str
    arguments: Text
    status: CallStatus | None = None
    output: Text | None = None
    error: McpError | str | None = None
    approval_request_id: str | None = None


class _Compaction(msgspec.Struct, kw_only=True):
    encrypted_content: Text


class _Reference(msgspec.Struct, kw_only=True):
    id: str


class _AdditionalTools(msgspec.Struct, kw_only=True):
    tools: list[ToolParam]


class _NoFields(msgspec.Struct, kw_only=True):
    """Of which no field is read."""


def read_input(value: str | list[dict[str, Any]], name: str = "input") -> list[InputItem]:
    """The `input` parameter, or one of that name; a string is one user message. Items have no ids yet.

    Raises DecodeFailure with the item's path for anything that this server cannot put before a model.
    """
    if isinstance(value, str):
        return [Message("", "completed", "user", [InputText(value)])]
    given = [_read_item(element, f"{name}[{index}]") for index, element in enumerate(value)]
    return [item for item in given if item is not None]


def _read_item(element: dict[str, Any], path: str) -> InputItem | None:
    kind = element.get("type", "message" if "role" in element or "content" in element else None)
    if kind is None and isinstance(element.get("id"), str):
        kind = "item_reference"  # the form of older clients
    if not isinstance(kind, str):
        raise DecodeFailure(
            f"Input items of type {abbreviated(kind)} are not supported.", f"{path}.type", "unsupported_value"
        )
    reader = ITEM_READERS.get(kind)
    if reader is not None:
        given: InputItem | None = reader.read(element, path)
        return given
    if kind not in OPAQUE_ITEM_TYPES:
        raise DecodeFailure(
            f"Input items of type {abbreviated(kind)} are not supported.", f"{path}.type", "unsupported_value"
        )
    if is_nested_deeper(element, MAX_NESTING):
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
    return [read_part(part, f"{path}.content[{index}]") for index, part in enumerate(message.content)]


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
    given: _FunctionCall = convert(element, _FunctionCall, path)
    namespace = given.namespace if given.namespace is not None else UNSET
    return FunctionCall(
        "", given.status or "completed", given.call_id, given.name, given.arguments, namespace
    )


def _read_custom_tool_call(element: dict[str, Any], path: str) -> Item:
    given: _CustomToolCall = convert(element, _CustomToolCall, path)
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
            output = [read_part(part, f"{path}.output[{n}]") for n, part in enumerate(given.output)]
        return kind("", given.status or "completed", given.call_id, output)

    return read


def _read_compaction(element: dict[str, Any], path: str) -> Item:
    given: _Compaction = convert(element, _Compaction, path)
    return Compaction("", "completed", given.encrypted_content)


def _read_mcp_call(element: dict[str, Any], path: str) -> Item:
    given = _convert_bounded(element, _McpCall, path)
    return McpCall(
        given.id or "",
        given.status or "completed",
        given.server_label,
        given.name,
        given.arguments,
        given.output,
        given.error,
        given.approval_request_id,
    )


def _read_mcp_list_tools(element: dict[str, Any], path: str) -> Item:
    given = _convert_bounded(element, _McpListTools, path)
    return McpListTools(given.id or "", given.server_label, given.tools, given.error)


def _read_approval_request(element: dict[str, Any], path: str) -> Item:
    """Its id stays until it has one of its own here: the answer refers to it."""
    given = _convert_bounded(element, _McpApprovalRequest, path)
    return McpApprovalRequest(given.id, given.server_label, given.name, given.arguments)


def _read_approval_response(element: dict[str, Any], path: str) -> Item:
    given = _convert_bounded(element, _McpApprovalResponse, path)
    return McpApprovalResponse(given.id or "", given.approval_request_id, given.approve, given.reason)


def _read_stored_call(element: dict[str, Any], path: str) -> Item:
    """A call that only its stored form is read of: what is not ours means nothing, and is kept."""
    if is_nested_deeper(element, MAX_NESTING):
        raise DecodeFailure("The item is nested too deeply.", path, "unsupported_value")
    said = element.get("status")
    status: Any = said if said in ("incomplete", "failed") else "completed"
    return decode_item(encode_item(OtherItem("", status, element)))


def _convert_bounded(element: dict[str, Any], kind: type[T], path: str) -> T:
    """The element as such a struct, of which no part is nested too deeply."""
    if is_nested_deeper(element, MAX_NESTING):
        raise DecodeFailure("The item is nested too deeply.", path, "unsupported_value")
    given: T = convert(element, kind, path)
    return given


def _read_reference(element: dict[str, Any], path: str) -> ItemReference:
    reference: _Reference = convert(element, _Reference, path)
    return ItemReference(reference.id, path)


def _read_additional_tools(element: dict[str, Any], path: str) -> AdditionalTools:
    given: _AdditionalTools = convert(element, _AdditionalTools, path)
    tools = read_tools(given.tools, f"{path}.tools")
    log_ignored_tools(given.tools)
    return AdditionalTools(tools)


def _read_trigger(_element: dict[str, Any], _path: str) -> CompactionTrigger:
    return CompactionTrigger()


def _ignore(_element: dict[str, Any], _path: str) -> None:
    """Says something to OpenAI's servers alone."""


STORED_FORM_TYPES = frozenset({"code_interpreter_call", "web_search_call"})
"""Items of ours, as far as they are as ours are; others of these types are kept as they came."""
ITEM_READERS: dict[str, TypeReader] = {
    "message": TypeReader(_Message, _read_message),
    "reasoning": TypeReader(_Reasoning, _read_reasoning),
    "function_call": TypeReader(_FunctionCall, _read_function_call),
    "function_call_output": TypeReader(_Output, _read_output(FunctionCallOutput)),
    "custom_tool_call": TypeReader(_CustomToolCall, _read_custom_tool_call),
    "custom_tool_call_output": TypeReader(_Output, _read_output(CustomToolCallOutput)),
    "compaction": TypeReader(_Compaction, _read_compaction),
    "mcp_list_tools": TypeReader(_McpListTools, _read_mcp_list_tools),
    "mcp_call": TypeReader(_McpCall, _read_mcp_call),
    "compaction_trigger": TypeReader(_NoFields, _read_trigger),
    **dict.fromkeys(STORED_FORM_TYPES, TypeReader(_NoFields, _read_stored_call)),
    "mcp_approval_request": TypeReader(_McpApprovalRequest, _read_approval_request),
    "mcp_approval_response": TypeReader(_McpApprovalResponse, _read_approval_response),
    "item_reference": TypeReader(_Reference, _read_reference),
    "additional_tools": TypeReader(_AdditionalTools, _read_additional_tools),
    "configuration_update": TypeReader(_NoFields, _ignore),
}
"""By `type`, which a message may leave out."""

OPAQUE_ITEM_TYPES = frozenset(
    {
        "apply_patch_call",
        "apply_patch_call_output",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
    }
)
"""Items of tools that OpenAI's servers carry out: kept in the history, not put before the model."""
