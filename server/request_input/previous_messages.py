"""`previous_input_messages`, vLLM's history that the client sends, as input items.

They are a chat's messages (`role`) or harmony's (`author`, `channel`, `recipient`). System and developer
messages of that history are dropped: instructions are those of the newest request.
"""

from collections.abc import Sequence
from typing import Any

from server.errors import InvalidRequest
from server.protocol.completions.chat_messages import MessageElement, read_elements, read_message
from server.protocol.error_object import invalid_value, unsupported_value
from server.protocol.responses.input import InputItem
from server.protocol.responses.items import CustomToolCall, FunctionCall

PARAM = "previous_input_messages"

_FUNCTIONS = "functions."

_OWN_NAMES = {"output": "content", "arguments": "content", "name": "recipient", "call_id": "author.name"}
"""A harmony message's field of each field of its input element."""
_LEFT_OUT = ("system", "developer")


def read_previous(messages: Sequence[dict[str, Any]]) -> list[InputItem]:
    """The messages as items, in order. Raises InvalidRequest with the message's path."""
    items: list[InputItem] = []
    unanswered: dict[str, list[str]] = {}
    for index, message in enumerate(messages):
        path = f"{PARAM}[{index}]"
        author = message.get("author")
        role = author.get("role") if isinstance(author, dict) else message.get("role")
        if role in _LEFT_OUT:
            continue
        if isinstance(author, dict):
            fields = _input_element(message, author, path, index, unanswered)
            sent = {name: value for name, value in fields.items() if value is not None}
            read = read_elements([MessageElement(sent, _OWN_NAMES)], path)
        else:
            read = read_message(_with_call_id(message, unanswered), path)
        for item in read:
            if isinstance(item, FunctionCall | CustomToolCall):
                unanswered.setdefault(item.name, []).append(item.call_id)
        items += read
    return items


def _input_element(
    message: dict[str, Any], author: dict[str, Any], path: str, index: int, unanswered: dict[str, list[str]]
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
            raise unsupported_value("Of calls, those of functions can be brought.", f"{path}.recipient")
        case "assistant" if message.get("channel") == "analysis":
            return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}
        case "assistant":
            phase = "commentary" if message.get("channel") == "commentary" else "final_answer"
            return {"type": "message", "role": "assistant", "content": text, "phase": phase}
    raise invalid_value("An author's role is system, developer, user, assistant or tool.", f"{path}.author")


def _text(content: Any, path: str) -> str:
    parts = [{"text": content}] if isinstance(content, str) else content
    if isinstance(parts, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts
    ):
        return "".join(part["text"] for part in parts)
    raise InvalidRequest("A message's content is text, or parts of text.", f"{path}.content", "invalid_type")


def _with_call_id(message: dict[str, Any], unanswered: dict[str, list[str]]) -> dict[str, Any]:
    """A chat message; a tool message without `tool_call_id` gets that of its function's first open call."""
    if message.get("role") != "tool" or message.get("tool_call_id") is not None:
        return message
    return {**message, "tool_call_id": _pop_call_id(message.get("name"), unanswered)}


def _pop_call_id(name: Any, unanswered: dict[str, list[str]]) -> str | None:
    """Remove and return the id of the function's first call without an output; None if there is none."""
    calls = unanswered.get(name.removeprefix(_FUNCTIONS), []) if isinstance(name, str) else []
    return calls.pop(0) if calls else None
