"""Output items of calls that the server makes: mcp_call, code_interpreter_call, web_search_call. Pure."""

import json
import re
from typing import Any, Literal
from uuid import UUID

import msgspec

from server.hosted_tools.tool_specs import CallType, ToolResult, result_text
from server.protocol.responses import events as wire
from server.protocol.responses.items import CodeInterpreterCall, HostedCall, McpCall, WebSearchCall

FinalStatus = Literal["completed", "failed", "incomplete"]
ITEM_TYPES: dict[CallType, type[HostedCall]] = {
    "mcp": McpCall,
    "code": CodeInterpreterCall,
    "search": WebSearchCall,
}
IN_PROGRESS_EVENTS: dict[
    CallType, type[wire.McpCallInProgress | wire.CodeInProgress | wire.SearchInProgress]
] = {
    "mcp": wire.McpCallInProgress,
    "code": wire.CodeInProgress,
    "search": wire.SearchInProgress,
}
MAX_SOURCES = 50
_URL = re.compile(r"https?://[^\s<>\"')\]\u3011]+")


def started_item(form: CallType, item_id: str, response: UUID, call: McpCall) -> HostedCall:
    """The item when it is added to the output."""
    match form:
        case "mcp":
            return msgspec.structs.replace(call, id=item_id)
        case "code":
            return CodeInterpreterCall(item_id, "in_progress", "", f"cntr_{response.hex}")
        case "search":
            return WebSearchCall(item_id, "in_progress", {"type": "search", "query": ""})


def with_arguments(item: HostedCall, call: McpCall) -> HostedCall:
    """The item with the call's arguments."""
    match item:
        case McpCall():
            return msgspec.structs.replace(item, arguments=call.arguments)
        case CodeInterpreterCall():
            return msgspec.structs.replace(item, code=code_of(call.arguments))
        case WebSearchCall():
            return msgspec.structs.replace(item, action=_action(call.name, _parse_object(call.arguments)))


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
        case WebSearchCall():
            text = result_text(outcome)
            action = item.action
            if action["type"] != "search" and outcome.urls:
                action = {**action, "url": outcome.urls[0]}
            if tells_sources and action["type"] == "search":
                urls = list(dict.fromkeys(outcome.urls or _URL.findall(text)))[:MAX_SOURCES]
                action = {**action, "sources": [{"type": "url", "url": url} for url in urls]}
            results = text if has_result else msgspec.UNSET
            return msgspec.structs.replace(item, status=status, action=action, results=results)


def end_event(
    form: CallType, *, failed: bool
) -> type[wire.McpCallCompleted | wire.McpCallFailed | wire.CodeCompleted | wire.SearchCompleted]:
    """The event of a call's end. Only MCP calls have an event for failures."""
    match form:
        case "mcp":
            return wire.McpCallFailed if failed else wire.McpCallCompleted
        case "code":
            return wire.CodeCompleted
        case "search":
            return wire.SearchCompleted


def code_of(arguments: str) -> str:
    """The `code` in a call's JSON arguments; else the arguments themselves, as gpt-oss writes them."""
    code = _parse_object(arguments).get("code")
    return code if isinstance(code, str) else arguments


def _parse_object(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _action(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    match name:
        case "open":
            return {"type": "open_page", "url": str(arguments.get("id", ""))}
        case "find":
            pattern = str(arguments.get("pattern", ""))
            return {"type": "find_in_page", "pattern": pattern, "url": str(arguments.get("cursor", ""))}
    query = str(arguments.get("query", ""))
    return {"type": "search", "query": query, "queries": [query]}
