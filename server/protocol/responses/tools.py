"""Tools as clients declare them, and their choice among them.

Functions, custom tools, namespaces of both and MCP servers are taken; hosted tools that this server does not
have are left out, as every client copes with that, unless the request insists on one.
"""

import logging
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from server.protocol.decode import convert
from server.protocol.errors import DecodeFailure
from server.protocol.responses.hosted_items import ListedTool
from server.protocol.responses.request import MAX_TOOLS

log = logging.getLogger("holdfast.wire")

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:/-]+$")]


class FunctionTool(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomToolTextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    pass


class GrammarFormat(msgspec.Struct, frozen=True, tag_field="type", tag="grammar"):
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(max_length=65536)]


class CustomTool(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    name: Name
    description: str | None = None
    format: CustomToolTextFormat | GrammarFormat | None = None


class NamespaceTool(msgspec.Struct, frozen=True, tag_field="type", tag="namespace"):
    """A group of tools under one name."""

    name: Name
    tools: Annotated[list[FunctionTool | CustomTool], Meta(max_length=MAX_TOOLS)]
    description: str | None = None


class ToolFilter(msgspec.Struct, frozen=True):
    tool_names: Annotated[list[str], Meta(max_length=MAX_TOOLS)] | None = None
    read_only: bool | None = None

    def has(self, tool: ListedTool) -> bool:
        named = self.tool_names is None or tool.name in self.tool_names
        return named and (not self.read_only or tool.only_reads)


class ApprovalFilter(msgspec.Struct, frozen=True):
    """Which tools may be called only when somebody allows it, and which without asking."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None


ALL_TOOLS = "*"
"""An entry of `allowed_tools` that means all that a server offers; vLLM's."""


class McpTool(msgspec.Struct, frozen=True, tag_field="type", tag="mcp"):
    """The tools of an MCP server: of one that the operator has registered under this label, or of a URL's."""

    server_label: Name
    server_url: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    server_description: str | None = None
    allowed_tools: Annotated[list[str], Meta(max_length=MAX_TOOLS)] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    listed: list[ListedTool] = []
    """What the server offers, as it said when it was asked; never a caller's word."""
    listing_error: str | None = None
    stands_for: dict[str, Any] | None = None
    """The tool of OpenAI's that the request declares, and that this server serves."""
    listed_before: bool = False
    """It said so earlier in the conversation."""
    plain_names: bool = False
    """The model knows its tools without the label; those of requests stored by earlier releases with it."""

    @property
    def name(self) -> str:
        return self.server_label

    @property
    def offered(self) -> list[ListedTool]:
        """Those of the listed tools that the request allows."""
        allowed = self.allowed_tools
        if isinstance(allowed, list):
            allowed = None if ALL_TOOLS in allowed else ToolFilter(tool_names=allowed)
        return [tool for tool in self.listed if allowed is None or allowed.has(tool)]

    def needs_approval(self, tool: ListedTool) -> bool:
        """OpenAI's default is that every call does. Of two filters that both have it, `always` holds."""
        match self.require_approval:
            case "never":
                return False
            case ApprovalFilter(always, never):
                if always is not None and always.has(tool):
                    return True
                return not (never.has(tool) if never is not None else always is not None)
        return True


Tool = FunctionTool | CustomTool | NamespaceTool | McpTool
TOOL_TYPES: dict[str, type[Tool]] = {
    "function": FunctionTool,
    "custom": CustomTool,
    "namespace": NamespaceTool,
    "mcp": McpTool,
}


class ToolChoice(msgspec.Struct, frozen=True):
    """A choice in one shape, whichever of OpenAI's forms it came in."""

    mode: Literal["none", "auto", "required"] = "auto"
    allowed: tuple[str, ...] | None = None
    """Names of the only tools that may be called; None allows all."""


class _NamedTool(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    server_label: str | None = None


class _AllowedTools(msgspec.Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[_NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


def log_ignored_tools(elements: Iterable[dict[str, Any]]) -> None:
    """Says in the log which of these tools, which have been read, nobody here knows."""
    for kind in (element["type"] for element in elements):
        if kind not in TOOL_TYPES:
            log.info("a tool of type %s is left out", kind[:50])


def read_tools(given: list[dict[str, Any]] | None, path: str = "tools") -> list[Tool]:
    """The tools of a request that this module knows. Raises DecodeFailure for a known one that is wrong."""
    tools: list[Tool] = []
    for index, element in enumerate(given or []):
        kind = element.get("type")
        if not isinstance(kind, str):
            raise DecodeFailure("A tool needs a type.", f"{path}[{index}].type", "invalid_type")
        if kind not in TOOL_TYPES:
            continue
        tools.append(convert(element, TOOL_TYPES[kind], f"{path}[{index}]"))
    _refuse_duplicates(tools, path)
    return tools


def _refuse_duplicates(tools: list[Tool], path: str) -> None:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise DecodeFailure(f"There are two tools called '{tool.name}'.", path, "invalid_value")
        seen.add(tool.name)


def callable_names(tools: list[Tool]) -> set[str]:
    """What calls may name: tools, and the tools in namespaces."""
    names: set[str] = set()
    for tool in tools:
        match tool:
            case NamespaceTool():
                names |= {inner.name for inner in tool.tools}
            case McpTool(label):
                names |= {f"{label}__{inner.name}" for inner in tool.offered}
            case _:
                names.add(tool.name)
    return names


def read_choice(given: str | dict[str, Any] | None, tools: list[Tool]) -> ToolChoice:
    """The choice that a request makes. Raises DecodeFailure when it asks for what is not there."""
    match given:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            return _required_choice(None, tools)
        case {"type": "allowed_tools"}:
            allowed: _AllowedTools = convert(given, _AllowedTools, "tool_choice")
            names = tuple(name for tool in allowed.tools for name in _chosen_names(tool, tools))
            choice = _required_choice(names, tools)
            return choice if allowed.mode == "required" else ToolChoice("auto", names)
        case {"type": str()}:
            return _required_choice(_chosen_names(convert(given, _NamedTool, "tool_choice"), tools), tools)
    raise DecodeFailure(
        "tool_choice must be 'none', 'auto', 'required', or an object that names a tool.",
        "tool_choice",
        "invalid_value",
    )


def _chosen_names(named: _NamedTool, tools: list[Tool]) -> tuple[str, ...]:
    """What calls may name by that; an MCP server without a tool's name means all that it offers."""
    if named.type == "mcp" and named.server_label is not None:
        if named.name is not None:
            return (f"{named.server_label}__{named.name}",)
        servers = [tool for tool in tools if isinstance(tool, McpTool) and tool.name == named.server_label]
        return tuple(sorted(callable_names(list(servers)))) or (named.server_label,)
    standing = [tool for tool in tools if isinstance(tool, McpTool) and tool.stands_for is not None]
    if served := [tool for tool in standing if (tool.stands_for or {}).get("type") == named.type]:
        return tuple(sorted(callable_names(list(served))))
    if named.type not in ("function", "custom") or named.name is None:
        raise DecodeFailure(
            f"Tools of type {named.type[:50]!r} are not available here, so they cannot be chosen.",
            "tool_choice",
            "unsupported_value",
        )
    return (named.name,)


def _required_choice(names: tuple[str, ...] | None, tools: list[Tool]) -> ToolChoice:
    there = callable_names(tools)
    missing = [name for name in names or () if name not in there]
    if missing:
        raise DecodeFailure(
            f"tool_choice names '{missing[0][:100]}', which is not among the tools.",
            "tool_choice",
            "invalid_value",
        )
    if not there:
        raise DecodeFailure("There are no tools to choose from.", "tool_choice", "invalid_value")
    return ToolChoice("required", names)


INTERNAL_FIELDS = frozenset({"listed", "listing_error", "listed_before", "plain_names", "stands_for"})
"""Fields that are ours alone, in no request and in no answer."""


def echo(tool: Tool) -> dict[str, Any]:
    """A tool as the response repeats it: every field is there that OpenAI's document lets be null."""
    if isinstance(tool, McpTool):
        if tool.stands_for is not None:
            return tool.stands_for
        kept = msgspec.structs.replace(
            tool, headers=None, authorization=None, server_url=_redacted_url(tool.server_url)
        )
        fields = msgspec.to_builtins(kept).items()
        return {
            name: value for name, value in fields if name not in INTERNAL_FIELDS and _is_echoed(name, value)
        }
    told: dict[str, Any] = msgspec.to_builtins(tool)
    if isinstance(tool, FunctionTool):
        told["strict"] = bool(tool.strict)
    if isinstance(tool, CustomTool):
        told["format"] = told["format"] or {"type": "text"}
        if tool.description is None:
            del told["description"]
    return told


def _is_echoed(name: str, value: object) -> bool:
    return value is not None or name in ("allowed_tools", "headers", "require_approval")


def declaration(tool: Tool) -> dict[str, Any]:
    """A tool as a request declares it."""
    if not isinstance(tool, McpTool):
        return echo(tool)
    return {name: value for name, value in msgspec.to_builtins(tool).items() if name not in INTERNAL_FIELDS}


def _redacted_url(url: str | None) -> str | None:
    """A server's URL without what may be secret in it, as OpenAI repeats it."""
    if url is None:
        return None
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.partition('?')[0]}{slash}{'<redacted>' if path else ''}"
