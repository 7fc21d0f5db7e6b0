"""Whatever schemas a client's tools have, they are read, or refused, in little time: references multiply."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from server.model_formats.model_format import Prompt, PromptConversation, PromptError, PromptTool
from server.protocol.responses.items import InputText, Message
from server.protocol.responses.tools import ToolChoice
from tests.support.families import format_of, ids_of
from tests.support.family_formats import FAMILIES

MOST_S = 2.0
"""Of processor time; most of these take hundredths of it."""
PER_PROPERTY = ("qwen3_coder", "functiongemma", "pythonic")
"""Families that write a call property by property, one for each way."""


def named(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"city": schema}, "$defs": definitions}


def reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def chain(leaf: dict[str, Any]) -> dict[str, Any]:
    """Fifteen levels of alternatives, which have three times as many schemas each."""
    levels = {f"a{level}": {"anyOf": [reference(f"a{level + 1}")] * 3} for level in range(15)}
    return {**levels, "a15": leaf}


HELLO = Message("m", "completed", "user", [InputText("Hi")])
ITSELF = {"a": {"anyOf": [reference("a")] * 6}}
TREE = {"a": {"type": "object", "properties": {name: reference("a") for name in "stuvwxyz"}}}
SCHEMAS = {
    "alternatives that are itself": named(reference("a"), ITSELF),
    "alternatives that are itself, at the top": {**reference("a"), "$defs": ITSELF},
    "parts that are itself": named(reference("a"), {"a": {"allOf": [reference("a")] * 6}}),
    "alternatives of strings": named(reference("a0"), chain({"type": "string"})),
    "alternatives of numbers": named(reference("a0"), chain({"type": "integer"})),
    "alternatives of anything": named({"type": ["string", "null"], **reference("a0")}, chain({})),
    "objects within objects": named(reference("a"), TREE),
    "objects in lists": named({"type": "array", "items": reference("a")}, TREE),
}


def seconds(act: Callable[[], object]) -> float:
    begun = time.thread_time()
    with suppress(PromptError):
        act()
    return time.thread_time() - begun


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("name", PER_PROPERTY)
def test_a_schema_that_multiplies_is_read_in_little_time(name: str, schema: dict[str, Any]) -> None:
    for strict in (False, True):
        tool = PromptTool(name="get_weather", parameters=schema, strict=strict)
        choice = ToolChoice(mode="required" if strict else "auto", parallel=False)
        conversation = PromptConversation(items=[HELLO], tools=[tool], tool_choice=choice)
        assert seconds(lambda: format_of(name).write(conversation)) < MOST_S  # noqa: B023 - called here
        parser = format_of(name).parser(Prompt(token_ids=(), stop_ids=frozenset(), tools=[tool]))
        assert seconds(lambda: parser.feed(ids_of(name, FAMILIES[name].call))) < MOST_S  # noqa: B023 - as above


def test_the_time_for_a_grammar_grows_as_the_arguments_do() -> None:
    def many(name: str) -> PromptTool:
        properties = {f"{name}{number}": {"type": "string", "maxLength": number} for number in range(1000)}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        return PromptTool(name=name, parameters=schema, strict=True)

    def conversation(names: str) -> PromptConversation:
        return PromptConversation(
            items=[HELLO], tools=list(map(many, names)), tool_choice=ToolChoice(mode="required")
        )

    few, more = conversation("a"), conversation("abcdefgh")
    least = min(seconds(lambda: format_of("pythonic").write(more)) for _ in range(3))
    assert least < 20 * min(seconds(lambda: format_of("pythonic").write(few)) for _ in range(3))
