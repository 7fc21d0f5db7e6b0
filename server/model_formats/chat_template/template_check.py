"""`contradictions`: what a chat template writes of an assistant's turn and the model's format does not read.

A model writes as its template does. So the text that the template adds for an answer, a thought and a call,
read by the output parser, must give that answer, thought and call back: else answers would be garbled.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.model_format import (
    CallDelta,
    CallStart,
    Delta,
    Prompt,
    PromptConversation,
    PromptError,
    PromptTool,
    ReasoningDelta,
    TextDelta,
)
from server.protocol.responses.items import (
    FunctionCall,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)

Part = Literal["answers", "reasoning", "calls"]
_ANSWER, _THOUGHT, _NAME = "Four words of answer", "Three words thought", "xcalledx"
_USER = Message("msg_1", "completed", "user", [InputText("Say")])
_SAID = Message("msg_2", "completed", "assistant", [OutputText(_ANSWER)])
_THOUGHTS = Reasoning("rs_1", "completed", [], [ReasoningText(_THOUGHT)])
_STRING, _NUMBER = (
    FunctionCall("fc_1", "completed", "call_1", _NAME, arguments)
    for arguments in ('{"a": "bcd"}', '{"a": 4711}')
)
_TURNS: tuple[tuple[Part, Sequence[Sequence[Item]]], ...] = (
    ("answers", [(_SAID,)]),
    ("reasoning", [(_THOUGHTS, _SAID)]),
    ("calls", [(_STRING,), (_NUMBER,)]),
)
"""The parts with turns of which one must be read: some templates quote no argument, some quote numbers."""


def contradictions(model_format: ChatTemplateFormat) -> list[Part]:
    """The parts that would not be read as what they are; none where the template cannot show a part."""
    if not model_format.has_template:
        return []
    return [part for part, turns in _TURNS if not any(_is_read_back(model_format, turn) for turn in turns)]


def _tool_of(call: Item) -> PromptTool:
    properties = {"a": {"type": "string" if call is _STRING else "integer"}}
    parameters = {"type": "object", "properties": properties}
    return PromptTool(name=_NAME, description="A tool.", parameters=parameters)


def _is_read_back(model_format: ChatTemplateFormat, turn: Sequence[Item]) -> bool:
    calls = [item for item in turn if isinstance(item, FunctionCall)]
    tools = list(map(_tool_of, calls))
    try:
        asked, bare = (
            model_format.write(PromptConversation(items=[_USER], tools=tools, add_generation_prompt=begins))
            for begins in (True, False)
        )
        whole = model_format.write(
            PromptConversation(items=[_USER, *turn], tools=tools, add_generation_prompt=False)
        )
    except PromptError:
        return True
    if asked.token_ids == bare.token_ids:
        return True  # it does not begin the turn of the assistant
    before = model_format.without_reasoning_marks(model_format.spell(asked.token_ids))
    header, _, written = model_format.spell(whole.token_ids).partition(before)
    words = _words(turn)
    if header or not all(word in written for word in words):
        return True
    if not calls:  # what follows ends the turn
        written = written[: written.rindex(words[-1]) + len(words[-1])]
    ids = model_format.encode(written, special=False)
    read = Prompt(token_ids=(), stop_ids=asked.stop_ids, tools=tools)
    parsers = [model_format.parser(replace(read, opens_reasoning=opened)) for opened in (False, True)]
    return any(_fits(parser.feed(ids) + parser.close(), turn) for parser in parsers)


def _words(turn: Sequence[Item]) -> list[str]:
    said = {
        id(_SAID): [_ANSWER],
        id(_THOUGHTS): [_THOUGHT],
        id(_STRING): [_NAME, "bcd"],
        id(_NUMBER): [_NAME, "4711"],
    }
    return [word for item in turn for word in said[id(item)]]


def _fits(deltas: Sequence[Delta], turn: Sequence[Item]) -> bool:
    text, thought, names, arguments = (
        "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)).strip(),
        "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)).strip(),
        [delta.name for delta in deltas if isinstance(delta, CallStart)],
        "".join(delta.text for delta in deltas if isinstance(delta, CallDelta)),
    )
    if isinstance(turn[0], FunctionCall):
        return names == [_NAME] and _is_same_json(arguments, turn[0].arguments)
    if _THOUGHTS in turn:
        return (text, thought) == (_ANSWER, _THOUGHT)
    return _ANSWER in (text, thought) and "" in (text, thought)  # some templates leave reasoning open


def _is_same_json(text: str, other: str) -> bool:
    try:
        return bool(json.loads(text) == json.loads(other))
    except ValueError:
        return False
