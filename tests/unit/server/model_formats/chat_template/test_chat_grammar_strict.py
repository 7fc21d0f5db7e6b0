"""The arguments of strict functions follow their schemas in every family, however its calls are written."""

import json
import os
import random
from typing import Any

import pytest

from server.model_formats.model_format import (
    CallDelta,
    CallEnd,
    PromptConversation,
    PromptError,
    PromptTool,
)
from server.model_formats.output_grammar.argument_schemas import types_of
from server.protocol.responses.items import InputText, Message
from server.protocol.responses.tools import ToolChoice
from tests.support.families import GRAMMAR_CALLERS, format_of
from tests.support.schemas import check_value, random_parameters
from tests.support.walks import compiler_of, hints_of, walk

ROUNDS = 300 if os.environ.get("FAULT_ROUNDS") else 6
USER = Message("1", "completed", "user", [InputText("hi")])
REQUIRED = ToolChoice(mode="required", parallel=False)


def strict(parameters: dict[str, Any]) -> PromptConversation:
    tool = PromptTool(name="f", parameters=parameters, strict=True)
    return PromptConversation(items=[USER], tools=[tool], tool_choice=REQUIRED, reasoning_effort="none")


@pytest.mark.parametrize("family", GRAMMAR_CALLERS)
def test_arguments_follow_random_schemas(family: str) -> None:
    compiler, chance = compiler_of(family), random.Random(family)
    for _ in range(ROUNDS):
        schema = random_parameters(chance)
        prompt = format_of(family).write(strict(schema))
        assert prompt.grammar is not None
        for _ in range(2):
            parser = format_of(family).parser(prompt)
            deltas = parser.feed(walk(compiler, prompt.grammar, chance, hints_of(family)))
            deltas += parser.close()
            assert deltas[-1] == CallEnd(), (schema, deltas)
            said = "".join(delta.text for delta in deltas if isinstance(delta, CallDelta))
            check_value(json.loads(said), schema)


@pytest.mark.parametrize("family", ["qwen3_coder", "glm45", "minimax_m2"])
@pytest.mark.parametrize("pattern", ["a(?=b)", r"\bword", "(?!x)y"])
def test_a_pattern_that_looks_around_is_refused(family: str, pattern: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": pattern}},
        "required": ["a"],
    }
    with pytest.raises(PromptError, match="looks around") as refusal:
        format_of(family).write(strict(schema))
    assert refusal.value.param == "tools"


@pytest.mark.parametrize(
    "family", ["gemma4", "functiongemma", "qwen3_coder", "minimax_m3", "pythonic", "hermes"]
)
def test_a_string_that_cannot_be_is_no_error_of_the_server(family: str) -> None:
    never = {"allOf": [{"type": "string", "enum": ["a"]}, {"type": "string", "enum": [1]}], "type": "string"}
    schema = {"type": "object", "properties": {"a": never}, "required": ["a"]}
    assert format_of(family).write(strict(schema)).grammar is not None


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, set()),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"type": ["string", "integer"], "enum": ["a", "b"]}, {"string"}),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "number"}]}, {"integer"}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"const": 1.5}}}, {"number"}),
        ({"anyOf": [{"type": "string"}, {}]}, set()),
    ],
)
def test_types_are_what_all_parts_of_a_schema_leave(schema: Any, types: set[str]) -> None:
    assert types_of(schema) == types
