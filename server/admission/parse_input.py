"""A request's input parsed: its items, `previous_input_messages`, tools among the items, its prompt template.

`read_templated_input` puts the items of a stored template before the input. `previous_input_messages`, vLLM's
history that the client sends, are a chat's messages (`role`) or harmony's (`author`, `channel`, `recipient`).
System and developer messages of that history are dropped: instructions are those of the newest request.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from server.compaction.inline import COMPACTION_TRIGGER
from server.errors import NotFound
from server.protocol.completions.chat_messages import read_elements, read_message
from server.protocol.error_object import DecodeFailure
from server.protocol.responses.input import AdditionalTools, CompactionTrigger, InputItem, read_input
from server.protocol.responses.items import CustomToolCall, FunctionCall, Item
from server.protocol.responses.prompt_templates import Template, fill, read_template
from server.protocol.responses.request import ContextManagement, CreateResponse, PromptReference
from server.protocol.responses.tools import declaration
from server.store.content import prompt_templates
from server.store.database import Connection, Database

MAX_VERSION_DIGITS = 9
"""Of a version; longer ones are unknown without a query."""

PARAM = "previous_input_messages"

_FUNCTIONS = "functions."

_LEFT_OUT = ("system", "developer")


def read_templated_input(
    database: Database, tenant: str, request: CreateResponse
) -> tuple[CreateResponse, list[InputItem]]:
    """The template's items and the parsed input. Raises NotFound, and as `read_request_input` does."""
    if request.prompt is None:
        return read_request_input(request)
    reference = request.prompt
    version, template = database.retry(lambda connection: _find(connection, tenant, reference))
    request, items = expand(request, reference, version, template)
    request, input_items = read_request_input(request)
    return request, [*items, *input_items]


def read_request_input(request: CreateResponse) -> tuple[CreateResponse, list[InputItem]]:
    """The parsed input, and the request with the tools and the compaction trigger that the input had.

    Raises DecodeFailure. Pure.
    """
    if request.previous_input_messages:
        before = read_previous(request.previous_input_messages)
        request = msgspec.structs.replace(request, previous_input_messages=None)
        given = [*before, *(read_input(request.input) if request.input else [])]
    else:
        given = read_input(_required_input(request))
    if CompactionTrigger() in given:
        request = _with_compaction_trigger(request, given)
    more = [tool for item in given if isinstance(item, AdditionalTools) for tool in item.tools]
    if more:
        tools = [*(request.tools or []), *map(declaration, more)]
        request = msgspec.structs.replace(request, tools=tools)
    return request, given


def _with_compaction_trigger(request: CreateResponse, given: Sequence[InputItem]) -> CreateResponse:
    """The trigger as a `context_management` entry: it is no item, and the request is stored."""
    if given.count(CompactionTrigger()) > 1:
        raise DecodeFailure("Only one compaction_trigger may be given.", "input", "invalid_value")
    if given[-1] != CompactionTrigger():
        raise DecodeFailure("The compaction_trigger must be the last input item.", "input", "invalid_value")
    settings = [*(request.context_management or ()), ContextManagement(COMPACTION_TRIGGER)]
    return msgspec.structs.replace(request, context_management=settings)


def _required_input(request: CreateResponse) -> str | list[dict[str, Any]]:
    """Raises DecodeFailure if there is no input and nothing else to answer to."""
    if request.input is not None:
        return request.input
    if request.prompt is None and request.conversation is None and request.previous_response_id is None:
        raise DecodeFailure(
            "Object missing required field `input` (at input).", "input", "missing_required_parameter"
        )
    return []


def expand(
    request: CreateResponse, reference: PromptReference, version: int, template: Template
) -> tuple[CreateResponse, list[Item]]:
    """The request with the template's instructions, unless it has its own, and the template's items.

    `prompt.version` becomes the version used. Raises DecodeFailure for wrong variables. Pure.
    """
    filled = fill(template, reference.variables or {})
    changed = msgspec.structs.replace(
        request,
        instructions=request.instructions if request.instructions is not None else filled.instructions,
        prompt=msgspec.structs.replace(reference, version=str(version)),
    )
    return changed, filled.items


def _find(connection: Connection, tenant: str, reference: PromptReference) -> tuple[int, Template]:
    version = _version_number(reference)
    stored = prompt_templates.get(connection, tenant, reference.id, version)
    if stored is None:
        raise _unknown(reference)
    return stored.version, read_template(stored.content.encode())


def _version_number(reference: PromptReference) -> int | None:
    version = reference.version
    if version is None:
        return None
    if not (version.isascii() and version.isdigit() and len(version) <= MAX_VERSION_DIGITS):
        raise _unknown(reference)
    return int(version)


def _unknown(reference: PromptReference) -> NotFound:
    version = f" and version '{reference.version[:20]}'" if reference.version is not None else ""
    return NotFound(f"Prompt with id '{reference.id[:100]}'{version} not found.", param="prompt.id")


def read_previous(messages: Sequence[dict[str, Any]]) -> list[InputItem]:
    """The messages as items, in order. Raises DecodeFailure with the message's path."""
    items: list[InputItem] = []
    unanswered: dict[str, list[str]] = {}
    for index, message in enumerate(messages):
        path = f"{PARAM}[{index}]"
        author = message.get("author")
        role = author.get("role") if isinstance(author, dict) else message.get("role")
        if role in _LEFT_OUT:
            continue
        if isinstance(author, dict):
            read = read_elements([_input_element(message, author, path, index, unanswered)], path)
        else:
            read = read_message(_with_call_id(message, unanswered), path)
        for item in read:
            if isinstance(item, FunctionCall | CustomToolCall):
                unanswered.setdefault(item.name, []).append(item.call_id)
        items += read
    return items


def _input_element(
    message: dict[str, Any],
    author: dict[str, Any],
    path: str,
    index: int,
    unanswered: dict[str, list[str]],
) -> dict[str, Any]:
    """A harmony message as an input element. Harmony's calls have no ids; they get their index as one."""
    text = _text(message.get("content"), path)
    recipient = message.get("recipient")
    match author.get("role"):
        case "user":
            return {"type": "message", "role": "user", "content": text}
        case "tool":
            call_id = _pop_call_id(author.get("name"), unanswered)
            return {"type": "function_call_output", "call_id": call_id, "output": text}
        case "assistant" if isinstance(recipient, str) and recipient.startswith(_FUNCTIONS):
            name = recipient.removeprefix(_FUNCTIONS)
            return {"type": "function_call", "call_id": f"call_{index}", "name": name, "arguments": text}
        case "assistant" if recipient is not None:
            raise DecodeFailure(
                "Of calls, those of functions can be brought.", f"{path}.recipient", "unsupported_value"
            )
        case "assistant" if message.get("channel") == "analysis":
            return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}
        case "assistant":
            phase = "commentary" if message.get("channel") == "commentary" else "final_answer"
            return {"type": "message", "role": "assistant", "content": text, "phase": phase}
    raise DecodeFailure(
        "An author's role is system, developer, user, assistant or tool.", f"{path}.author", "invalid_value"
    )


def _text(content: Any, path: str) -> str:
    """The texts of a harmony message, joined."""
    parts = [{"text": content}] if isinstance(content, str) else content
    if isinstance(parts, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts
    ):
        return "".join(part["text"] for part in parts)
    raise DecodeFailure("A message's content is text, or parts of text.", f"{path}.content", "invalid_type")


def _with_call_id(message: dict[str, Any], unanswered: dict[str, list[str]]) -> dict[str, Any]:
    """A chat message; a tool message without `tool_call_id` gets that of its function's first open call."""
    if message.get("role") != "tool" or message.get("tool_call_id") is not None:
        return message
    return {**message, "tool_call_id": _pop_call_id(message.get("name"), unanswered)}


def _pop_call_id(name: Any, unanswered: dict[str, list[str]]) -> str | None:
    """Remove and return the id of the function's first call without an output; None if there is none."""
    calls = unanswered.get(name.removeprefix(_FUNCTIONS), []) if isinstance(name, str) else []
    return calls.pop(0) if calls else None
