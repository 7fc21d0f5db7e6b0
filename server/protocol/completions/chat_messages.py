"""Converts Chat Completions messages to Responses items, and stored items back to messages. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET

from server.protocol.completions.objects import (
    CalledFunction,
    CalledTool,
    StoredMessage,
    ToolCall,
)
from server.protocol.error_object import DecodeFailure
from server.protocol.responses.input import InputItem, read_input
from server.protocol.responses.items import (
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    Refusal,
    plain_text,
)
from server.protocol.responses.request import CreateResponse


def read_messages(messages: list[dict[str, Any]]) -> list[InputItem]:
    """The items of all messages. Raises DecodeFailure with the message's path."""
    return [
        item for index, message in enumerate(messages) for item in read_message(message, f"messages[{index}]")
    ]


def read_message(message: dict[str, Any], path: str) -> list[InputItem]:
    """The items of one message. Raises DecodeFailure with its path."""
    return read_elements(_elements(message, path), path)


def read_elements(elements: Iterable[dict[str, Any]], path: str) -> list[InputItem]:
    """The items of a message's input elements. Raises DecodeFailure with the message's path."""
    items: list[InputItem] = []
    for element in elements:
        try:
            items += read_input([element])
        except DecodeFailure as failure:
            param = (failure.param or "").replace("input[0]", path, 1)
            text = str(failure).replace("input[0]", path)
            raise DecodeFailure(text, param, failure.code) from failure
    return items


def _elements(message: dict[str, Any], path: str) -> list[dict[str, Any]]:
    match message.get("role"):
        case "system" | "developer" | "user" as role:
            content = message.get("content")
            return [{"type": "message", "role": role, "content": _content(content, "input_text")}]
        case "assistant":
            return _assistant(message, path)
        case "tool":
            output = _content(message.get("content"), "input_text")
            return [
                {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output}
            ]
    raise DecodeFailure(
        "A message's role is system, developer, user, assistant or tool.", f"{path}.role", "invalid_value"
    )


def _assistant(message: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """The reasoning, refusal, text and tool calls of an assistant message as input elements."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise DecodeFailure("Expected an array of objects.", f"{path}.tool_calls", "invalid_type")
    if message.get("function_call") is not None:
        raise DecodeFailure(
            "This is the old form of a call: use tool_calls instead.",
            f"{path}.function_call",
            "unsupported_parameter",
        )
    if message.get("audio") is not None:
        raise DecodeFailure(
            "No answer here is spoken: send what was said as the message's content.",
            f"{path}.audio",
            "unsupported_parameter",
        )
    elements: list[dict[str, Any]] = []
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str) and thought:
        part = {"type": "reasoning_text", "text": thought}
        elements.append({"type": "reasoning", "summary": [], "content": [part]})
    content = message.get("content")
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        elements.append(
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": refusal}]}
        )
    if content or (not calls and not refusal):
        text = _content(content, "output_text") if content is not None else ""
        elements.append({"type": "message", "role": "assistant", "content": text})
    return elements + [_call(call) for call in calls]


def _call(call: dict[str, Any]) -> dict[str, Any]:
    kind = call.get("type", "function")
    inner = call.get(kind) if isinstance(kind, str) else None
    inner = inner if isinstance(inner, dict) else {}
    name, argument = ("custom_tool_call", "input") if kind == "custom" else ("function_call", "arguments")
    return {
        "type": name,
        "call_id": call.get("id"),
        "name": inner.get("name"),
        argument: inner.get(argument),
    }


def _content(content: Any, text_type: str) -> Any:
    """Content parts with the Responses API's type names; unknown ones are refused by `read_input`."""
    if not isinstance(content, list):
        return content
    return [_part(part, text_type) for part in content]


def _part(part: Any, text_type: str) -> Any:
    match part:
        case {"type": "text", "text": text}:
            return {"type": text_type, "text": text}
        case {"type": "image_url", "image_url": {"url": url, **rest}}:
            return {"type": "input_image", "image_url": url, "detail": rest.get("detail")}
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case _:
            return part


def items_by_message(items: Iterable[Item]) -> list[list[Item]]:
    """The items grouped by the message that they were decoded from.

    An assistant's reasoning, text and calls become one message.
    """
    groups: list[list[Item]] = []
    for item in items:
        if groups and _is_same_message(groups[-1][-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def answer_role(items: Sequence[InputItem], request: CreateResponse) -> str:
    """`assistant`, or with `add_generation_prompt: false` the last message's role."""
    if request.add_generation_prompt is not False or not items:
        return "assistant"
    last = items[-1]
    if isinstance(last, Message):
        return last.role
    return "tool" if isinstance(last, FunctionCallOutput | CustomToolCallOutput) else "assistant"


def echo_text(items: Sequence[InputItem], role: str) -> str:
    """The text that vLLM's `echo` puts before an answer: of the last message, if it has that role."""
    if not items or not isinstance(items[-1], Message) or items[-1].role != role:
        return ""
    return plain_text(items[-1].content)


def _is_same_message(before: Item, item: Item) -> bool:
    """Whether the item belongs to the message of the one before, in the order of `_assistant`."""
    match before, item:
        case Message(role=role), _ if role != "assistant":
            return False
        case Message() | Reasoning() | FunctionCall() | CustomToolCall(), FunctionCall() | CustomToolCall():
            return True
        case Reasoning(), Message(role="assistant"):
            return True
        case Message(content=[Refusal()]), Message(role="assistant"):
            return True
    return False


def stored_message(group: Sequence[Item], message_id: str) -> StoredMessage:
    """The message of one of the groups of `items_by_message`.

    A single text part becomes a string, as the original form is not stored.
    """
    match group[0]:
        case FunctionCallOutput(_, _, call_id, output) | CustomToolCallOutput(_, _, call_id, output):
            parts = [] if isinstance(output, str) else output
            text = output if isinstance(output, str) else plain_text(output)
            return StoredMessage(
                id=message_id,
                role="tool",
                content=text,
                content_parts=_content_parts(parts),
                tool_call_id=call_id or "",
            )
        case Message(_, _, role, content) if role != "assistant":
            return StoredMessage(
                id=message_id, role=role, content=plain_text(content), content_parts=_content_parts(content)
            )
    return _assistant_message(group, message_id)


def _assistant_message(group: Sequence[Item], message_id: str) -> StoredMessage:
    parts = [part for item in group if isinstance(item, Message) for part in item.content]
    refusals = [part.refusal for part in parts if isinstance(part, Refusal)]
    content = [part for part in parts if not isinstance(part, Refusal)]
    reasoning = [part.text for item in group if isinstance(item, Reasoning) for part in item.content or ()]
    return StoredMessage(
        id=message_id,
        role="assistant",
        content=plain_text(content) if content else None,
        content_parts=_content_parts(content),
        refusal="".join(refusals) or None,
        reasoning_content="".join(reasoning) or UNSET,
        tool_calls=[tool_call(item) for item in group if isinstance(item, FunctionCall | CustomToolCall)]
        or UNSET,
    )


def tool_call(item: FunctionCall | CustomToolCall) -> ToolCall:
    """The call of a message for a call item."""
    if isinstance(item, FunctionCall):
        function = CalledFunction(item.name, item.arguments)
        return ToolCall(id=item.call_id, type="function", function=function)
    return ToolCall(id=item.call_id, type="custom", custom=CalledTool(item.name, item.input))


def _content_parts(parts: Sequence[ContentPart]) -> list[dict[str, Any]] | None:
    """The parts with Chat Completions' type names; None for a single text part."""
    if all(isinstance(part, InputText | OutputText) for part in parts) and len(parts) < 2:
        return None
    return [_content_part(part) for part in parts]


def _content_part(part: ContentPart) -> dict[str, Any]:
    match part:
        case InputImage(url, _, detail):
            return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        case InputFile(filename, data):
            return {"type": "file", "file": {"filename": filename or None, "file_data": data or None}}
        case _:
            return {"type": "text", "text": plain_text([part])}
