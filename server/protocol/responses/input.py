"""Decodes the `input` of a request into items: messages, reasoning, tool calls and outputs, references.

Foreign ids, unknown fields and unsupported item types are accepted; a wrong value in a known field is a
DecodeFailure with its path. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from server.protocol.decode import convert
from server.protocol.error_object import DecodeFailure
from server.protocol.responses.content_parts import (
    MAX_NESTING,
    TypeReader,
    abbreviated,
    is_nested_deeper,
    read_part,
)
from server.protocol.responses.items import (
    CallStatus,
    Compaction,
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    ItemStatus,
    ListedTool,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpError,
    McpListTools,
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
from server.protocol.responses.request import InputContentParam, ToolParam
from server.protocol.responses.tools import Tool, log_ignored_tools, read_tools

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ItemReference:
    """A stored item, referenced by its id."""

    id: str
    path: str


@dataclass(frozen=True, slots=True)
class AdditionalTools:
    """An input item that adds tools."""

    tools: list[Tool]


@dataclass(frozen=True, slots=True)
class CompactionTrigger:
    """Requests compaction of the items before it into one encrypted item, without generating an answer."""


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
    """A type of which no field is decoded."""


def read_input(value: str | list[dict[str, Any]], name: str = "input") -> list[InputItem]:
    """The items of a request's `input`, or of the parameter `name`, without ids; a string is a user message.

    Raises DecodeFailure with the item's path.
    """
    if isinstance(value, str):
        return [Message("", "completed", "user", [InputText(value)])]
    items = [_read_item(element, f"{name}[{index}]") for index, element in enumerate(value)]
    return [item for item in items if item is not None]


def _read_item(element: dict[str, Any], path: str) -> InputItem | None:
    kind = element.get("type", "message" if "role" in element or "content" in element else None)
    if kind is None and isinstance(element.get("id"), str):
        kind = "item_reference"  # earlier SDKs send references without a type
    if not isinstance(kind, str):
        raise DecodeFailure(
            f"Input items of type {abbreviated(kind)} are not supported.", f"{path}.type", "unsupported_value"
        )
    reader = ITEM_READERS.get(kind)
    if reader is not None:
        item: InputItem | None = reader.read(element, path)
        return item
    if kind not in OPAQUE_ITEM_TYPES:
        raise DecodeFailure(
            f"Input items of type {abbreviated(kind)} are not supported.", f"{path}.type", "unsupported_value"
        )
    if is_nested_deeper(element, MAX_NESTING):
        raise DecodeFailure("The item is nested too deeply.", path, "unsupported_value")
    return OtherItem("", "completed", {**element, "type": kind})


def _read_message(element: dict[str, Any], path: str) -> Item:
    message: _Message = convert(element, _Message, path)
    phase = message.phase if message.phase is not None else UNSET
    return Message("", "completed", message.role, _read_content(message, path), phase)


def _read_content(message: _Message, path: str) -> list[ContentPart]:
    """The content parts of a message; a string becomes one text part."""
    if isinstance(message.content, str):
        if message.role == "assistant":
            return [OutputText(text=message.content)]
        return [InputText(text=message.content)]
    return [read_part(part, f"{path}.content[{index}]") for index, part in enumerate(message.content)]


def _read_reasoning(element: dict[str, Any], path: str) -> Item:
    reasoning: _Reasoning = convert(element, _Reasoning, path)
    return Reasoning(
        "",
        "completed",
        reasoning.summary,
        reasoning.content if reasoning.content is not None else UNSET,
        reasoning.encrypted_content if reasoning.encrypted_content is not None else UNSET,
    )


def _read_function_call(element: dict[str, Any], path: str) -> Item:
    call: _FunctionCall = convert(element, _FunctionCall, path)
    namespace = call.namespace if call.namespace is not None else UNSET
    return FunctionCall("", call.status or "completed", call.call_id, call.name, call.arguments, namespace)


def _read_custom_tool_call(element: dict[str, Any], path: str) -> Item:
    call: _CustomToolCall = convert(element, _CustomToolCall, path)
    namespace = call.namespace if call.namespace is not None else UNSET
    return CustomToolCall("", call.status or "completed", call.call_id, call.name, call.input, namespace)


def _read_output(
    kind: type[FunctionCallOutput] | type[CustomToolCallOutput],
) -> Callable[[dict[str, Any], str], Item]:
    def read(element: dict[str, Any], path: str) -> Item:
        param: _Output = convert(element, _Output, path)
        output: str | list[ContentPart]
        if isinstance(param.output, str):
            output = param.output
        else:
            output = [read_part(part, f"{path}.output[{n}]") for n, part in enumerate(param.output)]
        return kind("", param.status or "completed", param.call_id, output)

    return read


def _read_compaction(element: dict[str, Any], path: str) -> Item:
    compaction: _Compaction = convert(element, _Compaction, path)
    return Compaction("", "completed", compaction.encrypted_content)


def _read_mcp_call(element: dict[str, Any], path: str) -> Item:
    call = _convert_bounded(element, _McpCall, path)
    return McpCall(
        call.id or "",
        call.status or "completed",
        call.server_label,
        call.name,
        call.arguments,
        call.output,
        call.error,
        call.approval_request_id,
    )


def _read_mcp_list_tools(element: dict[str, Any], path: str) -> Item:
    tools = _convert_bounded(element, _McpListTools, path)
    return McpListTools(tools.id or "", tools.server_label, tools.tools, tools.error)


def _read_approval_request(element: dict[str, Any], path: str) -> Item:
    """Keeps the client's id until the item gets its own, because the approval response refers to it."""
    approval = _convert_bounded(element, _McpApprovalRequest, path)
    return McpApprovalRequest(approval.id, approval.server_label, approval.name, approval.arguments)


def _read_approval_response(element: dict[str, Any], path: str) -> Item:
    approval = _convert_bounded(element, _McpApprovalResponse, path)
    return McpApprovalResponse(
        approval.id or "", approval.approval_request_id, approval.approve, approval.reason
    )


def _read_stored_call(element: dict[str, Any], path: str) -> Item:
    """A call in the server's own form; any other form becomes an `OtherItem`, stored unchanged."""
    if is_nested_deeper(element, MAX_NESTING):
        raise DecodeFailure("The item is nested too deeply.", path, "unsupported_value")
    value = element.get("status")
    status: Any = value if value in ("incomplete", "failed") else "completed"
    return decode_item(encode_item(OtherItem("", status, element)))


def _convert_bounded(element: dict[str, Any], kind: type[T], path: str) -> T:
    """The element as a struct; refuses values nested deeper than `MAX_NESTING`."""
    if is_nested_deeper(element, MAX_NESTING):
        raise DecodeFailure("The item is nested too deeply.", path, "unsupported_value")
    struct: T = convert(element, kind, path)
    return struct


def _read_reference(element: dict[str, Any], path: str) -> ItemReference:
    reference: _Reference = convert(element, _Reference, path)
    return ItemReference(reference.id, path)


def _read_additional_tools(element: dict[str, Any], path: str) -> AdditionalTools:
    param: _AdditionalTools = convert(element, _AdditionalTools, path)
    tools = read_tools(param.tools, f"{path}.tools")
    log_ignored_tools(param.tools)
    return AdditionalTools(tools)


def _read_trigger(_element: dict[str, Any], _path: str) -> CompactionTrigger:
    return CompactionTrigger()


def _ignore(_element: dict[str, Any], _path: str) -> None:
    """An item that only OpenAI's servers use."""


STORED_FORM_TYPES = frozenset({"code_interpreter_call", "web_search_call"})
"""Hosted calls, decoded if they have the server's own form; others of these types are stored unchanged."""
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
"""By `type`, which is optional for messages."""

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
"""Items of tools that only OpenAI's servers execute: stored, but not part of the prompt."""
