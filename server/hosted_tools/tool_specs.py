"""What the server itself does for one response: the tools that it offers, and how a model reads them.

Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from server.protocol.responses.hosted_items import (
    CodeInterpreterCall,
    HostedCall,
    ListedTool,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpError,
    McpListTools,
    WebSearchCall,
)
from server.protocol.responses.items import (
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    OtherItem,
    Reasoning,
)
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.tools import McpTool, Tool

UNFINISHED = "The call was not finished."
UNANSWERED = "The user has not allowed this call."
DENIED = "The user did not allow this call."


CallType = Literal["mcp", "code", "search"]
SOURCES = "web_search_call.action.sources"
"""The value of `include` that asks for the pages that a search found."""


@dataclass(frozen=True, slots=True)
class ListedServer:
    """One server's tools as the stream tells them, or why there are none."""

    label: str
    tools: Sequence[ListedTool]
    error: str | None = None
    is_new: bool = True
    """Else the conversation has the list already."""
    approval_required: frozenset[str] = frozenset()
    """The tools that are called only when somebody allows it."""
    call_type: CallType = "mcp"
    """How its calls are told."""


@dataclass(frozen=True, slots=True)
class HostedTools:
    """The MCP servers of a response."""

    servers: Sequence[ListedServer] = ()
    max_calls: int | None = None
    approved_calls: Sequence[McpApprovalRequest] = ()
    """Calls that are made before the model says anything."""
    include_sources: bool = False
    tag_approval: Callable[[McpApprovalRequest], McpApprovalRequest] | None = None
    """Gives a request for approval the id by which it is known again."""
    by_label: Mapping[str, ListedServer] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_label", {listed.label: listed for listed in self.servers})

    def needs_approval(self, label: str, name: str) -> bool:
        """Whether somebody must allow that call."""
        return name in self.by_label[label].approval_required

    def offers(self, call: McpCall) -> bool:
        """Whether the request lets its model have that tool."""
        listed = self.by_label.get(call.server_label)
        return listed is not None and any(tool.name == call.name for tool in listed.tools)

    def repeatable(self, call: McpCall) -> bool:
        """Whether a call that was perhaps made may be made again."""
        listed = self.by_label.get(call.server_label)
        return listed is not None and any(tool.repeatable for tool in listed.tools if tool.name == call.name)


@dataclass(frozen=True, slots=True)
class McpCredentials:
    """How a request reaches one server: what is never stored, and never shown."""

    url: str | None = field(default=None, repr=False)
    """Else the one under which the operator has registered it."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave: its output, or why there is none."""

    output: str | None = None
    error: McpError | None = None
    urls: Sequence[str] = ()
    """Where a search or a page that a browser read comes from, if its server says so."""


@dataclass(frozen=True, slots=True)
class DueCall:
    """A call that is to be made, and its item's place in the output."""

    index: int
    call: McpCall
    within_limit: bool
    """Else `max_tool_calls` were made before."""
    offered: bool = True
    """Else the request has no such tool of that server's."""
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class PendingToolWork:
    """What a run waits for: calls to be made, or, once there are none, the model's next turn."""

    calls: Sequence[DueCall]
    output: Sequence[Item]
    turn: int
    """Of the turn that is over; the first is 0."""
    output_tokens: int
    """Output tokens until now."""


def hosted_tools_of(
    request: CreateResponse,
    tools: Sequence[Tool],
    items: Sequence[Item] = (),
    tag: Callable[[McpApprovalRequest], McpApprovalRequest] | None = None,
    most_calls: int | None = None,
) -> HostedTools:
    """The servers of a request whose tools were listed, and the calls that its items allow.

    `most_calls` bounds what the request may have made.
    """
    servers = [
        ListedServer(
            tool.server_label,
            tool.offered,
            tool.listing_error,
            not tool.listed_before and tool.stands_for is None,
            frozenset(listed.name for listed in tool.offered if tool.needs_approval(listed)),
            _call_type(tool),
        )
        for tool in tools
        if isinstance(tool, McpTool)
    ]
    most = call_limit(request, most_calls)
    return HostedTools(servers, most, approved_calls(items), SOURCES in (request.include or ()), tag)


def call_limit(request: CreateResponse, most_calls: int | None) -> int | None:
    """Tool calls that may be made for a request, where the server makes at most so many; None: any number."""
    limits = [limit for limit in (request.max_tool_calls, most_calls) if limit is not None]
    return min(limits, default=None)


def _call_type(tool: McpTool) -> CallType:
    if tool.stands_for is None:
        return "mcp"
    return "code" if tool.stands_for["type"] == "code_interpreter" else "search"


def approved_calls(items: Sequence[Item]) -> list[McpApprovalRequest]:
    """The calls that were allowed after the model's last word."""
    answers: dict[str, McpApprovalResponse] = {}
    asked: dict[str, McpApprovalRequest] = {}
    last_word = False
    for item in reversed(items):
        match item:
            case McpApprovalResponse() if not last_word:
                answers[item.approval_request_id] = item
            case McpApprovalRequest():
                asked[item.id] = item
                last_word = True
            case Message(role="assistant") | Reasoning() | FunctionCall() | CustomToolCall():
                last_word = True
            case McpCall() | CodeInterpreterCall() | WebSearchCall():
                last_word = True
    allowed = [name for name, answer in reversed(answers.items()) if answer.approve and name in asked]
    return [asked[name] for name in allowed]


def items_for_model(items: Sequence[Item]) -> list[Item]:
    """The items as a model reads them: a call of the server's is a call like any other, with its output."""
    called = {item.approval_request_id for item in items if isinstance(item, McpCall)}
    answers = {item.approval_request_id: item for item in items if isinstance(item, McpApprovalResponse)}
    return [read for item in items for read in _as_model_items(item, called, answers)]


def _as_model_items(
    item: Item, called: set[str | None], answers: Mapping[str, McpApprovalResponse]
) -> Iterator[Item]:
    match item:
        case McpListTools() | McpApprovalResponse():
            return
        case McpApprovalRequest() if item.id in called:
            return
        case McpCall():
            yield from _as_function(item, result_text(item))
        case McpApprovalRequest():
            yield from _as_function(item, _approval_text(answers.get(item.id)))
        case CodeInterpreterCall():
            yield from _as_call(
                item.id, "python", "python", _json({"code": item.code or ""}), tool_result_of(item)
            )
        case WebSearchCall(results=str()):
            name, arguments = _search_call(item.action)
            yield from _as_call(item.id, "browser", name, _json(arguments), tool_result_of(item))
        case WebSearchCall():
            yield OtherItem(item.id, "completed", {"type": "web_search_call", "action": item.action})
        case _:
            yield item


def _as_function(item: McpCall | McpApprovalRequest, output: str) -> Iterator[Item]:
    return _as_call(item.id, item.server_label, item.name, item.arguments, ToolResult(output))


def _as_call(name: str, label: str, tool: str, arguments: str, outcome: ToolResult) -> Iterator[Item]:
    call_id = name or f"{label}:{tool}"
    yield FunctionCall(name, "completed", call_id, tool, arguments, label)
    yield FunctionCallOutput(name, "completed", call_id, result_text(outcome))


def _json(arguments: Mapping[str, object]) -> str:
    return msgspec.json.encode(arguments).decode()


def _search_call(action: Mapping[str, Any]) -> tuple[str, dict[str, object]]:
    """The call that an action tells of."""
    match action:
        case {"type": "open_page", "url": url}:
            return "open", {"id": url}
        case {"type": "find_in_page", "pattern": pattern}:
            return "find", {"pattern": pattern}
    return "search", {"query": action.get("query") or ""}


def tool_result_of(item: HostedCall) -> ToolResult:
    """What came of a call, from its item."""
    match item:
        case McpCall():
            return ToolResult(item.output, item.error if not isinstance(item.error, str) else None)
        case CodeInterpreterCall():
            logs = [str(output.get("logs", "")) for output in item.outputs or []]
            text = "\n".join(logs) if item.outputs is not None else None
        case WebSearchCall():
            text = item.results if isinstance(item.results, str) else None
    if item.status == "failed":
        return ToolResult(error=McpError("mcp_protocol_error", message=text or ""))
    return ToolResult(text)


def _approval_text(answer: McpApprovalResponse | None) -> str:
    if answer is None:
        return UNANSWERED
    if answer.approve:
        return UNFINISHED
    return f"{DENIED} {answer.reason}" if answer.reason else DENIED


def result_text(call: McpCall | ToolResult) -> str:
    """A call's result in words."""
    if call.output is not None:
        return call.output
    if call.error is None:
        return UNFINISHED
    if isinstance(call.error, str):
        return call.error
    if call.error.content:
        return "\n".join(str(part.get("text", "")) for part in call.error.content)
    return call.error.message or "The call failed."
