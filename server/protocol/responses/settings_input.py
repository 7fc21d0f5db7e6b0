"""Decodes `additional_tools` and `configuration_update` items of an input. Pure."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.protocol.decode import convert
from server.protocol.error_object import DecodeFailure
from server.protocol.responses.content_parts import refuse_deep
from server.protocol.responses.items import AdditionalTools, ConfigurationUpdate, ReasoningUpdate
from server.protocol.responses.request import MAX_TOOLS, TextFormat, ToolParam
from server.protocol.responses.tools import (
    TOOL_TYPES,
    McpTool,
    declaration,
    declared_name,
    read_tools,
    refuse_deferred,
)


class AdditionalToolsParam(msgspec.Struct, kw_only=True):
    tools: Annotated[list[ToolParam], Meta(max_length=MAX_TOOLS)]
    role: Literal["developer"] = "developer"


class _UpdatedFormat(TextFormat, frozen=True):
    type: Literal["text", "json_schema"]


class _UpdatedText(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: _UpdatedFormat


class ConfigurationUpdateParam(msgspec.Struct, kw_only=True):
    reasoning: ReasoningUpdate | None = None
    text: _UpdatedText | None = None


def read_additional_tools(element: dict[str, Any], path: str) -> AdditionalTools:
    """The tools with all of their fields, so that they are given back as OpenAI's types have them."""
    refuse_deep(element, path)
    param: AdditionalToolsParam = convert(element, AdditionalToolsParam, path)
    supported = {tool.name: tool for tool in read_tools(param.tools, f"{path}.tools")}
    refuse_deferred(param.tools, f"{path}.tools")
    tools = []
    for index, tool in enumerate(param.tools):
        if tool["type"] not in TOOL_TYPES:
            tools.append(tool)
            continue
        read = supported[declared_name(tool)]
        if isinstance(read, McpTool):
            _refuse_secrets(read, f"{path}.tools[{index}]")
        tools.append(declaration(read))
    return AdditionalTools("", tools)


def _refuse_secrets(tool: McpTool, path: str) -> None:
    """Raises DecodeFailure for what is never stored, since the item is."""
    hidden = "headers" if tool.headers else "authorization" if tool.authorization else None
    if "?" in (tool.server_url or ""):
        hidden = "server_url"
    if hidden is not None:
        raise DecodeFailure(
            "Headers and queries for an MCP server are never stored, and this item is: declare the server "
            "among the request's tools.",
            f"{path}.{hidden}",
            "unsupported_parameter",
        )


def read_configuration_update(element: dict[str, Any], path: str) -> ConfigurationUpdate:
    refuse_deep(element, path)
    param: ConfigurationUpdateParam = convert(element, ConfigurationUpdateParam, path)
    if param.reasoning is None and param.text is None:
        raise DecodeFailure(
            "A configuration_update has reasoning, text, or both.",
            f"{path}.reasoning",
            "missing_required_parameter",
        )
    text: dict[str, Any] | UnsetType = UNSET
    if param.text is not None:
        if param.text.format.type == "json_schema" and param.text.format.schema is None:
            raise DecodeFailure(
                "A json_schema format needs a schema.",
                f"{path}.text.format.schema",
                "missing_required_parameter",
            )
        fields = msgspec.structs.asdict(param.text.format)
        text = {"format": {name: value for name, value in fields.items() if value is not None}}
    return ConfigurationUpdate("", UNSET if param.reasoning is None else param.reasoning, text)
