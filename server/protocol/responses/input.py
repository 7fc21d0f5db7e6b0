"""Decodes the `input` of a request into items: messages, calls, outputs, tools, settings, references.

Foreign ids, unknown fields and unsupported item types are accepted; a wrong value in a known field is a
DecodeFailure with its path. Pure.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.protocol import ids
from server.protocol.decode import convert
from server.protocol.error_object import DecodeFailure
from server.protocol.responses.content_parts import (
    TypeReader,
    abbreviated,
    read_parts,
    refuse_deep,
)
from server.protocol.responses.items import (
    ID_PREFIXES,
    MAX_TEXT,
    Caller,
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
from server.protocol.responses.request import InputContentParam
from server.protocol.responses.settings_input import (
    AdditionalToolsParam,
    ConfigurationUpdateParam,
    read_additional_tools,
    read_configuration_update,
)

T = TypeVar("T")
_SENT_PREFIXES: dict[type[Item], str] = {
    **{kind: prefix for kind, prefix in ID_PREFIXES.items() if not prefix.startswith("mcp")},
    FunctionCallOutput: ID_PREFIXES[FunctionCall],
    CustomToolCallOutput: ID_PREFIXES[CustomToolCall],
    OtherItem: "",
}


@dataclass(frozen=True, slots=True)
class ItemReference:
    """A stored item, referenced by its id."""

    id: str
    path: str


@dataclass(frozen=True, slots=True)
class CompactionTrigger:
    """Requests compaction of the items before it into one encrypted item, without generating an answer."""


InputItem = Item | ItemReference | CompactionTrigger


class _Item(msgspec.Struct, kw_only=True):
    """Fields of all items. Only calls and outputs have the status that is sent: other items are complete."""

    id: str | None = None
    status: ItemStatus | None = None


class _Message(_Item, kw_only=True):
    role: Role
    content: Text | list[InputContentParam]
    phase: Literal["commentary", "final_answer"] | None = None


class _Reasoning(_Item, kw_only=True):
    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class _Call(_Item, kw_only=True):
    call_id: str
    name: str
    namespace: str | None = None
    caller: Caller | None = None
    is_async: bool | None = msgspec.field(default=None, name="async")


class _FunctionCall(_Call, kw_only=True):
    arguments: Text = ""


class _CustomToolCall(_Call, kw_only=True):
    input: Text = ""


class _Output(_Item, kw_only=True):
    output: Text | list[InputContentParam]
    caller: Caller | None = None


class _FunctionOutput(_Output, kw_only=True):
    call_id: str | None = None
    name: Annotated[str, Meta(min_length=1)] | None = None
    namespace: str | None = None


class _CustomToolOutput(_Output, kw_only=True):
    call_id: str


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


class _Compaction(_Item, kw_only=True):
    encrypted_content: Annotated[str, msgspec.Meta(max_length=2 * MAX_TEXT)]


class _Reference(msgspec.Struct, kw_only=True):
    id: str


class _HostedCall(msgspec.Struct, kw_only=True):
    """A call of a hosted tool, or its output: only these fields are checked."""

    id: str | None = None
    call_id: str | None = None
    status: Literal[CallStatus, "searching", "generating", "interpreting"] | None = None


class _NoFields(msgspec.Struct, kw_only=True):
    """A type of which no field is decoded."""


def read_input(value: str | list[dict[str, Any]], name: str = "input") -> list[InputItem]:
    """The items of a request's `input`, or of the parameter `name`; a string is a user message.

    An item has the id that was sent, if it is well-formed, or else an empty one.
    Raises DecodeFailure with the item's path.
    """
    if isinstance(value, str):
        return [Message("", "completed", "user", [InputText(value)])]
    return [_read_item(element, f"{name}[{index}]") for index, element in enumerate(value)]


def _read_item(element: dict[str, Any], path: str) -> InputItem:
    kind = element.get("type", "message" if "role" in element or "content" in element else None)
    if kind is None and isinstance(element.get("id"), str):
        kind = "item_reference"  # earlier SDKs send references without a type
    reader = ITEM_READERS.get(kind) if isinstance(kind, str) else None
    if reader is not None:
        item: InputItem = reader.read(element, path)
        return _with_sent_id(item, element)
    if not isinstance(kind, str) or kind not in OPAQUE_ITEM_TYPES:
        raise DecodeFailure(
            f"Input items of type {abbreviated(kind)} are not supported.", f"{path}.type", "unsupported_value"
        )
    refuse_deep(element, path)
    convert(element, _HostedCall, path)
    return _with_sent_id(OtherItem("", "completed", {**element, "type": kind}), element)


def _with_sent_id(item: InputItem, element: dict[str, Any]) -> InputItem:
    if isinstance(item, ItemReference | CompactionTrigger) or not isinstance(element.get("id"), str):
        return item
    sent = msgspec.structs.replace(item, id=element["id"])
    return sent if has_lasting_id(sent) else item


def has_lasting_id(item: Item) -> bool:
    """Whether an item that is sent with this id keeps it: it is well-formed for the item's type.

    The id of an MCP item says whether this server has written it, so it never lasts.
    """
    prefix = _SENT_PREFIXES.get(type(item))
    return prefix is not None and ids.is_item_id(item.id, prefix)


def _read_message(element: dict[str, Any], path: str) -> Item:
    message: _Message = convert(element, _Message, path)
    return Message("", "completed", message.role, _read_content(message, path), _or_unset(message.phase))


def _read_content(message: _Message, path: str) -> list[ContentPart]:
    """The content parts of a message; a string becomes one text part."""
    if isinstance(message.content, str):
        if message.role == "assistant":
            return [OutputText(text=message.content)]
        return [InputText(text=message.content)]
    return read_parts(message.content, f"{path}.content")


def _read_reasoning(element: dict[str, Any], path: str) -> Item:
    reasoning: _Reasoning = convert(element, _Reasoning, path)
    return Reasoning(
        "",
        "completed",
        reasoning.summary,
        _or_unset(reasoning.content),
        _or_unset(reasoning.encrypted_content),
    )


def _read_function_call(element: dict[str, Any], path: str) -> Item:
    call: _FunctionCall = convert(element, _FunctionCall, path)
    return FunctionCall(*_call_fields(call), call.arguments, *_call_origin(call))


def _read_custom_tool_call(element: dict[str, Any], path: str) -> Item:
    call: _CustomToolCall = convert(element, _CustomToolCall, path)
    return CustomToolCall(*_call_fields(call), call.input, *_call_origin(call))


def _call_fields(call: _Call) -> tuple[str, ItemStatus, str, str]:
    return "", call.status or "completed", call.call_id, call.name


def _call_origin(call: _Call) -> tuple[str | UnsetType, Caller | UnsetType, bool | UnsetType]:
    return _or_unset(call.namespace), _or_unset(call.caller), _or_unset(call.is_async)


def _or_unset(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


def _read_function_output(element: dict[str, Any], path: str) -> Item:
    param: _FunctionOutput = convert(element, _FunctionOutput, path)
    if param.call_id is None and param.name is None:
        raise DecodeFailure(
            "An output needs the id of its call, or the name of the function that has written it.",
            f"{path}.call_id",
            "missing_required_parameter",
        )
    return FunctionCallOutput(
        "",
        param.status or "completed",
        param.call_id,
        _read_output(param, path),
        _or_unset(param.name),
        _or_unset(param.namespace),
        _or_unset(param.caller),
    )


def _read_custom_tool_output(element: dict[str, Any], path: str) -> Item:
    param: _CustomToolOutput = convert(element, _CustomToolOutput, path)
    output = _read_output(param, path)
    return CustomToolCallOutput(
        "", param.status or "completed", param.call_id, output, _or_unset(param.caller)
    )


def _read_output(param: _Output, path: str) -> str | list[ContentPart]:
    return param.output if isinstance(param.output, str) else read_parts(param.output, f"{path}.output")


def _read_compaction(element: dict[str, Any], path: str) -> Item:
    compaction: _Compaction = convert(element, _Compaction, path)
    return Compaction("", "completed", compaction.encrypted_content)


def _mcp_reader(shape: type[msgspec.Struct], kind: type[Item]) -> TypeReader:
    """Items keep the client's id until they get their own, because an approval response refers to its
    request's.
    """

    def read(element: dict[str, Any], path: str) -> Item:
        refuse_deep(element, path)
        fields = msgspec.structs.asdict(convert(element, shape, path))
        fields["id"] = fields["id"] or ""
        if "status" in fields:
            fields["status"] = fields["status"] or "completed"
        return kind(**fields)

    return TypeReader(shape, read)


def _read_stored_call(element: dict[str, Any], path: str) -> Item:
    """A call in the server's own form; any other form becomes an `OtherItem`, stored unchanged."""
    refuse_deep(element, path)
    convert(element, _HostedCall, path)
    value = element.get("status")
    status: Any = value if value in ("incomplete", "failed") else "completed"
    return decode_item(encode_item(OtherItem("", status, element)))


def _read_reference(element: dict[str, Any], path: str) -> ItemReference:
    reference: _Reference = convert(element, _Reference, path)
    return ItemReference(reference.id, path)


STORED_FORM_TYPES = frozenset({"code_interpreter_call", "web_search_call"})
"""Hosted calls, decoded if they have the server's own form; others of these types are stored unchanged."""
ITEM_READERS: dict[str, TypeReader] = {
    "message": TypeReader(_Message, _read_message),
    "reasoning": TypeReader(_Reasoning, _read_reasoning),
    "function_call": TypeReader(_FunctionCall, _read_function_call),
    "function_call_output": TypeReader(_FunctionOutput, _read_function_output),
    "custom_tool_call": TypeReader(_CustomToolCall, _read_custom_tool_call),
    "custom_tool_call_output": TypeReader(_CustomToolOutput, _read_custom_tool_output),
    "compaction": TypeReader(_Compaction, _read_compaction),
    "mcp_list_tools": _mcp_reader(_McpListTools, McpListTools),
    "mcp_call": _mcp_reader(_McpCall, McpCall),
    "compaction_trigger": TypeReader(_NoFields, lambda _element, _path: CompactionTrigger()),
    **dict.fromkeys(sorted(STORED_FORM_TYPES), TypeReader(_HostedCall, _read_stored_call)),
    "mcp_approval_request": _mcp_reader(_McpApprovalRequest, McpApprovalRequest),
    "mcp_approval_response": _mcp_reader(_McpApprovalResponse, McpApprovalResponse),
    "item_reference": TypeReader(_Reference, _read_reference),
    "additional_tools": TypeReader(AdditionalToolsParam, read_additional_tools),
    "configuration_update": TypeReader(ConfigurationUpdateParam, read_configuration_update),
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
