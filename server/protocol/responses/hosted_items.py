"""Items of tools that the server itself runs, as OpenAI shapes them."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

CallStatus = Literal["in_progress", "completed", "incomplete", "calling", "failed"]
"""Of a call that the server makes itself."""


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as an MCP server describes it."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] = {}
    annotations: dict[str, Any] | None = None

    @property
    def only_reads(self) -> bool:
        """It says that it changes nothing."""
        return bool((self.annotations or {}).get("readOnlyHint"))

    @property
    def repeatable(self) -> bool:
        """It says that a second call of it does no more than the first."""
        return self.only_reads or bool((self.annotations or {}).get("idempotentHint"))


class McpListTools(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_list_tools"):
    """The tools that an MCP server offered, or why it offered none."""

    id: str
    server_label: str
    tools: list[ListedTool] = []
    error: str | None = None

    @property
    def status(self) -> Literal["completed"]:
        """Its row's; OpenAI's item has none."""
        return "completed"


class McpError(msgspec.Struct, frozen=True):
    """Why a call gave nothing: what the tool said, or what kept the server from being asked."""

    type: Literal["mcp_tool_execution_error", "mcp_protocol_error", "http_error"]
    content: list[dict[str, Any]] | UnsetType = UNSET
    code: int | UnsetType = UNSET
    message: str | UnsetType = UNSET


class McpCall(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_call"):
    """A call of an MCP server's tool that this server makes, and what came of it."""

    id: str
    status: CallStatus
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: McpError | str | None = None
    """Text only as clients of an older OpenAI replay it."""
    approval_request_id: str | None = None


class McpApprovalRequest(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_approval_request"):
    """A call that is made once somebody allows it."""

    id: str
    server_label: str
    name: str
    arguments: str

    @property
    def status(self) -> Literal["completed"]:
        return "completed"


class McpApprovalResponse(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_approval_response"):
    """The answer to such a request."""

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
    """Code that a server of tools runs."""

    id: str
    status: Literal["in_progress", "completed", "incomplete", "interpreting", "failed"]
    code: str | None
    container_id: str
    outputs: list[dict[str, Any]] | None = None


class WebSearchCall(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="web_search_call"
):
    """A search, or a look at a page, by a server of tools."""

    id: str
    status: Literal["in_progress", "searching", "completed", "failed", "incomplete"]
    action: dict[str, Any] = {}
    results: str | UnsetType = UNSET
    """What the model reads of it; ours alone."""


HostedCall = McpCall | CodeInterpreterCall | WebSearchCall
"""Calls that the server makes itself."""
HostedItem = McpListTools | HostedCall | McpApprovalRequest | McpApprovalResponse
HOSTED_ID_PREFIXES: dict[type[Any], str] = {
    McpListTools: "mcpl",
    McpCall: "mcp",
    McpApprovalRequest: "mcpr",
    McpApprovalResponse: "mcpa",
    CodeInterpreterCall: "ci",
    WebSearchCall: "ws",
}
"""What the ids of these items begin with."""
