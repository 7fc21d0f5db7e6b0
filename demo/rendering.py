"""A conversation as the text the model reads, cut into what it is trained on and what it is given.

The chat template says the same in Jinja, for everyone who uses the model; a test renders random
conversations both ways. This one exists because a template cannot say which parts are trained.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from demo.chat import Call, Conversation, Message, Tool

TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
#: Opens the answer of the assistant, where thinking is off and where it is on.
ANSWER_START = f"{TURN_START}assistant\n"
THOUGHT_START = "<think>\n"
THOUGHT_END = "\n</think>\n\n"


class Piece(NamedTuple):
    """A part of the text; only trained pieces count in the loss."""

    text: str
    is_trained: bool


def render(conversation: Conversation, *, thinking: bool) -> list[Piece]:
    """Return the whole conversation in pieces; thoughts appear after the last user turn only."""
    messages = conversation.messages
    instruction = messages[0].text if messages and messages[0].role == "system" else None
    turns = messages[0 if instruction is None else 1 :]
    pieces = []
    if instruction is not None or conversation.tools:
        pieces.append(Piece(_system_turn(instruction or "", conversation.tools), is_trained=False))
    last_user = max((i for i, turn in enumerate(turns) if turn.role == "user"), default=-1)
    for position, turn in enumerate(turns):
        pieces += _render_turn(turn, with_thought=thinking and position > last_user)
    return pieces


def _render_turn(turn: Message, *, with_thought: bool) -> list[Piece]:
    if turn.role != "assistant":
        return [Piece(f"{TURN_START}{turn.role}\n{turn.text}{TURN_END}\n", is_trained=False)]
    body = _body(turn)
    assert body.startswith(turn.given)
    pieces = [Piece(ANSWER_START, is_trained=False)]
    if with_thought and turn.thought:
        pieces.append(Piece(THOUGHT_START, is_trained=False))
        pieces.append(Piece(turn.thought + THOUGHT_END, is_trained=True))
    if turn.given:
        pieces.append(Piece(turn.given, is_trained=False))
    pieces.append(Piece(body.removeprefix(turn.given) + TURN_END, is_trained=True))
    return [*pieces, Piece("\n", is_trained=False)]


def _body(turn: Message) -> str:
    return "\n".join([*([turn.text] if turn.text else []), *(call.text() for call in turn.calls)])


def _system_turn(instruction: str, tools: tuple[Tool, ...]) -> str:
    parts = [instruction] if instruction else []
    if tools:
        parts.append(f"<tools>\n{''.join(map(_signature, tools))}</tools>")
    return f"{TURN_START}system\n{chr(10).join(parts)}{TURN_END}\n"


def _signature(tool: Tool) -> str:
    parameters = ", ".join(f"{name}: {kind}" for name, kind in tool.parameters.items())
    return f"{tool.name}({parameters})\n"


def template_messages(messages: tuple[Message, ...], *, thinking: bool) -> list[dict[str, Any]]:
    """Return the messages in the shape that ``apply_chat_template`` takes."""
    return [_template_message(message, thinking=thinking) for message in messages]


def _template_message(message: Message, *, thinking: bool) -> dict[str, Any]:
    shaped: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.calls:
        shaped["tool_calls"] = [_template_call(call) for call in message.calls]
    if thinking and message.thought:
        shaped["reasoning_content"] = message.thought
    return shaped


def _template_call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": dict(call.arguments)}
    return {"type": "function", "function": function}


def template_tools(tools: tuple[Tool, ...]) -> list[dict[str, Any]] | None:
    """Return the tools in the shape that ``apply_chat_template`` takes; None for none."""
    return [_template_tool(tool) for tool in tools] or None


def _template_tool(tool: Tool) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in tool.parameters.items()}
    function = {
        "name": tool.name,
        "description": "Does something useful.",
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(tool.parameters),
        },
    }
    return {"type": "function", "function": function}
