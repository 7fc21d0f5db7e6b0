"""Items of hosted calls (mcp_call, code_interpreter_call, web_search_call), in output and prompt. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from server.generation.call_arguments import code_of, parse_object
from server.generation.client_tools import as_function, client_call
from server.generation.hosted_tools_of_response import CONTAINER, CallType, ToolResult
from server.protocol.responses import events as wire
from server.protocol.responses.items import (
    AnsweredByItem,
    ClientCall,
    ClientOutput,
    CodeInterpreterCall,
    FunctionCall,
    FunctionCallOutput,
    HostedCall,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpError,
    McpListTools,
    OtherItem,
    SettingsItem,
    ShellCall,
    ShellCallOutput,
    ShellOutcome,
    ShellOutput,
    ToolSearchCall,
    ToolSearchOutput,
    WebSearchCall,
    awaits_client,
)
from server.protocol.responses.tools import MAX_URLS, TOOL_SEARCH, URLS_KEY

FinalStatus = Literal["completed", "failed", "incomplete"]


class CallEvents(NamedTuple):
    """The item of a type of call, and the events of its beginning and end."""

    item: type[HostedCall]
    in_progress: type[wire.ItemEvent]
    completed: type[wire.ItemEvent]
    failed: type[wire.ItemEvent]
    """Only MCP calls have one of their own."""


CALL_EVENTS: dict[CallType, CallEvents] = {
    "mcp": CallEvents(McpCall, wire.McpCallInProgress, wire.McpCallCompleted, wire.McpCallFailed),
    "code": CallEvents(CodeInterpreterCall, wire.CodeInProgress, wire.CodeCompleted, wire.CodeCompleted),
    "search": CallEvents(WebSearchCall, wire.SearchInProgress, wire.SearchCompleted, wire.SearchCompleted),
}
MAX_SOURCES = 50
_URL_IN_TEXT = re.compile(r"https?://[^\s<>\"')\]\u3011]+")


def started_item(kind: type[HostedCall], item_id: str, container: str, call: McpCall) -> HostedCall:
    if kind is McpCall:
        return msgspec.structs.replace(call, id=item_id)
    if kind is CodeInterpreterCall:
        return CodeInterpreterCall(item_id, "in_progress", "", container)
    return WebSearchCall(item_id, "in_progress", {"type": "search", "query": ""})


def used_container(output: Sequence[Item]) -> bool:
    """Whether a call of a response with this output has run in a container."""
    return any(
        isinstance(item, ShellCallOutput)
        or (isinstance(item, CodeInterpreterCall) and item.status == "completed")
        for item in output
    )


def with_arguments(item: HostedCall, call: McpCall) -> HostedCall:
    match item:
        case McpCall():
            return msgspec.structs.replace(item, arguments=call.arguments)
        case CodeInterpreterCall():
            return msgspec.structs.replace(item, code=code_of(call.arguments))
        case ToolSearchCall():
            return msgspec.structs.replace(item, arguments=parse_object(call.arguments))
        case ShellCall():
            read = client_call("shell", item.id, item.status, item.call_id, call.arguments)
            assert isinstance(read, ShellCall)
            return msgspec.structs.replace(item, action=read.action)
        case WebSearchCall():
            return msgspec.structs.replace(item, action=_action(call.name, parse_object(call.arguments)))


def finished_item(
    item: HostedCall, status: FinalStatus, outcome: ToolResult, *, tells_sources: bool
) -> HostedCall:
    """The item after the call. The output is always in it, because the conversation continues from it."""
    has_result = outcome.output is not None or outcome.error is not None
    match item:
        case McpCall():
            return msgspec.structs.replace(item, status=status, output=outcome.output, error=outcome.error)
        case CodeInterpreterCall():
            outputs = [{"type": "logs", "logs": result_text(outcome)}] if has_result else None
            return msgspec.structs.replace(item, status=status, outputs=outputs)
        case ToolSearchCall() | ShellCall():
            return msgspec.structs.replace(item, status=status if status == "incomplete" else "completed")
        case WebSearchCall():
            text = result_text(outcome)
            action = item.action
            if action["type"] != "search" and outcome.urls:
                action = {**action, "url": outcome.urls[0]}
            if tells_sources and action["type"] == "search":
                urls = list(dict.fromkeys(outcome.urls or _URL_IN_TEXT.findall(text)))[:MAX_SOURCES]
                action = {**action, "sources": [{"type": "url", "url": url} for url in urls]}
            results = text if has_result else msgspec.UNSET
            return msgspec.structs.replace(item, status=status, action=action, results=results)


_read_outputs = msgspec.json.Decoder(list[ShellOutput]).decode


def shell_output(outcome: ToolResult) -> list[ShellOutput]:
    """The outputs of a shell call's commands; of a failed call its error, as that of one command."""
    try:
        return _read_outputs(outcome.output or "")
    except msgspec.DecodeError:
        return [ShellOutput("", result_text(outcome), ShellOutcome("exit", 1))]


def _action(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    match name:
        case "open":
            return {"type": "open_page", "url": str(arguments.get("id", ""))}
        case "find":
            pattern = str(arguments.get("pattern", ""))
            return {"type": "find_in_page", "pattern": pattern, "url": str(arguments.get("cursor", ""))}
    query = str(arguments.get("query", ""))
    return {"type": "search", "query": query, "queries": [query]}


MAX_URL = 2048
_SOURCE_URL = re.compile(r"https?://[^\s\x00-\x1f]+")


def source_urls(meta: dict[str, Any] | None) -> tuple[str, ...]:
    """The URLs in a result's `_meta`, without invalid ones."""
    value = (meta or {}).get(URLS_KEY)
    urls = value[:MAX_URLS] if isinstance(value, list) else []
    return tuple(
        url for url in urls if isinstance(url, str) and len(url) <= MAX_URL and _SOURCE_URL.fullmatch(url)
    )


UNFINISHED = "The call was not finished."

UNANSWERED = "The user has not allowed this call."

DENIED = "The user did not allow this call."


def items_for_model(
    items: Sequence[Item],
    describe: Callable[[ToolSearchOutput], str] = lambda output: _json(output.tools),
) -> list[Item]:
    """The items as a model reads them: hosted calls, and outputs without a call, as function calls with their
    outputs, as chat templates write them. Tools and settings are no items of a prompt. `describe` tells the
    tools that a search has found.
    """
    called = {item.approval_request_id for item in items if isinstance(item, McpCall)}
    called |= {item.call_id for item in items if isinstance(item, ToolSearchOutput | ShellCallOutput)}
    answers = {item.approval_request_id: item for item in items if isinstance(item, McpApprovalResponse)}
    readable = [item for item in items if not isinstance(item, SettingsItem)]
    return [converted for item in readable for converted in _as_model_items(item, called, answers, describe)]


def _as_model_items(
    item: Item,
    called: set[str | None],
    answers: Mapping[str, McpApprovalResponse],
    describe: Callable[[ToolSearchOutput], str],
) -> Iterator[Item]:
    match item:
        case McpListTools() | McpApprovalResponse():
            return
        case ToolSearchCall() | ShellCall():
            yield from _as_answered_by_item(item, called)
        case ToolSearchOutput():
            yield FunctionCallOutput(item.id, "completed", item.call_id or TOOL_SEARCH, describe(item))
        case FunctionCallOutput(call_id=None, name=str(name)):
            yield FunctionCall(item.id, "completed", item.id, name, "{}", item.namespace)
            yield msgspec.structs.replace(item, call_id=item.id)
        case McpApprovalRequest() if item.id in called:
            return
        case McpCall() | McpApprovalRequest():
            text = result_text(item) if isinstance(item, McpCall) else _approval_text(answers.get(item.id))
            yield from _as_call(item.id, item.server_label, item.name, item.arguments, text)
        case CodeInterpreterCall():
            text, code = result_text(tool_result_of(item)), _json({"code": item.code or ""})
            yield from _as_call(item.id, "python", "python", code, text)
        case WebSearchCall(results=str()):
            name, arguments = _search_call(item.action)
            text = result_text(tool_result_of(item))
            yield from _as_call(item.id, "browser", name, _json(arguments), text)
        case WebSearchCall():
            yield OtherItem(item.id, "completed", {"type": "web_search_call", "action": item.action})
        case _:
            yield from as_function(item) if isinstance(item, ClientCall | ClientOutput) else (item,)


def _as_answered_by_item(item: AnsweredByItem, called: set[str | None]) -> Iterator[Item]:
    """The call, and that it was not finished if its result, which would be an item, is missing."""
    call_id = item.call_id or TOOL_SEARCH
    if isinstance(item, ToolSearchCall):
        yield FunctionCall(item.id, "completed", call_id, TOOL_SEARCH, _json(item.arguments))
    else:
        namespace = UNSET if item.container_id is None else CONTAINER
        yield from (msgspec.structs.replace(call, namespace=namespace) for call in as_function(item))
    if not awaits_client(item) and item.call_id not in called:
        yield FunctionCallOutput(item.id, "completed", call_id, UNFINISHED)


def _as_call(item_id: str, label: str, tool: str, arguments: str, output: str) -> Iterator[Item]:
    call_id = item_id or f"{label}:{tool}"
    yield FunctionCall(item_id, "completed", call_id, tool, arguments, label)
    yield FunctionCallOutput(item_id, "completed", call_id, output)


def _json(arguments: object) -> str:
    return msgspec.json.encode(arguments).decode()


def _search_call(action: Mapping[str, Any]) -> tuple[str, dict[str, object]]:
    match action:
        case {"type": "open_page", "url": url}:
            return "open", {"id": url}
        case {"type": "find_in_page", "pattern": pattern}:
            return "find", {"pattern": pattern}
    return "search", {"query": action.get("query") or ""}


def tool_result_of(item: HostedCall | ToolSearchOutput | ShellCallOutput) -> ToolResult:
    """The result that was made into the item."""
    match item:
        case ToolSearchOutput():
            return ToolResult(tools=item.tools)
        case ShellCallOutput():
            return ToolResult(_json(item.output))
        case McpCall():
            return ToolResult(item.output, item.error if not isinstance(item.error, str) else None)
        case CodeInterpreterCall():
            logs = [str(output.get("logs", "")) for output in item.outputs or []]
            text = "\n".join(logs) if item.outputs is not None else None
        case WebSearchCall():
            text = item.results if isinstance(item.results, str) else None
        case ToolSearchCall() | ShellCall():
            return ToolResult()
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
    """A call's output or error as text for the model."""
    if call.output is not None:
        return call.output
    if call.error is None:
        return UNFINISHED
    if isinstance(call.error, str):
        return call.error
    if call.error.content:
        return "\n".join(str(part.get("text", "")) for part in call.error.content)
    return call.error.message or "The call failed."
