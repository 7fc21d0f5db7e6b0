"""HostedTools: the MCP servers and tools that a response may call, approvals, call limit, due calls. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from server.protocol.responses.items import (
    Execution,
    HostedCall,
    Item,
    ListedTool,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpError,
    Message,
    PairedCall,
    Reasoning,
)
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.tools import TOOL_SEARCH, ClientTool, McpTool, Tool, ToolSearchTool

CallType = Literal["mcp", "code", "search", "shell"]
CONTAINER = "container"
"""The label of the registered server with a shell: `holdfast-runner` can be it."""
SOURCES = "web_search_call.action.sources"
"""The value of `include` for the URLs that a search found."""


@dataclass(frozen=True, slots=True)
class ListedServer:
    """One MCP server's tools, or the error of listing them."""

    label: str
    tools: Sequence[ListedTool]
    error: str | None = None
    is_new: bool = True
    """False if the conversation has the list already, so that it is not sent again."""
    approval_required: frozenset[str] = frozenset()
    """The names of tools whose calls need an approval."""
    call_type: CallType = "mcp"
    container: str | None = None
    """The response whose container the calls run in, as 32 hexadecimal digits; None for this one's own."""


@dataclass(frozen=True, slots=True)
class HostedTools:
    """The MCP servers of a response."""

    servers: Sequence[ListedServer] = ()
    max_calls: int | None = None
    approved_calls: Sequence[McpApprovalRequest] = ()
    """Calls that the input approves; they are made before the first turn."""
    include_sources: bool = False
    of_client: frozenset[str] = frozenset()
    """The names of OpenAI's tools that the client runs."""
    tag_approval: Callable[[McpApprovalRequest], McpApprovalRequest] | None = None
    """Appends the MAC to an approval request's id."""
    search: Execution | None = None
    """Who answers the model's searches for deferred tools; None if it has no such tool."""

    @property
    def by_label(self) -> Mapping[str, ListedServer]:
        return {listed.label: listed for listed in self.servers}

    def tool_of(self, call: McpCall | McpApprovalRequest) -> ListedTool | None:
        """The tool that is called; None if the response does not offer it."""
        listed = self.by_label.get(call.server_label)
        return next((tool for tool in listed.tools if tool.name == call.name), None) if listed else None


@dataclass(frozen=True, slots=True)
class McpCredentials:
    """A request's URL and headers for one MCP server. Never stored and never logged."""

    url: str | None = field(default=None, repr=False)
    """None for a registered server."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    session: str | None = None
    """The session at a registered server, unless a header names one; None for the response's own."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The output of a call, or its error; both None if the call was not finished."""

    output: str | None = None
    error: McpError | None = None
    urls: Sequence[str] = ()
    """The sources of a search or a page, if the server names them."""
    tools: Sequence[dict[str, Any]] = ()
    """The tools that a search for deferred ones has found."""
    seconds: float | None = None
    """From the call to its result; None if it was not made here."""


@dataclass(frozen=True, slots=True)
class DueCall:
    """A call to make, and its item's index in the output."""

    index: int
    call: McpCall
    within_limit: bool
    """False if `max_tool_calls` calls were made before."""
    offered: bool = True
    repeatable: bool = False
    """Whether the call does no harm if it was made before a crash and is made again."""


@dataclass(frozen=True, slots=True)
class PendingToolWork:
    """Work that a run waits for: calls, or the model's next turn if there are none."""

    calls: Sequence[DueCall]
    output: Sequence[Item]
    turn: int
    """The number of the turn that has ended; the first is 0."""
    output_tokens: int
    """Of all turns."""
    dropped_items: int
    """Items that the prompt of the turn that has ended left out."""


def hosted_tools_of(
    request: CreateResponse,
    tools: Sequence[Tool],
    items: Sequence[Item] = (),
    tag: Callable[[McpApprovalRequest], McpApprovalRequest] | None = None,
    server_limit: int | None = None,
) -> HostedTools:
    """The hosted tools of a request after discovery; `server_limit` is the server's own limit of calls."""
    servers = [
        ListedServer(
            tool.server_label,
            tool.offered,
            tool.listing_error,
            not tool.listed_before and tool.stands_for is None,
            frozenset(listed.name for listed in tool.offered if tool.needs_approval(listed)),
            _call_type(tool),
            tool.container,
        )
        for tool in tools
        if isinstance(tool, McpTool)
    ]
    search = next((tool.execution for tool in tools if isinstance(tool, ToolSearchTool)), None)
    if search is not None:
        search_only = [ListedTool(TOOL_SEARCH, annotations={"readOnlyHint": True})]
        servers.append(ListedServer(TOOL_SEARCH, search_only, is_new=False))
    limit, sources = call_limit(request, server_limit), SOURCES in (request.include or ())
    of_client = frozenset(tool.name for tool in tools if isinstance(tool, ClientTool))
    return HostedTools(servers, limit, approved_calls(items), sources, of_client, tag, search)


def call_limit(request: CreateResponse, server_limit: int | None) -> int | None:
    """The smaller of the request's and the server's limit of calls; None for no limit."""
    limits = [limit for limit in (request.max_tool_calls, server_limit) if limit is not None]
    return min(limits, default=None)


def _call_type(tool: McpTool) -> CallType:
    if tool.stands_for is None:
        return "mcp"
    types: dict[str, CallType] = {"code_interpreter": "code", "shell": "shell"}
    return types.get(tool.stands_for["type"], "search")


def approved_calls(items: Sequence[Item]) -> list[McpApprovalRequest]:
    """The calls that were approved after the last output of the model, in the order of the approvals."""
    answers: dict[str, McpApprovalResponse] = {}
    requests: dict[str, McpApprovalRequest] = {}
    before_output = False
    for item in reversed(items):
        match item:
            case McpApprovalResponse() if not before_output:
                answers[item.approval_request_id] = item
            case McpApprovalRequest():
                requests[item.id] = item
                before_output = True
            case Message(role="assistant") | Reasoning():
                before_output = True
            case _ if isinstance(item, PairedCall | HostedCall):
                before_output = True
    allowed = [name for name, answer in reversed(answers.items()) if answer.approve and name in requests]
    return [requests[name] for name in allowed]
