"""`contradictions`: what a chat template writes of an assistant's turn and the model's format does not read.

A model writes as its template does. So the text that the template adds for an answer, a thought and a call,
read by the output parser, must give that answer, thought and call back: else answers would be garbled.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

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
_TURNS: tuple[tuple[Part, Sequence[Item], Sequence[str]], ...] = (
    ("answers", [_SAID], [_ANSWER]),
    ("reasoning", [_THOUGHTS, _SAID], [_THOUGHT, _ANSWER]),
    ("calls", [_STRING], [_NAME, "bcd"]),
    ("calls", [_NUMBER], [_NAME, "4711"]),
)
"""The parts with turns, of which one of each must be read, and their words: some templates quote no argument,
some quote numbers.
"""


def contradictions(model_format: ChatTemplateFormat) -> list[Part]:
    """The parts that would not be read as what they are; none where the template cannot show a part."""
    read = {part for part, turn, words in _TURNS if _is_read_back(model_format, turn, words)}
    return [part for part in get_args(Part) if part not in read]


def _is_read_back(model_format: ChatTemplateFormat, turn: Sequence[Item], words: Sequence[str]) -> bool:
    call = turn[0] if isinstance(turn[0], FunctionCall) else None
    properties = {"a": {"type": "string" if call is _STRING else "integer"}}
    parameters = {"type": "object", "properties": properties}
    tools = [PromptTool(name=_NAME, description="A tool.", parameters=parameters)] if call else []
    conversation = PromptConversation(items=[_USER], tools=tools, add_generation_prompt=False)
    try:
        prompt = model_format.write(replace(conversation, add_generation_prompt=True))
        bare = model_format.write(conversation)
        whole = model_format.write(replace(conversation, items=[_USER, *turn]))
    except PromptError:
        return True
    if prompt.token_ids == bare.token_ids:
        return True  # it does not begin the turn of the assistant
    before = model_format.without_reasoning_marks(model_format.spell(prompt.token_ids))
    header, _, written = model_format.spell(whole.token_ids).partition(before)
    if header or not all(word in written for word in words):
        return True
    if call is None:  # what follows ends the turn
        written = written[: written.rindex(words[-1]) + len(words[-1])]
    ids = model_format.encode(written, special=False)
    read = Prompt(token_ids=(), stop_ids=prompt.stop_ids, tools=tools)
    parsers = [model_format.parser(replace(read, opens_reasoning=opened)) for opened in (False, True)]
    return any(_fits(parser.feed(ids) + parser.close(), turn) for parser in parsers)


def _fits(deltas: Sequence[Delta], turn: Sequence[Item]) -> bool:
    text, thought, arguments = (
        "".join(delta.text for delta in deltas if isinstance(delta, kind)).strip()
        for kind in (TextDelta, ReasoningDelta, CallDelta)
    )
    if isinstance(turn[0], FunctionCall):
        names = [delta.name for delta in deltas if isinstance(delta, CallStart)]
        return names == [_NAME] and _is_same_json(arguments, turn[0].arguments)
    if _THOUGHTS in turn:
        return (text, thought) == (_ANSWER, _THOUGHT)
    return _ANSWER in (text, thought) and "" in (text, thought)  # some templates leave reasoning open


def _is_same_json(text: str, other: str) -> bool:
    try:
        return bool(json.loads(text) == json.loads(other))
    except ValueError:
        return False
