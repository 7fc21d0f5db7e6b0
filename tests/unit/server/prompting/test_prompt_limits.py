"""What a caller sent is held to its bounds before a model's format works on it."""

from typing import Any

import pytest

from server.errors import InvalidRequest
from server.model_formats.model_format import (
    Prompt,
    PromptConversation,
    PromptTool,
    PromptTooLong,
)
from server.prompting.prompt_limits import (
    MAX_DEFINITION,
    MAX_FUNCTIONS,
    MAX_TOOL_CHARACTERS,
    MAX_TOOL_VALUES,
    MAX_TOOLS_CHARACTERS,
    check_tools_and_format,
)
from server.prompting.write_prompt import characters_of, write_within
from server.protocol.responses.items import InputText, Item, Message
from server.protocol.responses.request import TextFormat


def function(schema: dict[str, Any], name: str = "f") -> PromptTool:
    return PromptTool(name=name, parameters={"type": "object", "properties": {"a": schema}}, strict=True)


def custom(syntax: Any, definition: str) -> PromptTool:
    return PromptTool(name="c", kind="custom", syntax=syntax, definition=definition)


BAD_TOOLS: dict[str, list[PromptTool]] = {
    "too many": [PromptTool(name=f"f{n}") for n in range(MAX_FUNCTIONS + 1)],
    "one too long": [PromptTool(name="f", description="d" * MAX_TOOL_CHARACTERS)],
    "all too long": [
        PromptTool(name=f"f{n}", description="d" * (MAX_TOOL_CHARACTERS - 9))
        for n in range(MAX_TOOLS_CHARACTERS // MAX_TOOL_CHARACTERS + 1)
    ],
    "too many values": [PromptTool(name="f", parameters={"enum": list(range(MAX_TOOL_VALUES))})],
    "long key": [PromptTool(name="f", parameters={"k" * MAX_TOOL_CHARACTERS: 1})],
    "brackets": [function({"type": "string", "pattern": "[" * 10**6})],
    "long regex": [custom("regex", "a" * (MAX_DEFINITION + 1))],
    "long grammar": [custom("lark", "start: " + "A" * MAX_DEFINITION)],
}


@pytest.mark.parametrize("name", BAD_TOOLS)
def test_tools_beyond_the_bounds_are_refused_by_their_parameter(name: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_tools_and_format(PromptConversation(items=[], tools=BAD_TOOLS[name]))
    assert refusal.value.param == "tools"


def test_a_tool_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"a": schema}
    with pytest.raises(InvalidRequest, match="nested"):
        check_tools_and_format(PromptConversation(items=[], tools=[PromptTool(name="f", parameters=schema)]))


def test_a_format_beyond_the_bounds_is_refused_by_its_parameter() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    for output_format, param in (
        (TextFormat(type="json_schema", schema=schema), "text.format.schema"),
        (TextFormat("text", name="n" * 999), "text.format.name"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            check_tools_and_format(PromptConversation(items=[], format=output_format))
        assert refusal.value.param == param


class Counting:
    """A model format that writes a token for each character, and refuses as it was told to."""

    max_chars_per_token = 10

    def __init__(self) -> None:
        self.written: list[int] = []

    def write(self, conversation: PromptConversation) -> Prompt:
        size = sum(len(_text(item)) for item in conversation.items)
        self.written.append(size)
        assert conversation.max_tokens is not None
        if size > conversation.max_tokens * 2:
            raise PromptTooLong(conversation.max_tokens)
        return Prompt(token_ids=(1,) * size, stop_ids=frozenset())

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        assert not special
        return (1,) * len(text)


def _text(item: Item) -> str:
    assert isinstance(item, Message)
    (part,) = item.content
    assert isinstance(part, InputText)
    return part.text


def turns(count: int, size: int) -> list[Item]:
    return [Message(str(n), "completed", "user", [InputText("x" * size)]) for n in range(count)]


def within(items: list[Item], limit: int, room: int | None) -> tuple[Counting, Prompt]:
    model_format = Counting()
    conversation = PromptConversation(items=items)
    size = characters_of(conversation)
    prompt = write_within(model_format, conversation, limit, size, room)  # type: ignore[arg-type]
    return model_format, prompt


def test_what_must_be_too_long_by_its_characters_is_not_written() -> None:
    model_format = Counting()
    with pytest.raises(PromptTooLong):
        write_within(model_format, PromptConversation(items=turns(1, 1001)), 100, 1001)  # type: ignore[arg-type]
    assert model_format.written == []


def test_a_long_conversation_is_shortened_in_few_tries_of_what_may_fit() -> None:
    model_format, prompt = within(turns(4096, 10), 100, 90)
    assert 60 <= len(prompt.token_ids) <= 90
    assert len(model_format.written) < 12
    assert max(model_format.written) <= 1000


def test_a_prompt_that_is_a_little_too_long_is_counted_to_its_end() -> None:
    _, prompt = within(turns(1, 150), 100, None)
    assert len(prompt.token_ids) == 150
