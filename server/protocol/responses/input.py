"""Decodes the `input` of a request into items: messages, calls, outputs, tools, settings, references. Pure.
Foreign ids, unknown fields and unsupported types are accepted; a wrong value raises InvalidRequest.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.protocol import ids
from server.protocol.decode import convert
from server.protocol.error_object import missing_value, unsupported_parameter, unsupported_value
from server.protocol.responses import items as wire
from server.protocol.responses.content_parts import TypeReader, abbreviated, read_parts, refuse_deep
from server.protocol.responses.request import MAX_TOOLS, InputContentParam, TextFormat, ToolParam
from server.protocol.responses.tools import (
    TOOL_TYPES,
    McpTool,
    declaration,
    declared_name,
    read_tools,
)

_SENT_PREFIXES: dict[type[wire.Item], str] = {
    **{kind: prefix for kind, prefix in wire.ID_PREFIXES.items() if not prefix.startswith("mcp")},
    wire.FunctionCallOutput: wire.ID_PREFIXES[wire.FunctionCall],
    wire.CustomToolCallOutput: wire.ID_PREFIXES[wire.CustomToolCall],
    wire.OtherItem: "",
}


@dataclass(frozen=True, slots=True)
class ItemReference:
    id: str
    path: str


@dataclass(frozen=True, slots=True)
class CompactionTrigger:
    """Requests compaction of the items before it into one encrypted item, without generating an answer."""


InputItem = wire.Item | ItemReference | CompactionTrigger


class _Item(msgspec.Struct, kw_only=True):
    """Fields of all items. Only calls and outputs have the status that is sent: other items are complete."""

    id: str | None = None
    status: wire.ItemStatus | None = None


class _Message(_Item, kw_only=True):
    role: wire.Role
    content: wire.Text | list[InputContentParam]
    phase: Literal["commentary", "final_answer"] | None = None


class _Reasoning(_Item, kw_only=True):
    summary: list[wire.SummaryText] = []
    content: list[wire.ReasoningText] | None = None
    encrypted_content: str | None = None


class _Call(_Item, kw_only=True):
    call_id: str
    name: str
    namespace: str | None = None
    caller: wire.Caller | None = None
    is_async: bool | None = msgspec.field(default=None, name="async")


class _FunctionCall(_Call, kw_only=True):
    arguments: wire.Text = ""


class _CustomToolCall(_Call, kw_only=True):
    input: wire.Text = ""


class _Output(_Item, kw_only=True):
    output: wire.Text | list[InputContentParam]
    caller: wire.Caller | None = None


class _FunctionOutput(_Output, kw_only=True):
    call_id: str | None = None
    name: Annotated[str, Meta(min_length=1)] | None = None
    namespace: str | None = None


class _CustomToolOutput(_Output, kw_only=True):
    call_id: str


class _McpListTools(msgspec.Struct, kw_only=True):
    id: str | None = None
    server_label: str
    tools: list[wire.ListedTool] = []
    error: str | None = None


class _McpApprovalRequest(msgspec.Struct, kw_only=True):
    id: str
    server_label: str
    name: str
    arguments: wire.Text


class _McpApprovalResponse(msgspec.Struct, kw_only=True):
    id: str | None = None
    approval_request_id: str
    approve: bool
    reason: str | None = None


class _McpCall(msgspec.Struct, kw_only=True):
    id: str | None = None
    server_label: str
    name: str
    arguments: wire.Text
    status: wire.CallStatus | None = None
    output: wire.Text | None = None
    error: wire.McpError | str | None = None
    approval_request_id: str | None = None


class _Compaction(_Item, kw_only=True):
    encrypted_content: Annotated[str, msgspec.Meta(max_length=2 * wire.MAX_TEXT)]


class _AdditionalTools(msgspec.Struct, kw_only=True):
    id: str | None = None
    tools: Annotated[list[ToolParam], Meta(max_length=MAX_TOOLS)]
    role: Literal["developer"] = "developer"


class _ToolSearch(_Item, kw_only=True):
    call_id: str | None = None
    execution: wire.Execution = "client"


class _ToolSearchCall(_ToolSearch, kw_only=True):
    arguments: Any


class _ToolSearchOutput(_ToolSearch, kw_only=True):
    tools: Annotated[list[ToolParam], Meta(max_length=MAX_TOOLS)]


class _Reference(msgspec.Struct, kw_only=True):
    id: str


class _HostedCall(msgspec.Struct, kw_only=True):
    """A call of a hosted tool, or its output: only these fields are checked."""

    id: str | None = None
    call_id: str | None = None
    status: Literal[wire.CallStatus, "searching", "generating", "interpreting"] | None = None


class _NoFields(msgspec.Struct, kw_only=True):
    """A type of which no field is decoded."""


def read_input(value: str | list[dict[str, Any]], name: str = "input") -> list[InputItem]:
    """The items of `input`, or of the parameter `name`; a string is a user message. An item has the id that
    was sent, if it is well-formed, else an empty one. Raises InvalidRequest with the path.
    """
    if isinstance(value, str):
        return [wire.Message("", "completed", "user", [wire.InputText(value)])]
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
        raise unsupported_value(f"Input items of type {abbreviated(kind)} are not supported.", f"{path}.type")
    refuse_deep(element, path)
    convert(element, _HostedCall, path)
    return _with_sent_id(wire.OtherItem("", "completed", {**element, "type": kind}), element)


def _with_sent_id(item: InputItem, element: dict[str, Any]) -> InputItem:
    if isinstance(item, ItemReference | CompactionTrigger) or not isinstance(element.get("id"), str):
        return item
    sent = msgspec.structs.replace(item, id=element["id"])
    return sent if has_lasting_id(sent) else item


def has_lasting_id(item: wire.Item) -> bool:
    """Whether an item that is sent with this id keeps it: it is well-formed for the item's type.

    The id of an MCP item says whether this server has written it, so it never lasts.
    """
    prefix = _SENT_PREFIXES.get(type(item))
    return prefix is not None and ids.is_item_id(item.id, prefix)


def _item_reader(shape: type[msgspec.Struct], kind: type[wire.Item]) -> TypeReader:
    """The reader of items with the fields of `shape`; null ones become absent. MCP items keep their id."""
    is_mcp = kind in wire.HOSTED_ID_PREFIXES
    has_tools = kind in (wire.AdditionalTools, wire.ToolSearchOutput)
    tells_status = issubclass(shape, (_Call, _Output, _McpCall, _ToolSearch))
    names = shape.__struct_fields__
    listed = next(
        (name for name in ("content", "output") if name in names and kind is not wire.Reasoning), None
    )

    def read(element: dict[str, Any], path: str) -> wire.Item:
        if is_mcp or has_tools:
            refuse_deep(element, path)
        params = convert(element, shape, path)
        fields = {name: value for name in names if (value := getattr(params, name)) is not None}
        if not is_mcp or "id" not in fields:
            fields["id"] = ""
        if "call_id" in names:
            fields.setdefault("call_id", None)
        if "status" in names and not (tells_status and fields.get("status")):
            fields["status"] = "completed"
        if has_tools:
            fields["tools"] = _tools_of_item(fields["tools"], path)
        if listed is not None:
            value = fields.get(listed)
            if isinstance(value, list):
                fields[listed] = read_parts(value, f"{path}.{listed}")
            elif isinstance(value, str) and kind is wire.Message:
                fields[listed] = [
                    wire.OutputText(value) if fields["role"] == "assistant" else wire.InputText(value)
                ]
        return kind(**fields)

    return TypeReader(shape, read)


def _tools_of_item(declared: list[dict[str, Any]], path: str) -> list[dict[str, Any]]:
    """The tools with all of their fields, so that they are given back as OpenAI's types have them."""
    supported = {tool.name: tool for tool in read_tools(declared, f"{path}.tools")}
    tools = []
    for index, tool in enumerate(declared):
        if tool["type"] not in TOOL_TYPES:
            tools.append(tool)
            continue
        read = supported[declared_name(tool)]
        if isinstance(read, McpTool) and (secret := read.secret_field):
            raise unsupported_parameter(
                "Headers and queries for an MCP server are never stored, and this item is: declare the "
                "server among the request's tools.",
                f"{path}.tools[{index}].{secret}",
            )
        tools.append(declaration(read))
    return tools


_OUTPUT_READER = _item_reader(_FunctionOutput, wire.FunctionCallOutput)


def _read_function_output(element: dict[str, Any], path: str) -> wire.Item:
    if element.get("call_id") is None and element.get("name") is None:
        convert(element, _FunctionOutput, path)
        sentence = "An output needs the id of its call, or the name of the function that has written it."
        raise missing_value(sentence, f"{path}.call_id")
    item: wire.Item = _OUTPUT_READER.read(element, path)
    return item


def _read_stored_call(element: dict[str, Any], path: str) -> wire.Item:
    """A call in the server's own form; any other form becomes an `OtherItem`, stored unchanged."""
    refuse_deep(element, path)
    convert(element, _HostedCall, path)
    value = element.get("status")
    status: Any = value if value in ("incomplete", "failed") else "completed"
    return wire.decode_item(wire.encode_item(wire.OtherItem("", status, element)))


class _UpdatedFormat(TextFormat, frozen=True):
    type: Literal["text", "json_schema"]


class _UpdatedText(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: _UpdatedFormat


class _ConfigurationUpdate(msgspec.Struct, kw_only=True):
    reasoning: wire.ReasoningUpdate | None = None
    text: _UpdatedText | None = None


def _read_configuration_update(element: dict[str, Any], path: str) -> wire.ConfigurationUpdate:
    refuse_deep(element, path)
    param: _ConfigurationUpdate = convert(element, _ConfigurationUpdate, path)
    if param.reasoning is None and param.text is None:
        raise missing_value("A configuration_update has reasoning, text, or both.", f"{path}.reasoning")
    text: dict[str, Any] | UnsetType = UNSET
    if param.text is not None:
        if param.text.format.type == "json_schema" and param.text.format.schema is None:
            raise missing_value("A json_schema format needs a schema.", f"{path}.text.format.schema")
        fields = msgspec.structs.asdict(param.text.format)
        text = {"format": {name: value for name, value in fields.items() if value is not None}}
    return wire.ConfigurationUpdate("", UNSET if param.reasoning is None else param.reasoning, text)


def _read_client_item(element: dict[str, Any], path: str) -> wire.Item:
    """A call or an output of a tool that the client runs. Null fields are as absent ones."""
    refuse_deep(element, path)
    fields = {name: value for name, value in element.items() if value is not None}
    kind = _CLIENT_ITEMS[element["type"]]
    if kind is wire.LocalShellCallOutput:
        fields.setdefault("call_id", fields.get("id"))
    item: wire.Item = convert({"status": "completed", **fields, "id": ""}, kind, path)
    return item


_CLIENT_ITEMS = {str(kind.__struct_config__.tag): kind for kind in wire.CLIENT_ID_PREFIXES}
STORED_FORM_TYPES = frozenset({"code_interpreter_call", "web_search_call"})
"""Hosted calls, decoded if they have the server's own form; others of these types are stored unchanged."""
ITEM_READERS: dict[str, TypeReader] = {
    "message": _item_reader(_Message, wire.Message),
    "reasoning": _item_reader(_Reasoning, wire.Reasoning),
    "function_call": _item_reader(_FunctionCall, wire.FunctionCall),
    "function_call_output": TypeReader(_FunctionOutput, _read_function_output),
    "custom_tool_call": _item_reader(_CustomToolCall, wire.CustomToolCall),
    "custom_tool_call_output": _item_reader(_CustomToolOutput, wire.CustomToolCallOutput),
    "compaction": _item_reader(_Compaction, wire.Compaction),
    "mcp_list_tools": _item_reader(_McpListTools, wire.McpListTools),
    "mcp_call": _item_reader(_McpCall, wire.McpCall),
    "compaction_trigger": TypeReader(_NoFields, lambda _element, _path: CompactionTrigger()),
    **dict.fromkeys(sorted(STORED_FORM_TYPES), TypeReader(_HostedCall, _read_stored_call)),
    "mcp_approval_request": _item_reader(_McpApprovalRequest, wire.McpApprovalRequest),
    "mcp_approval_response": _item_reader(_McpApprovalResponse, wire.McpApprovalResponse),
    "item_reference": TypeReader(
        _Reference, lambda element, path: ItemReference(convert(element, _Reference, path).id, path)
    ),
    "additional_tools": _item_reader(_AdditionalTools, wire.AdditionalTools),
    "configuration_update": TypeReader(_ConfigurationUpdate, _read_configuration_update),
    **{name: TypeReader(kind, _read_client_item) for name, kind in _CLIENT_ITEMS.items()},
    "tool_search_call": _item_reader(_ToolSearchCall, wire.ToolSearchCall),
    "tool_search_output": _item_reader(_ToolSearchOutput, wire.ToolSearchOutput),
}
"""By `type`, which is optional for messages."""

OPAQUE_ITEM_TYPES = frozenset(
    {
        *("computer_call", "computer_call_output", "file_search_call", "image_generation_call"),
        *("program", "program_output"),
    }
)
"""Items of tools that only OpenAI's servers execute: stored, but not part of the prompt."""
