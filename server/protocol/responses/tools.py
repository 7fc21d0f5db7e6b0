"""Decodes `tools` and `tool_choice` of a request, and echoes tools in the Response. Supported are functions,
custom tools, namespaces of both, MCP servers, the search for deferred tools, and shells and patches of the
client; others are ignored unless `tool_choice` names one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.errors import InvalidRequest
from server.protocol.decode import convert
from server.protocol.error_object import invalid_value, missing_parameter, unsupported_value
from server.protocol.responses.items import ListedTool
from server.protocol.responses.request import MAX_TOOLS

URLS_KEY = "holdfast/urls"
"""The entry of a browser result's `_meta` with the URL of its page, or the URLs that its search found."""
MAX_URLS = 50

ALLOWED_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:/-]+$(?!\n)")]

AllowedCallers = Annotated[list[Literal["direct", "programmatic"]], Meta(max_length=2)] | None | UnsetType
"""Callers that a tool allows: the model directly, which is the default, or programs that it writes."""

TOOL_SEARCH = "tool_search"
"""The type of the tool that loads deferred tools, and the name by which the model calls it."""


class FunctionTool(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: AllowedCallers = UNSET
    defer_loading: bool | UnsetType = UNSET
    is_async: bool | UnsetType = msgspec.field(default=UNSET, name="async")
    output_schema: dict[str, Any] | UnsetType | None = UNSET


class CustomToolTextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    pass


class GrammarFormat(msgspec.Struct, frozen=True, tag_field="type", tag="grammar"):
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(max_length=65536)]


class CustomTool(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    name: Name
    description: str | None = None
    format: CustomToolTextFormat | GrammarFormat | None = None
    allowed_callers: AllowedCallers = UNSET
    defer_loading: bool | UnsetType = UNSET
    is_async: bool | UnsetType = msgspec.field(default=UNSET, name="async")


class NamespaceTool(msgspec.Struct, frozen=True, tag_field="type", tag="namespace"):
    """A namespace of tools."""

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
    """The tools whose calls always need approval, and those whose calls never do."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None


ALL_TOOLS = "*"
"""An entry of `allowed_tools` that allows all of a server's tools; vLLM's."""


class McpTool(msgspec.Struct, frozen=True, tag_field="type", tag="mcp"):
    """An MCP server's tools; the server is registered by the operator under this label, or has a URL."""

    server_label: Name
    server_url: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    server_description: str | None = None
    allowed_tools: Annotated[list[str], Meta(max_length=MAX_TOOLS)] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_callers: AllowedCallers = UNSET
    defer_loading: bool | UnsetType = UNSET
    listed: list[ListedTool] = []
    """The server's tools from tool discovery; never a client's value."""
    listing_error: str | None = None
    stands_for: dict[str, Any] | None = None
    """The request's declaration of an OpenAI hosted tool that this MCP server implements."""
    container: str | None = None
    """The response whose container the tool runs in, as 32 hexadecimal digits; None for its own."""
    listed_before: bool = False
    """Whether an earlier `mcp_list_tools` item of the conversation has these tools."""

    @property
    def name(self) -> str:
        return self.server_label

    @property
    def secret_field(self) -> str | None:
        """The field that is never stored: a URL with a query, headers, or a token."""
        if "?" in (self.server_url or ""):
            return "server_url"
        return "headers" if self.headers else "authorization" if self.authorization else None

    @property
    def offered(self) -> list[ListedTool]:
        """The discovered tools that `allowed_tools` permits."""
        allowed = self.allowed_tools
        if isinstance(allowed, list):
            allowed = None if ALL_TOOLS in allowed else ToolFilter(tool_names=allowed)
        return [tool for tool in self.listed if allowed is None or allowed.has(tool)]

    def needs_approval(self, tool: ListedTool) -> bool:
        """Whether a call needs approval: by default yes, and `always` takes precedence over `never`."""
        match self.require_approval:
            case "never":
                return False
            case ApprovalFilter(always, never):
                if always is not None and always.has(tool):
                    return True
                return not (never.has(tool) if never is not None else always is not None)
        return True


class ToolSearchTool(msgspec.Struct, frozen=True, tag_field="type", tag="tool_search"):
    """The search for deferred tools. Where the client executes it, it may have its own words and schema."""

    description: str | None = None
    execution: Literal["server", "client"] = "server"
    parameters: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return TOOL_SEARCH


class _TypedTool(msgspec.Struct, frozen=True, tag_field="type"):
    """A tool of OpenAI's that the client runs; its name is its type."""

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)


class LocalSkill(msgspec.Struct, frozen=True):
    """A folder of the client's with instructions, which the model reads when it needs them."""

    name: Annotated[str, Meta(max_length=128)]
    description: Annotated[str, Meta(max_length=4096)]
    path: Annotated[str, Meta(max_length=4096)]


class LocalEnvironment(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="local"):
    """The client's machine."""

    skills: Annotated[list[LocalSkill], Meta(max_length=200)] | None = None


class ShellTool(_TypedTool, frozen=True, tag="shell"):
    environment: LocalEnvironment | None = None
    allowed_callers: AllowedCallers = UNSET


class LocalShellTool(_TypedTool, frozen=True, tag="local_shell"):
    pass


class ApplyPatchTool(_TypedTool, frozen=True, tag="apply_patch"):
    allowed_callers: AllowedCallers = UNSET


ClientTool = ShellTool | LocalShellTool | ApplyPatchTool
Tool = FunctionTool | CustomTool | NamespaceTool | McpTool | ToolSearchTool | ClientTool
TOOL_TYPES: dict[str, type[Tool]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Tool)}


class ToolChoice(msgspec.Struct, frozen=True):
    """A `tool_choice`, normalized from all of OpenAI's forms, with `parallel_tool_calls`."""

    mode: Literal["none", "auto", "required"] = "auto"
    allowed: tuple[str, ...] | None = None
    """Names of the only tools that may be called; None allows all. Prompts list all tools in any case."""
    parallel: bool = True


class _NamedTool(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    server_label: str | None = None


class _AllowedTools(msgspec.Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[_NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


def ignored_types(declared: Iterable[Mapping[str, Any]] | None) -> list[str]:
    """The types of tools that are not served here, sorted, with at most 64 characters of each."""
    return sorted({element["type"][:64] for element in declared or () if not is_served(element)})


def is_served(element: Mapping[str, Any]) -> bool:
    """Whether a declared tool is of a type that is served here; a shell only on the client's machine."""
    environment = element.get("environment")
    is_elsewhere = isinstance(environment, dict) and str(environment.get("type")).startswith("container")
    return element["type"] in TOOL_TYPES and not (element["type"] == "shell" and is_elsewhere)


def read_tools(declared: list[dict[str, Any]] | None, path: str = "tools") -> list[Tool]:
    """The supported tools of a request. Raises InvalidRequest for a supported one with a wrong field."""
    tools: list[Tool] = []
    for index, element in enumerate(declared or []):
        kind = element.get("type")
        if not isinstance(kind, str):
            raise InvalidRequest("A tool needs a type.", f"{path}[{index}].type", "invalid_type")
        if is_served(element):
            tools.append(convert(element, TOOL_TYPES[kind], f"{path}[{index}]"))
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise invalid_value(f"There are two tools called '{tool.name}'.", path)
        seen.add(tool.name)
    return tools


def tool_path(declared: Sequence[Mapping[str, Any]] | None, name: str) -> tuple[str, str | None]:
    """The path in a request's `tools` of the function or custom tool with this name, and its type.

    `tools` and None for one that is not declared, such as an MCP server's.
    """
    for index, element in enumerate(declared or ()):
        kind = element.get("type")
        if kind == "namespace":
            for position, inner in enumerate(element["tools"]):
                if inner.get("name") == name:
                    return f"tools[{index}].tools[{position}]", inner["type"]
        elif kind in ("function", "custom") and element.get("name") == name:
            return f"tools[{index}]", kind
    return "tools", None


def callable_names(tools: list[Tool]) -> set[str]:
    """The names that calls may have: of tools, of tools in namespaces, and of MCP tools with their label."""
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


def read_choice(choice: str | dict[str, Any] | None, tools: list[Tool]) -> ToolChoice:
    """The normalized `tool_choice`. Raises InvalidRequest if it names a tool that is not declared."""
    match choice:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            return _required_choice(None, tools)
        case {"type": "allowed_tools"}:
            allowed: _AllowedTools = convert(choice, _AllowedTools, "tool_choice")
            names = tuple(
                name
                for index, tool in enumerate(allowed.tools)
                for name in _chosen_names(tool, tools, f"tool_choice.tools[{index}]")
            )
            required = _required_choice(names, tools)
            return required if allowed.mode == "required" else ToolChoice("auto", names)
        case {"type": str()}:
            named: _NamedTool = convert(choice, _NamedTool, "tool_choice")
            return _required_choice(_chosen_names(named, tools, "tool_choice"), tools)
    raise invalid_value(
        "tool_choice must be 'none', 'auto', 'required', or an object that names a tool.", "tool_choice"
    )


def _chosen_names(named: _NamedTool, tools: list[Tool], path: str) -> tuple[str, ...]:
    """The callable names that a choice allows; an MCP server without a tool name stands for all its tools."""
    if named.type == "mcp":
        if named.server_label is None:
            raise missing_parameter(f"{path}.server_label")
        if named.name is not None:
            return (f"{named.server_label}__{named.name}",)
        servers = [tool for tool in tools if isinstance(tool, McpTool) and tool.name == named.server_label]
        return tuple(sorted(callable_names(list(servers)))) or (named.server_label,)
    hosted = [tool for tool in tools if isinstance(tool, McpTool) and tool.stands_for is not None]
    if matching := [tool for tool in hosted if (tool.stands_for or {}).get("type") == named.type]:
        return tuple(sorted(callable_names(list(matching))))
    if any(tool.name == named.type for tool in tools if isinstance(tool, ToolSearchTool | ClientTool)):
        return (named.type,)
    if named.type not in ("function", "custom"):
        raise unsupported_value(
            f"Tools of type {named.type[:50]!r} are not available here, so they cannot be chosen.",
            "tool_choice",
        )
    if named.name is None:
        raise missing_parameter(f"{path}.name")
    return (named.name,)


def _required_choice(names: tuple[str, ...] | None, tools: list[Tool]) -> ToolChoice:
    known = callable_names(tools)
    missing = [name for name in names or () if name not in known]
    if missing:
        raise invalid_value(
            f"tool_choice names '{missing[0][:100]}', which is not among the tools.", "tool_choice"
        )
    if not known:
        raise invalid_value("There are no tools to choose from.", "tool_choice")
    return ToolChoice("required", names)


INTERNAL_FIELDS = frozenset({"listed", "listing_error", "listed_before", "stands_for", "container"})
"""Fields of `McpTool` that neither requests nor responses have."""


def echo(tool: Tool) -> dict[str, Any]:
    """The tool in a Response's `tools`, with null for every nullable field of OpenAI's document."""
    if isinstance(tool, McpTool):
        if tool.stands_for is not None:
            return tool.stands_for
        public = msgspec.structs.replace(
            tool, headers=None, authorization=None, server_url=_redacted_url(tool.server_url)
        )
        fields = msgspec.to_builtins(public).items()
        return {
            name: value
            for name, value in fields
            if name not in INTERNAL_FIELDS
            and (value is not None or name in ("allowed_tools", "headers", "require_approval"))
        }
    echoed: dict[str, Any] = msgspec.to_builtins(tool)
    if isinstance(tool, FunctionTool):
        echoed["strict"] = bool(tool.strict)
    if isinstance(tool, CustomTool):
        echoed["format"] = echoed["format"] or {"type": "text"}
        if tool.description is None:
            del echoed["description"]
    return echoed


def declaration(tool: Tool) -> dict[str, Any]:
    if not isinstance(tool, McpTool):
        return echo(tool)
    return {name: value for name, value in msgspec.to_builtins(tool).items() if name not in INTERNAL_FIELDS}


def declared_name(element: dict[str, Any]) -> str:
    """Return the identity of a declared tool: its name or label, or the type of OpenAI's own tools."""
    return str(element.get("name") or element.get("server_label") or element.get("type"))


def _redacted_url(url: str | None) -> str | None:
    """A server's URL without query and path, which may contain secrets; as OpenAI echoes it."""
    if url is None:
        return None
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.partition('?')[0]}{slash}{'<redacted>' if path else ''}"
