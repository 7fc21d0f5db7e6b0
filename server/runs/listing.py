"""The MCP servers that a request names: checked, and asked for their tools, before the response exists.

What they offer is written into the request, so that a run which is taken over offers the same.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from server.errors import InvalidRequest
from server.tools.mcp import McpServers
from server.wire.request import CreateResponse
from server.wire.tools import McpTool, read_tools

Headers = Mapping[str, Mapping[str, str]]


def list_tools(servers: McpServers, request: CreateResponse) -> tuple[CreateResponse, Headers]:
    """The request with the servers' tools in it, and the headers for them, which are no longer in it.

    Raises InvalidRequest or DecodeFailure. A server that cannot list its tools is told of in the stream.
    """
    headers: dict[str, Mapping[str, str]] = {}
    tools: list[dict[str, Any]] = []
    for index, element in enumerate(request.tools or []):
        if element.get("type") != "mcp":
            tools.append(element)
            continue
        bare = {name: value for name, value in element.items() if name not in ("listed", "listing_error")}
        (tool,) = read_tools([bare], "tools")
        assert isinstance(tool, McpTool)
        _refuse(servers, tool, f"tools[{index}]", background=bool(request.background))
        own = dict(tool.headers or {})
        if tool.authorization is not None:
            own["Authorization"] = f"Bearer {tool.authorization}"
        found = servers.listing(tool.server_label, own)
        headers[tool.server_label] = own
        listed = msgspec.structs.replace(
            tool, headers=None, authorization=None, listed=list(found.tools), listing_error=found.error
        )
        tools.append(msgspec.to_builtins(listed))
    if not headers:
        return request, headers
    return msgspec.structs.replace(request, tools=tools), headers


def _refuse(servers: McpServers, tool: McpTool, path: str, *, background: bool) -> None:
    for name in ("server_url", "connector_id", "tunnel_id"):
        if getattr(tool, name) is not None:
            raise InvalidRequest(
                "MCP servers are used by the label under which this server's operator has registered them.",
                param=f"{path}.{name}",
                code="unsupported_parameter",
            )
    if tool.require_approval != "never":
        raise InvalidRequest(
            "Calls cannot wait for an approval here: set require_approval to 'never', or leave the tool out.",
            param=f"{path}.require_approval",
            code="unsupported_parameter",
        )
    if tool.server_label not in servers.labels:
        raise InvalidRequest(
            f"No MCP server is registered here as '{tool.server_label}'.",
            param=f"{path}.server_label",
        )
    if background and (tool.headers or tool.authorization):
        raise InvalidRequest(
            "Headers for an MCP server are never stored, and a background response is taken from the store.",
            param=f"{path}.headers" if tool.headers else f"{path}.authorization",
            code="unsupported_parameter",
        )
