"""Items of hosted tools, which the server executes: MCP, code interpreter, web search."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

CallStatus = Literal["in_progress", "completed", "incomplete", "calling", "failed"]
"""Status of an MCP call."""


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as an MCP server describes it."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] = {}
    annotations: dict[str, Any] | None = None

    @property
    def only_reads(self) -> bool:
        """The tool declares `readOnlyHint`."""
        return bool((self.annotations or {}).get("readOnlyHint"))

    @property
    def repeatable(self) -> bool:
        """The tool declares itself read-only or idempotent, so that a call may be repeated after a crash."""
        return self.only_reads or bool((self.annotations or {}).get("idempotentHint"))


class McpListTools(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_list_tools"):
    """The tools of an MCP server, or the error of listing them."""

    id: str
    server_label: str
    tools: list[ListedTool] = []
    error: str | None = None

    @property
    def status(self) -> Literal["completed"]:
        """The status in the item's row; OpenAI's item has none."""
        return "completed"


class McpError(msgspec.Struct, frozen=True):
    """The error of a call, from the tool, the protocol or the HTTP connection."""

    type: Literal["mcp_tool_execution_error", "mcp_protocol_error", "http_error"]
    content: list[dict[str, Any]] | UnsetType = UNSET
    code: int | UnsetType = UNSET
    message: str | UnsetType = UNSET


class McpCall(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_call"):
    """A call of an MCP server's tool, with its output or error."""

    id: str
    status: CallStatus
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: McpError | str | None = None
    """A string only in items that clients replay from earlier versions of OpenAI's API."""
    approval_request_id: str | None = None


class McpApprovalRequest(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_approval_request"):
    """A call that waits for the client's approval."""

    id: str
    server_label: str
    name: str
    arguments: str

    @property
    def status(self) -> Literal["completed"]:
        return "completed"


class McpApprovalResponse(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_approval_response"):
    """The client's answer to an approval request."""

    id: str
    approval_request_id: str
    approve: bool
    reason: str | None = None

    @property
    def status(self) -> Literal["completed"]:
        return "completed"


class CodeInterpreterCall(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="code_interpreter_call"
):
    """Code executed by a tool server."""

    id: str
    status: Literal["in_progress", "completed", "incomplete", "interpreting", "failed"]
    code: str | None
    container_id: str
    outputs: list[dict[str, Any]] | None = None


class WebSearchCall(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="web_search_call"
):
    """A web search or page visit by a tool server."""

    id: str
    status: Literal["in_progress", "searching", "completed", "failed", "incomplete"]
    action: dict[str, Any] = {}
    results: str | UnsetType = UNSET
    """The text that the model reads; an extension."""


HostedCall = McpCall | CodeInterpreterCall | WebSearchCall
"""Calls of hosted tools."""
HostedItem = McpListTools | HostedCall | McpApprovalRequest | McpApprovalResponse
HOSTED_ID_PREFIXES: dict[type[Any], str] = {
    McpListTools: "mcpl",
    McpCall: "mcp",
    McpApprovalRequest: "mcpr",
    McpApprovalResponse: "mcpa",
    CodeInterpreterCall: "ci",
    WebSearchCall: "ws",
}
"""Id prefixes of these items, without the underscore."""
