"""A chat's messages as a response's items, and items as the messages that they came as. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET

from server.protocol.completions.chat import CalledFunction, CalledTool, StoredMessage, ToolCall
from server.protocol.errors import DecodeFailure
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
    """The messages as items. Raises DecodeFailure with the message's path."""
    return [
        item for index, message in enumerate(messages) for item in read_message(message, f"messages[{index}]")
    ]


def read_message(message: dict[str, Any], path: str) -> list[InputItem]:
    """One message as items. Raises DecodeFailure with its path."""
    return read_elements(_elements(message, path), path)


def read_elements(elements: Iterable[dict[str, Any]], path: str) -> list[InputItem]:
    """Elements of an input that are all of one message, which a DecodeFailure names."""
    given: list[InputItem] = []
    for element in elements:
        try:
            given += read_input([element])
        except DecodeFailure as failure:
            param = (failure.param or "").replace("input[0]", path, 1)
            text = str(failure).replace("input[0]", path)
            raise DecodeFailure(text, param, failure.code) from failure
    return given


def _elements(message: dict[str, Any], path: str) -> list[dict[str, Any]]:
    match message.get("role"):
        case "system" | "developer" | "user" as role:
            content = message.get("content")
            return [{"type": "message", "role": role, "content": _content(content, "input_text")}]
        case "assistant":
            return _assistant(message)
        case "tool":
            output = _content(message.get("content"), "input_text")
            return [
                {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output}
            ]
    raise DecodeFailure(
        "A message's role is system, developer, user, assistant or tool.", f"{path}.role", "invalid_value"
    )


def _assistant(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Reasoning, text and calls of one message, as the items that they are."""
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
    calls = message.get("tool_calls") or []
    if content or (not calls and not refusal):
        text = _content(content, "output_text") if content is not None else ""
        elements.append({"type": "message", "role": "assistant", "content": text})
    return elements + [_call(call) for call in calls if isinstance(call, dict)]


def _call(call: dict[str, Any]) -> dict[str, Any]:
    kind = call.get("type", "function")
    inner = call.get(kind) if isinstance(kind, str) else None
    inner = inner if isinstance(inner, dict) else {}
    if kind == "custom":
        return {
            "type": "custom_tool_call",
            "call_id": call.get("id"),
            "name": inner.get("name"),
            "input": inner.get("input"),
        }
    return {
        "type": "function_call",
        "call_id": call.get("id"),
        "name": inner.get("name"),
        "arguments": inner.get("arguments"),
    }


def _content(content: Any, text_type: str) -> Any:
    """Parts under the names that they have in a response's input; anything else is left to be refused."""
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


def stored_messages(items: Iterable[Item], completion: str) -> list[StoredMessage]:
    """The messages that these items were read from, each with an id that its place gives it.

    An assistant's reasoning, text and calls are one message again. Content that came as one part of text is
    told as text: which of the two forms it had is not kept.
    """
    messages: list[StoredMessage] = []
    for group in _grouped(items):
        messages.append(_stored_message(group, f"{completion}-{len(messages)}"))
    return messages


def answer_role(items: Sequence[InputItem], request: CreateResponse) -> str:
    """The assistant's, unless the model goes on without a turn of its own: then it is the last message's."""
    if request.add_generation_prompt is not False or not items:
        return "assistant"
    last = items[-1]
    if isinstance(last, Message):
        return last.role
    return "tool" if isinstance(last, FunctionCallOutput | CustomToolCallOutput) else "assistant"


def echo_text(items: Sequence[InputItem], role: str) -> str:
    """What vLLM's `echo` puts before an answer: the last message's text, if its role is the answer's."""
    if not items or not isinstance(items[-1], Message) or items[-1].role != role:
        return ""
    return plain_text(items[-1].content)


def _grouped(items: Iterable[Item]) -> list[list[Item]]:
    """Items that came in one message together."""
    groups: list[list[Item]] = []
    for item in items:
        if groups and _is_same_message(groups[-1][-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _is_same_message(before: Item, item: Item) -> bool:
    """Whether it came in the message of the one before: reasoning, a refusal, text, calls, in that order."""
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


def _stored_message(group: Sequence[Item], message_id: str) -> StoredMessage:
    match group[0]:
        case FunctionCallOutput(_, _, call_id, output) | CustomToolCallOutput(_, _, call_id, output):
            parts = [] if isinstance(output, str) else output
            text = output if isinstance(output, str) else plain_text(output)
            return StoredMessage(
                id=message_id,
                role="tool",
                content=text,
                content_parts=_content_parts(parts),
                tool_call_id=call_id,
            )
        case Message(_, _, role, content) if role != "assistant":
            return StoredMessage(
                id=message_id, role=role, content=plain_text(content), content_parts=_content_parts(content)
            )
    return _assistant_message(group, message_id)


def _assistant_message(group: Sequence[Item], message_id: str) -> StoredMessage:
    parts = [part for item in group if isinstance(item, Message) for part in item.content]
    refusals = [part.refusal for part in parts if isinstance(part, Refusal)]
    said = [part for part in parts if not isinstance(part, Refusal)]
    thoughts = [part.text for item in group if isinstance(item, Reasoning) for part in item.content or ()]
    return StoredMessage(
        id=message_id,
        role="assistant",
        content=plain_text(said) if said else None,
        content_parts=_content_parts(said),
        refusal="".join(refusals) or None,
        reasoning_content="".join(thoughts) or UNSET,
        tool_calls=[_tool_call(item) for item in group if isinstance(item, FunctionCall | CustomToolCall)]
        or UNSET,
    )


def _tool_call(item: FunctionCall | CustomToolCall) -> ToolCall:
    if isinstance(item, FunctionCall):
        function = CalledFunction(item.name, item.arguments)
        return ToolCall(id=item.call_id, type="function", function=function)
    return ToolCall(id=item.call_id, type="custom", custom=CalledTool(item.name, item.input))


def _content_parts(parts: Sequence[ContentPart]) -> list[dict[str, Any]] | None:
    """The parts under a chat's names, if there is more to tell of them than their text."""
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
