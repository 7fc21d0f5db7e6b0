"""MCP tool discovery: the servers that a request names are validated and listed before the response exists.

Their tools become a part of the stored request, so that a recovered run offers the same ones. A list that the
conversation already has is not sent again, as with OpenAI.
"""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from server.caller import Caller
from server.errors import (
    InvalidRequest,
    NotReady,
    Overloaded,
    ToolNotAllowed,
    ToolServerDown,
    TooManyRequests,
)
from server.generation.hosted_tools_of_response import CONTAINER, HostedTools, McpCredentials, hosted_tools_of
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.registered_servers import TOKEN_HEADER
from server.hosted_tools.tool_lists import ToolList, usable_tools
from server.outbound_http.allowed_addresses import Refused
from server.protocol import ids
from server.protocol.error_object import invalid_value, unsupported_parameter, unsupported_value
from server.protocol.ids import is_output_id
from server.protocol.responses.items import CodeInterpreterCall, Item, McpListTools, ShellCall
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.tools import (
    ALL_TOOLS,
    INTERNAL_FIELDS,
    TOOL_SEARCH,
    McpTool,
    Tool,
    callable_names,
    is_served,
    read_tools,
)

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE = re.compile(r"[\t\x20-\x7e]{0,8192}")
_FORBIDDEN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept"}
)
_PROTOCOL_HEADERS = frozenset({"mcp-session-id", "mcp-protocol-version", "last-event-id", TOKEN_HEADER})
"""Headers by which a client could enter another tenant's session at a registered server."""
BUILTIN_LABELS = {
    "code_interpreter": "python",
    "shell": CONTAINER,
    "web_search": "browser",
    "web_search_2025_08_26": "browser",
    "web_search_preview": "browser",
    "web_search_preview_2025_03_11": "browser",
}
"""OpenAI's built-in tools, and the label of the registered server that implements each; vLLM's labels."""
_BUILTIN_NAMES = {"python": "code_interpreter", "browser": "web_search", CONTAINER: "shell"}
"""The names that stand for all versions of a built-in tool in what a key may use."""
BUILTIN_TOOLS = {"python": ("python",), "browser": ("search", "open", "find"), CONTAINER: ("shell",)}
_VLLM_LABELS: dict[object, dict[str, Any]] = {
    "code_interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
    "web_search_preview": {"type": "web_search_preview"},
}
"""Labels that vLLM's clients use for OpenAI's built-in tools, with any URL."""
_RESERVED = frozenset({"functions", "assistant", "browser", "python", TOOL_SEARCH})
"""Labels that a client's own server cannot have: they are namespaces of model formats."""


def discover_tools(
    servers: McpServers, caller: Caller, request: CreateResponse, items: Sequence[Item]
) -> tuple[CreateResponse, list[Tool], dict[str, McpCredentials]]:
    """The request with the servers' tools in it, its tools parsed, and the credentials, which leave it.
    Raises InvalidRequest, ToolServerDown for a built-in tool, NotReady while a server lists
    its tools. An MCP server that cannot list them becomes an item of the stream.
    """
    if not request.tools:
        check_approved_calls(hosted_tools_of(request, (), items))
        return request, [], {}
    parsed = read_tools(request.tools)
    credentials: dict[str, McpCredentials] = {}
    elements: list[dict[str, Any]] = []
    names = callable_names([tool for tool in parsed if not isinstance(tool, McpTool)])
    request_servers = _RequestServers(servers, caller)
    for index, element in enumerate(request.tools):
        mcp_element = request_servers.as_mcp_tool(element)
        if mcp_element is None:
            elements.append(element)
            if servers.refuses_unserved and not is_served(element):
                raise unsupported_value(
                    f"Tools of type {element['type'][:64]!r} are not served here: leave it out.",
                    f"tools[{index}].type",
                )
            continue
        (tool,) = read_tools([mcp_element], "tools")
        assert isinstance(tool, McpTool)
        own_credentials = _credentials(tool, f"tools[{index}]")
        request_servers.check_usage(
            tool, own_credentials, f"tools[{index}]", background=bool(request.background)
        )
        stored = _stored_tool_list(items, tool) if tool.stands_for is None else None
        offered = stored or request_servers.find_tools(tool.server_label, own_credentials)
        if offered is None:
            continue
        if tool.stands_for is not None:
            _require_builtin_tool(offered, tool)
        tool = msgspec.structs.replace(
            tool,
            headers=None,
            authorization=None,
            server_url=tool.server_url and tool.server_url.partition("?")[0],  # a query may be a secret
            listed=[listed for listed in offered.tools if f"{tool.server_label}__{listed.name}" not in names],
            listing_error=offered.error,
            container=_container(tool.stands_for, items),
        )
        listed_before = stored is not None or _is_listed_in(items, tool)
        tool = msgspec.structs.replace(tool, listed_before=listed_before)
        names |= callable_names([tool])
        credentials[tool.server_label] = replace(own_credentials, session=tool.container)
        elements.append(msgspec.to_builtins(tool))
    if request_servers.pending:
        raise NotReady(request_servers.pending)
    if credentials:
        request = msgspec.structs.replace(request, tools=elements)
        parsed = read_tools(elements)
    check_approved_calls(hosted_tools_of(request, parsed, items))
    return request, parsed, credentials


class _RequestServers:
    def __init__(self, servers: McpServers, caller: Caller) -> None:
        self.labels = servers.registered.labels_for(caller.tenant, caller.key_id)
        self._servers = servers
        self._caller = caller
        self.pending: list[Future[None]] = []

    def as_mcp_tool(self, element: dict[str, Any]) -> dict[str, Any] | None:
        """An element of `tools` as an MCP tool; None for functions and for built-in tools without a server. A
        registered server's URL may be repeated, as some clients cannot leave it out. vLLM's labels stand for
        built-in tools unless a server has that label, and `container` for the registered server.
        """
        if element.get("type") != "mcp":
            return _builtin_server(self.labels, element)
        fields = {name: value for name, value in element.items() if name not in INTERNAL_FIELDS}
        label, url = fields.get("server_label"), fields.get("server_url")
        if label in self.labels:
            own = url is not None and url == self._servers.registered.locations.get(str(label))
            if own or (label == CONTAINER and isinstance(url, str) and not self._is_allowed_url(url)):
                del fields["server_url"]
            return fields
        builtin = _VLLM_LABELS.get(label) if isinstance(label, str) else None
        if (
            builtin is None
            or fields.get("require_approval") not in (None, "never")
            or self._is_allowed_url(url)
        ):
            return fields
        return _builtin_server(self.labels, builtin, fields.get("allowed_tools")) or fields

    def _is_allowed_url(self, url: object) -> bool:
        """Whether requests may name a server at this URL."""
        if not isinstance(url, str):
            return False
        try:
            self._servers.check(url)
        except Refused:
            return False
        return True

    def find_tools(self, label: str, credentials: McpCredentials) -> ToolList | None:
        """A server's tools; None while any are fetched. Raises TooManyRequests or Overloaded."""
        try:
            result = self._servers.find_tools(label, credentials, self._caller.tenant)
        except (TooManyRequests, Overloaded):
            if not self.pending:
                raise
            return None
        if isinstance(result, ToolList):
            return result
        self.pending.append(result)
        return None

    def check_usage(self, tool: McpTool, credentials: McpCredentials, path: str, *, background: bool) -> None:
        """Raises InvalidRequest for a server, header, URL or restriction that this caller may not use."""
        _refuse_restrictions(tool.stands_for or {}, path)
        for name in ("connector_id", "tunnel_id"):
            if getattr(tool, name) is not None:
                raise unsupported_parameter(
                    "Connectors are not supported: name a server by its label or its URL.", f"{path}.{name}"
                )
        self._check_server(tool, path)
        self._check_access(tool, path)
        if credentials.url is None:
            self._check_registered_headers(tool, credentials, path)
        if background and tool.secret_field:
            raise unsupported_parameter(
                "Headers and queries for an MCP server are never stored, and a background response is taken "
                "from the store.",
                f"{path}.{tool.secret_field}",
            )

    def _check_registered_headers(self, tool: McpTool, credentials: McpCredentials, path: str) -> None:
        """Raises InvalidRequest for headers that a registered server does not get."""
        if credentials.headers and self._servers.registered.is_command(tool.server_label):
            raise InvalidRequest("This MCP server takes no headers.", param=f"{path}.headers")
        for name in credentials.headers:
            if name.lower() in _PROTOCOL_HEADERS:
                raise InvalidRequest(
                    f"The header {name[:50]!r} cannot be sent to a registered MCP server.",
                    param=f"{path}.headers",
                )

    def _check_server(self, tool: McpTool, path: str) -> None:
        label = tool.server_label
        if tool.server_url is None:
            if label not in self.labels:
                raise InvalidRequest(
                    f"No MCP server is registered as '{label}'.", param=f"{path}.server_label"
                )
            return
        if label in _RESERVED | self.labels:
            raise InvalidRequest(
                f"The server_label '{label}' is reserved; choose another one.", param=f"{path}.server_label"
            )
        try:
            self._servers.check(tool.server_url)
        except Refused as refused:
            raise unsupported_parameter(
                f"{refused} A request names MCP servers by the label under which this server's operator has "
                "registered them, or at hosts that the operator allows.",
                f"{path}.server_url",
            ) from None

    def _check_access(self, tool: McpTool, path: str) -> None:
        """Raises ToolNotAllowed for a server that the caller's key may not use.

        A server at a URL of the request is known by that URL and by its host, never by its label, which the
        request chooses.
        """
        names: tuple[str | None, ...]
        if tool.server_url is not None:
            names = (tool.server_url, tool.server_url.partition("?")[0], urlsplit(tool.server_url).hostname)
        elif tool.stands_for is not None:
            names = (tool.server_label, tool.stands_for["type"], _BUILTIN_NAMES[tool.server_label])
        else:
            names = (tool.server_label,)
        if not self._caller.may_use_tool(*names):
            raise ToolNotAllowed(str(names[0 if tool.stands_for is None else 1]), path)


def _builtin_server(
    labels: frozenset[str], element: dict[str, Any], allowed: object = None
) -> dict[str, Any] | None:
    """The MCP tool of the server that implements a built-in tool; None without one, for a client's shell, and
    for a search without access to the web, of which a browser has no stored pages.
    """
    kind = element.get("type")
    label = BUILTIN_LABELS.get(kind) if isinstance(kind, str) else None
    if label is None or label not in labels or element.get("external_web_access") is False:
        return None
    if label == CONTAINER and is_served(element):
        return None  # on the client's machine
    tools = list(BUILTIN_TOOLS[label])
    if isinstance(allowed, list) and ALL_TOOLS not in allowed:
        tools = [name for name in tools if name in allowed] or tools
    return {
        "type": "mcp",
        "server_label": label,
        "allowed_tools": tools,
        "require_approval": "never",
        "stands_for": element,
    }


def _refuse_restrictions(element: Mapping[str, Any], path: str) -> None:
    """Raises InvalidRequest for a setting of a built-in tool that its server would not obey.

    What only tunes a tool (`search_context_size`, `user_location`, `memory_limit`) is accepted.
    """
    filters, name = element.get("filters"), "environment" if element.get("type") == "shell" else "container"
    container = element.get(name)
    for domains in ("allowed_domains", "blocked_domains"):
        if isinstance(filters, dict) and filters.get(domains):
            raise _unsupported(f"{path}.filters.{domains}", "Limiting a search to domains is not supported.")
    named = _named_container(element)
    if named is not None and ids.parse_container_id(named) is None:
        raise invalid_value(
            f"There is no container {named[:64]!r}: a response's calls name the one that they ran in, and an "
            "automatic one goes on with that of the conversation.",
            f"{path}.{name}.container_id" if isinstance(container, dict) else f"{path}.{name}",
        )
    for field, why in _REFUSED_OF_CONTAINERS.items():
        value = container.get(field) if isinstance(container, dict) else None
        if value and value != {"type": "disabled"}:
            raise _unsupported(f"{path}.{name}.{field}", why)


def _named_container(element: Mapping[str, Any]) -> str | None:
    """The container that a declared tool names; None for an automatic one."""
    match element:
        case {"container": str(named)} if named != "auto":
            return named
        case {"environment": {"type": "container_reference", **rest}}:
            return str(rest.get("container_id"))
    return None


def _container(declared: Mapping[str, Any] | None, items: Sequence[Item]) -> str | None:
    """The response that the tool's container was made for, as hexadecimal digits: of the named one, else
    that of the conversation's last call; None where there is none.
    """
    if declared is None or declared["type"] not in ("code_interpreter", "shell"):
        return None
    calls = (item for item in reversed(items) if isinstance(item, CodeInterpreterCall | ShellCall))
    names = (_named_container(declared), *(call.container_id for call in calls))
    known = (ids.parse_container_id(name) for name in names if name is not None)
    return next((container.hex for container in known if container is not None), None)


_REFUSED_OF_CONTAINERS = {
    "file_ids": "This server stores no files, so no file can be put into a container.",
    "network_policy": "This server's operator decides which networks code may reach; requests cannot.",
    "skills": "This server stores no skills, so none can be put into a container.",
}


def _unsupported(path: str, why: str) -> InvalidRequest:
    return unsupported_parameter(f"{why} Leave out {path.rpartition('.')[2]}.", path)


def _require_builtin_tool(listed: ToolList, tool: McpTool) -> None:
    """Raises ToolServerDown, because a built-in tool has no mcp_list_tools item for the error."""
    required = tool.allowed_tools if isinstance(tool.allowed_tools, list) else []
    if {*required}.isdisjoint(offered.name for offered in listed.tools):
        kind = str((tool.stands_for or {}).get("type"))
        raise ToolServerDown(kind, tool.server_label, listed.error or f"it does not offer {required[0]!r}.")


def _stored_tool_list(items: Sequence[Item], tool: McpTool) -> ToolList | None:
    """The server's list in a stored mcp_list_tools item, if it has every tool that the request names."""
    for item in reversed(items):
        if not isinstance(item, McpListTools) or item.server_label != tool.server_label or item.error:
            continue
        if is_output_id(item.id):  # not written by a client
            stored = ToolList(usable_tools(tool.server_label, item.tools))
            required = tool.allowed_tools if isinstance(tool.allowed_tools, list) else []
            required = [name for name in required if name != ALL_TOOLS]
            return stored if {offered.name for offered in stored.tools} >= set(required) else None
    return None


def _is_listed_in(items: Sequence[Item], tool: McpTool) -> bool:
    """Whether an mcp_list_tools item of the input has all offered tools, so that none is sent again."""
    if tool.listing_error is not None:
        return False
    return any(
        isinstance(item, McpListTools)
        and item.server_label == tool.server_label
        and not item.error
        and all(offered in item.tools for offered in tool.offered)
        for item in items
    )


def _credentials(tool: McpTool, path: str) -> McpCredentials:
    headers = dict(tool.headers or {})
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or name.lower() in _FORBIDDEN_HEADERS or not _VALUE.fullmatch(value):
            raise InvalidRequest(
                f"The header {name[:50]!r} cannot be sent to an MCP server.", param=f"{path}.headers"
            )
    if tool.authorization is not None:
        if not _VALUE.fullmatch(tool.authorization):
            raise InvalidRequest("This is no access token.", param=f"{path}.authorization")
        headers["Authorization"] = f"Bearer {tool.authorization}"
    return McpCredentials(tool.server_url, headers)


def check_approved_calls(hosted: HostedTools) -> None:
    """Raises InvalidRequest for an approved call of a tool that the request does not offer."""
    for call in hosted.approved_calls:
        if hosted.tool_of(call) is None:
            raise InvalidRequest(
                f"The call of '{call.name[:100]}' is approved, but the tools of this request do not "
                f"include it: declare the MCP server '{call.server_label[:100]}' again.",
                param="tools",
            )
