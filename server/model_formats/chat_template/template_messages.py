"""Writes a conversation's items as the `messages` (role, content, tool_calls) that a chat template renders.
Unsupported structures are replaced: several system messages by one or by the user's beginning, parallel calls
by sequential ones; else PromptError. In a turn's text a picture is its index between `_IMAGE` signs.
"""

import hashlib
import json
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from server.errors import InvalidRequest
from server.model_formats.chat_template.template import ChatTemplate, MarkupText, Message
from server.model_formats.chat_template.template_probe import THOUGHT_FIELDS, TemplateCapabilities
from server.model_formats.model_format import PromptConversation, PromptError, PromptTool, qualified_name
from server.model_formats.tool_calls.tool_call_format import ToolCallFormat
from server.protocol.decode import check_size
from server.protocol.responses.items import (
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    OtherItem,
    PreparedImage,
    Reasoning,
    plain_text,
)
from server.protocol.responses.items import Message as MessageItem

_LETTERS = string.ascii_letters + string.digits
MAX_ARGUMENTS = 2**20
"""Maximum characters of a call's arguments; parsing them holds the GIL."""
_NINE = re.compile(r"[A-Za-z0-9]{9}")
_IMAGE = "\ufdd2"
"""A Unicode noncharacter: never valid in interchanged text, so removing it from input loses nothing."""
_IMAGE_PART = re.compile(f"{_IMAGE}([0-9]+){_IMAGE}")


@dataclass(slots=True)
class Call:
    name: str
    arguments: str
    """JSON text."""
    call_id: str
    """The id of the call, in the form that the template requires."""


@dataclass(slots=True)
class Turn:
    """A message in the making: consecutive items of one role."""

    role: str
    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    call: Call | None = None
    """The call of a tool output."""
    has_message: bool = False
    """Whether the turn has a message item, even an empty one."""


def write_messages(
    conversation: PromptConversation,
    template: ChatTemplate,
    capabilities: TemplateCapabilities,
    calls: ToolCallFormat | None,
) -> tuple[list[Message], list[PreparedImage]]:
    """Messages within the capabilities, and their pictures in order. Raises PromptError."""
    texts = _Texts()
    turns = _turns(conversation, calls.call_id_style if calls else "any", texts)
    if texts.images and not capabilities.images:
        raise PromptError("The model's chat template cannot write pictures.")
    if not capabilities.outputs:
        turns = [Turn("user", _result_text(turn.text)) if turn.role == "tool" else turn for turn in turns]
    if not capabilities.images_in_outputs:
        turns = list(_images_after_outputs(turns))
    if not capabilities.later_systems:
        turns = _merge_systems(turns)
    if not capabilities.first_system:
        turns = _system_as_user(turns)
    if not capabilities.consecutive_users:
        turns = _merge_neighbours(turns, "user")
    if capabilities.alternates or not capabilities.text_after_calls:
        turns = _merge_neighbours(turns, "assistant")
    if (
        not turns
        or capabilities.user_first
        or (capabilities.needs_user and not any(turn.role == "user" for turn in turns))
    ):
        turns = _begin_with_user(turns)
    if not capabilities.parallel_calls:
        turns = list(_split_parallel_calls(turns))
    writer = _Writer(template, capabilities, calls)
    messages = [message for turn in turns for message in writer.write(turn)]
    if capabilities.alternates:
        messages = list(_alternating(messages, capabilities.blank))
    order = [int(index) for turn in turns for index in _IMAGE_PART.findall(turn.text)]
    return [_as_parts(message, capabilities) for message in messages], [
        texts.images[index] for index in order
    ]


class _Texts:
    """The texts of content parts, with signs for pictures."""

    def __init__(self) -> None:
        self.images: list[PreparedImage] = []

    def of(self, parts: Sequence[ContentPart]) -> str:
        texts: list[str] = []
        for part in parts:
            if isinstance(part, PreparedImage):
                texts.append(f"{_IMAGE}{len(self.images)}{_IMAGE}")
                self.images.append(part)
            else:
                texts.append(plain_text([part]).replace(_IMAGE, ""))
        return "".join(texts)


def _as_parts(message: Message, capabilities: TemplateCapabilities) -> Message:
    """The message with content parts where its text has pictures, or where the template takes only parts."""
    text = message["content"]
    if not isinstance(text, str):
        return message
    pieces = [text] if isinstance(text, MarkupText) else _IMAGE_PART.split(text)
    if len(pieces) == 1 and not capabilities.content_as_parts:
        return message
    parts: list[dict[str, str]] = []
    for number, piece in enumerate(pieces):
        if number % 2:
            parts.append({"type": "image"})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return {**message, "content": parts}


def _images_after_outputs(turns: Sequence[Turn]) -> Iterator[Turn]:
    """The turns with the pictures of tool outputs in a user's message after them."""
    waiting = ""
    for turn in turns:
        if waiting and turn.role != "tool":
            yield Turn("user", waiting)
            waiting = ""
        if turn.role == "tool" and (images := _IMAGE_PART.findall(turn.text)):
            waiting += "".join(f"{_IMAGE}{index}{_IMAGE}" for index in images)
            turn = replace(turn, text=_IMAGE_PART.sub("", turn.text))  # noqa: PLW2901 - the turn without them
        yield turn
    if waiting:
        yield Turn("user", waiting)


def _turns(conversation: PromptConversation, call_id_style: str, texts: _Texts) -> list[Turn]:
    """The turns in order; consecutive assistant items form one turn."""
    instructions = (conversation.instructions or "").replace(_IMAGE, "")
    turns = [Turn("system", instructions)] if instructions else []
    ids = _CallIds(call_id_style, conversation.tools)
    for item in conversation.items:
        if _is_from_assistant(item):
            if not turns or turns[-1].role != "assistant" or _starts_new_message(turns[-1], item):
                turns.append(Turn("assistant"))
            _add(turns[-1], item, ids)
        elif not isinstance(item, OtherItem):
            turns.append(_turn_of(item, ids, texts))
    return turns


def _is_from_assistant(item: Item) -> bool:
    if isinstance(item, MessageItem):
        return item.role == "assistant"
    return isinstance(item, Reasoning | FunctionCall | CustomToolCall)


def _starts_new_message(turn: Turn, item: Item) -> bool:
    """Whether the item starts a new assistant message: a second message, or reasoning after one."""
    return isinstance(item, MessageItem | Reasoning) and (turn.has_message or bool(turn.calls))


def _add(turn: Turn, item: Item, ids: "_CallIds") -> None:
    match item:
        case MessageItem():
            turn.text, turn.has_message = plain_text(item.content).replace(_IMAGE, ""), True
        case Reasoning():
            turn.thought = "\n\n".join(filter(None, (turn.thought, thought_of(item))))
        case FunctionCall():
            turn.calls.append(ids.call(item.call_id, ids.name(item), item.arguments or "{}"))
        case CustomToolCall():
            arguments = json.dumps({"input": item.input}, ensure_ascii=False)
            turn.calls.append(ids.call(item.call_id, ids.name(item), arguments))


def thought_of(item: Reasoning) -> str:
    """The text of the reasoning, or else its summary."""
    return "\n\n".join(part.text for part in item.content or item.summary)


def _turn_of(item: Item, ids: "_CallIds", texts: _Texts) -> Turn:
    if isinstance(item, FunctionCallOutput | CustomToolCallOutput):
        text = item.output.replace(_IMAGE, "") if isinstance(item.output, str) else texts.of(item.output)
        return Turn("tool", text, call=ids.answered(item.call_id or ""))
    assert isinstance(item, MessageItem)
    role = "system" if item.role == "developer" else item.role
    return Turn(role, texts.of(item.content))


class _CallIds:
    """Maps call ids to the family's form and tools to prompt names; outputs find calls by the original id."""

    def __init__(self, style: str, tools: Sequence[PromptTool] = ()) -> None:
        self._style = style
        self._spoken = {(tool.namespace, tool.name): tool.prompt_name for tool in tools}
        self._calls: dict[str, Call] = {}
        self._count = 0

    def name(self, item: FunctionCall | CustomToolCall) -> str:
        """The called tool's prompt name, or for a tool that is no longer declared its qualified name."""
        namespace = item.namespace or None
        return self._spoken.get((namespace, item.name)) or qualified_name(item.name, namespace)

    def call(self, call_id: str, name: str, arguments: str) -> Call:
        match self._style:
            case "mistral":
                own = call_id if _NINE.fullmatch(call_id) else _nine_letters(call_id)
            case "kimi":
                own = f"functions.{name}:{self._count}"
            case _:
                own = call_id
        self._count += 1
        call = self._calls[call_id] = Call(name, arguments, own)
        return call

    def answered(self, call_id: str) -> Call:
        if call_id not in self._calls:
            raise PromptError(f"There is no call with the call_id {call_id[:100]!r} before its output.")
        return self._calls[call_id]


def _nine_letters(call_id: str) -> str:
    number = int.from_bytes(hashlib.sha256(call_id.encode(errors="replace")).digest()[:8], "big")
    letters = ""
    for _ in range(9):
        number, letter = divmod(number, len(_LETTERS))
        letters += _LETTERS[letter]
    return letters


def _merge_systems(turns: Sequence[Turn]) -> list[Turn]:
    texts = [turn.text for turn in turns if turn.role == "system"]
    rest = [turn for turn in turns if turn.role != "system"]
    return [Turn("system", "\n\n".join(texts)), *rest] if texts else rest


def _system_as_user(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with system messages prepended to the next user message."""
    written: list[Turn] = []
    waiting: list[str] = []
    for turn in turns:
        if turn.role == "system":
            waiting.append(turn.text)
        elif turn.role == "user" and waiting:
            written.append(replace(turn, text="\n\n".join([*waiting, turn.text])))
            waiting = []
        else:
            written.append(turn)
    return [*written, Turn("user", "\n\n".join(waiting))] if waiting else written


def _merge_neighbours(turns: Sequence[Turn], role: str) -> list[Turn]:
    """The turns with those of a role that follow one another as one, whose texts come before its calls."""
    merged: list[Turn] = []
    for turn in turns:
        last = merged[-1] if merged else None
        if last is not None and last.role == turn.role == role:
            text, thought = (
                "\n\n".join(filter(None, pair))
                for pair in ((last.text, turn.text), (last.thought, turn.thought))
            )
            merged[-1] = replace(turn, text=text, thought=thought, calls=[*last.calls, *turn.calls])
        else:
            merged.append(turn)
    return merged


def _begin_with_user(turns: list[Turn]) -> list[Turn]:
    """The turns with a user's before all but the system's; an empty one if it is another's."""
    systems = len([*takewhile(lambda turn: turn.role == "system", turns)])
    begins = len(turns) > systems and turns[systems].role == "user"
    return turns if begins else [*turns[:systems], Turn("user"), *turns[systems:]]


def _alternating(messages: Sequence[Message], blank: str) -> Iterator[Message]:
    """The messages with blank ones between two of one role, where calls and outputs count for none."""
    last = "assistant"
    for message in messages:
        role = message["role"]
        if role in ("user", "assistant") and "tool_calls" not in message:
            if role == last:
                yield {"role": "user" if role == "assistant" else "assistant", "content": blank}
            last = role
        yield message


def _split_parallel_calls(turns: Sequence[Turn]) -> Iterator[Turn]:
    """The turns with one call per message, each followed by its output."""
    outputs = {id(turn.call): turn for turn in turns if turn.call is not None}
    emitted: set[int] = set()
    for turn in turns:
        if id(turn) in emitted:
            continue
        if len(turn.calls) < 2:
            yield turn
            continue
        for index, call in enumerate(turn.calls):
            yield replace(turn, calls=[call]) if index == 0 else Turn("assistant", calls=[call])
            output = outputs.get(id(call))
            if output is not None:
                emitted.add(id(output))
                yield output


class _Writer:
    def __init__(
        self, template: ChatTemplate, capabilities: TemplateCapabilities, calls: ToolCallFormat | None
    ) -> None:
        self._template = template
        self._capabilities = capabilities
        self._calls = calls

    def write(self, turn: Turn) -> Iterator[Message]:
        if turn.role == "tool":
            assert turn.call is not None
            yield {
                "role": "tool",
                "content": turn.text,
                "name": turn.call.name,
                "tool_call_id": turn.call.call_id,
            }
        elif turn.role != "assistant":
            yield {"role": turn.role, "content": turn.text}
        elif turn.calls and turn.text and self._capabilities.calls and not self._capabilities.text_with_calls:
            yield from self._assistant(replace(turn, calls=[]))
            yield from self._assistant(replace(turn, text="", thought=""))
        else:
            yield from self._assistant(turn)

    def _assistant(self, turn: Turn) -> Iterator[Message]:
        message: Message = {"role": "assistant", "content": turn.text or self._capabilities.blank}
        if turn.thought and self._capabilities.reasoning_as_part:
            thinking = {"type": "thinking", "thinking": turn.thought}
            text = [{"type": "text", "text": turn.text}] if turn.text else []
            message["content"] = [thinking, *text]
        elif turn.thought:
            message |= dict.fromkeys(THOUGHT_FIELDS, turn.thought)
        if turn.calls and self._capabilities.calls:
            if not turn.text and not isinstance(message["content"], list):
                message["content"] = self._capabilities.empty_content
            message["tool_calls"] = [self._call(call) for call in turn.calls]
        elif turn.calls:
            message["content"] = self._calls_as_text(turn)
        yield message

    def _call(self, call: Call) -> dict[str, Any]:
        arguments: Any = call.arguments
        if self._capabilities.arguments_as_object:
            if len(call.arguments) > MAX_ARGUMENTS:
                raise PromptError(f"The arguments of a call may have {MAX_ARGUMENTS} characters.")
            try:
                check_size(call.arguments.encode(errors="replace"))
                arguments = json.loads(call.arguments)
            except InvalidRequest as error:
                raise PromptError("The arguments of a call have too many values or digits.") from error
            except (ValueError, RecursionError):
                arguments = call.arguments  # unchanged, for templates that accept text
        function = {"name": call.name, "arguments": arguments}
        return {"type": "function", "id": call.call_id, "function": function}

    def _calls_as_text(self, turn: Turn) -> MarkupText:
        """The calls as text in the model's own format, for templates that cannot render calls."""
        guard = self._template.guard
        pairs = [(guard(call.name), guard(call.arguments)) for call in turn.calls]
        written = self._calls.render_calls(pairs) if self._calls else None
        if written is None:
            raise PromptError("The model's chat template cannot write calls of tools.")
        return MarkupText(guard(turn.text) + written)


_FUNCTIONS = "# Functions\n\nYou may call these functions. Each line describes one, with a JSON schema:"
_HOW = "To call a function, write its name and all of its arguments like this:"
_RESULTS = (
    "End your message after the calls. The next message has each call's result between <tool_response> and "
    "</tool_response>. If no function helps, answer without a call."
)


def describe_tools(schemas: Sequence[dict[str, Any]], calls: ToolCallFormat) -> str:
    """The part of the system message that describes tools, for templates that write none. Calls have the form
    that the template shows, else that of Hermes, which most models know; results are texts of the user.
    """
    lines = "\n".join(json.dumps(schema["function"], ensure_ascii=False) for schema in schemas)
    example = calls.render_calls([("NAME", '{"PARAMETER": "VALUE"}')])
    return f"{_FUNCTIONS}\n<tools>\n{lines}\n</tools>\n\n{_HOW}\n{example}\n\n{_RESULTS}"


def _result_text(output: str) -> str:
    return f"<tool_response>\n{output}\n</tool_response>"
