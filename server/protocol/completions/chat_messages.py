"""Converts Chat Completions messages to Responses items, and stored items back to messages. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from server.errors import InvalidRequest
from server.protocol.completions.objects import CalledFunction, CalledTool, StoredMessage, ToolCall
from server.protocol.error_object import invalid_value, missing_parameter, unsupported_parameter
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
    output_text,
    plain_text,
)
from server.protocol.responses.request import CreateResponse


@dataclass(frozen=True, slots=True)
class MessageElement:
    """An input element that a message was translated to."""

    fields: dict[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    """The message's path of each of the element's fields that has another name there."""
    parts: Any = None
    """The message's content, if the element has its parts."""

    def own_path(self, path: str) -> str:
        """The message's path of an element's one, such as `tool_call_id` of `call_id`."""
        name, rest = _FIRST_NAME.match(path).groups()  # type: ignore[union-attr]  # matches any text
        if (part := _IN_PART.match(rest)) and isinstance(self.parts, list):
            index, inner = int(part["index"]), part["field"]
            kind = str(self.parts[index].get("type")) if isinstance(self.parts[index], dict) else ""
            rest = f"[{index}].{_PART_FIELDS.get((kind, inner), inner)}{part['rest']}"
        elif not isinstance(self.parts, list):
            rest = ""  # its parts were made of a text
        return f"{self.names.get(name, name)}{rest}"


_FIRST_NAME = re.compile(r"([^.\[]*)(.*)", re.DOTALL)
_IN_PART = re.compile(r"\[(?P<index>\d+)\]\.(?P<field>\w+)(?P<rest>.*)", re.DOTALL)
_PART_FIELDS = {
    ("image_url", "image_url"): "image_url.url",
    ("image_url", "detail"): "image_url.detail",
    **{("file", name): f"file.{name}" for name in ("filename", "file_data", "file_id", "file_url", "detail")},
}
"""A chat's path within a content part of this type, by the field of the Responses API."""


def read_messages(messages: list[dict[str, Any]]) -> list[InputItem]:
    """The items of all messages. Raises InvalidRequest with the message's path."""
    return [
        item for index, message in enumerate(messages) for item in read_message(message, f"messages[{index}]")
    ]


def read_message(message: dict[str, Any], path: str) -> list[InputItem]:
    """The items of one message. Raises InvalidRequest with the path of the message's own field."""
    return read_elements(_elements(message, path), path)


def read_elements(elements: Iterable[MessageElement], path: str) -> list[InputItem]:
    """The items of a message's elements. Raises InvalidRequest with the path of the message's own field."""
    items: list[InputItem] = []
    for element in elements:
        try:
            items += read_input([element.fields])
        except InvalidRequest as failure:
            inner = (failure.param or "").removeprefix("input[0]").removeprefix(".")
            param = f"{path}.{element.own_path(inner)}" if inner else path
            text = str(failure).replace(failure.param or "input[0]", param)
            raise InvalidRequest(text, param, failure.code) from failure
    return items


def _elements(message: dict[str, Any], path: str) -> list[MessageElement]:
    content = message.get("content")
    match message.get("role"):
        case "system" | "developer" | "user" as role:
            text = _content(content, "input_text", path)
            return [MessageElement(_present(type="message", role=role, content=text), parts=content)]
        case "assistant":
            return _assistant(message, path)
        case "tool":
            if message.get("tool_call_id") is None:
                raise missing_parameter(f"{path}.tool_call_id")
            output = _content(content, "input_text", path)
            fields = _present(type="function_call_output", call_id=message["tool_call_id"], output=output)
            return [MessageElement(fields, {"call_id": "tool_call_id", "output": "content"}, content)]
    raise invalid_value("A message's role is system, developer, user, assistant or tool.", f"{path}.role")


def _present(**fields: Any) -> dict[str, Any]:
    """The fields that are not null: one that the message lacks is reported as missing."""
    return {name: value for name, value in fields.items() if value is not None}


def _assistant(message: dict[str, Any], path: str) -> list[MessageElement]:
    """The reasoning, refusal, text and tool calls of an assistant message."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidRequest("Expected an array of objects.", f"{path}.tool_calls", "invalid_type")
    if message.get("function_call") is not None:
        raise unsupported_parameter(
            "This is the old form of a call: use tool_calls instead.", f"{path}.function_call"
        )
    if message.get("audio") is not None:
        raise unsupported_parameter(
            "Audio is not supported: send the transcript as the message's content.", f"{path}.audio"
        )
    elements: list[MessageElement] = []
    source = "reasoning_content" if message.get("reasoning_content") else "reasoning"
    thought = message.get(source)
    if isinstance(thought, str) and thought:
        part = {"type": "reasoning_text", "text": thought}
        elements.append(
            MessageElement({"type": "reasoning", "summary": [], "content": [part]}, {"content": source})
        )
    content = message.get("content")
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        item = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": refusal}]}
        elements.append(MessageElement(item, {"content": "refusal"}))
    if content or (not calls and not refusal):
        text = _content(content, "output_text", path) if content is not None else ""
        elements.append(
            MessageElement({"type": "message", "role": "assistant", "content": text}, parts=content)
        )
    return elements + [_call(call, path, f"tool_calls[{index}]") for index, call in enumerate(calls)]


def _call(call: dict[str, Any], message: str, path: str) -> MessageElement:
    kind = "function" if call.get("type") is None else call["type"]
    if kind not in ("function", "custom"):
        raise invalid_value("The type of a call is function or custom.", f"{message}.{path}.type")
    argument = "input" if kind == "custom" else "arguments"
    inner = call.get(kind)
    if inner is None:
        raise missing_parameter(f"{message}.{path}.{kind}")
    if not isinstance(inner, dict):
        raise InvalidRequest("Expected an object.", f"{message}.{path}.{kind}", "invalid_type")
    for name in ("name", argument):
        if inner.get(name) is None:
            raise missing_parameter(f"{message}.{path}.{kind}.{name}")
    return MessageElement(
        _present(
            type="custom_tool_call" if kind == "custom" else "function_call",
            call_id=call.get("id"),
            name=inner["name"],
            **{argument: inner[argument]},
        ),
        {"call_id": f"{path}.id", "name": f"{path}.{kind}.name", argument: f"{path}.{kind}.{argument}"},
    )


def _content(content: Any, text_type: str, path: str) -> Any:
    """Content parts with the Responses API's type names; unknown ones are refused by `read_input`."""
    if not isinstance(content, list):
        return content
    return [_part(part, text_type, f"{path}.content[{index}]") for index, part in enumerate(content)]


def _part(part: Any, text_type: str, path: str) -> Any:
    match part:
        case {"type": "text", "text": text}:
            return {"type": text_type, "text": text}
        case {"type": "image_url", "image_url": {"url": url, **rest}}:
            return {"type": "input_image", "image_url": url, "detail": rest.get("detail")}
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case {"type": "image_url", "image_url": dict()}:
            raise missing_parameter(f"{path}.image_url.url")
        case {"type": "image_url" | "file" as kind}:
            if part.get(kind) is None:
                raise missing_parameter(f"{path}.{kind}")
            raise InvalidRequest(f"Expected an object (at {path}.{kind}).", f"{path}.{kind}", "invalid_type")
        case _:
            return part


def items_by_message(items: Iterable[Item]) -> list[list[Item]]:
    """The items by the message that they were of: an assistant's reasoning, text and calls are one."""
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
    """The message of a group of `items_by_message`; a single text part becomes a string."""
    match group[0]:
        case FunctionCallOutput(_, _, call_id, output) | CustomToolCallOutput(_, _, call_id, output):
            parts = [] if isinstance(output, str) else output
            return StoredMessage(
                id=message_id,
                role="tool",
                content=output_text(output),
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
