"""Calls that must come follow their schemas in every family, strict or not, as far as masks can."""

import json
import os
import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import jsonschema_rs
import pytest
from _pytest.mark.structures import ParameterSet

from engine.grammar.compiler import check_grammar
from engine.request import RequestRefused, StructuredOutput
from server.model_formats.model_format import CallDelta, CallEnd, PromptConversation, PromptTool
from server.model_formats.output_grammar.argument_schemas import alternatives
from server.model_formats.output_grammar.relaxed_schemas import (
    MAX_REFERENCES,
    enforceable,
    forced_levels,
    without_unenforced,
)
from server.protocol.responses.items import InputText, Message
from server.protocol.responses.tools import ToolChoice
from tests.support.engines import make_request
from tests.support.families import GRAMMAR_CALLERS, format_of
from tests.support.schemas import random_parameters
from tests.support.walks import compiler_of, hints_of, walk

ROUNDS = 100 if os.environ.get("FAULT_ROUNDS") else 3
USER = Message("1", "completed", "user", [InputText("hi")])
SHORT = {"type": "string", "maxLength": 4}


def closed(more: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **(more or {}),
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "an optional of pydantic's": closed(
        n={"type": "integer", "minimum": 0, "maximum": 99},
        o={"anyOf": [SHORT, {"type": "null"}], "default": None},
    ),
    "a reference": closed({"$defs": {"U": {"enum": ["C", "F"]}}}, u={"$ref": "#/$defs/U", "default": "C"}),
    "bounds of a number": closed(n={"type": "integer", "minimum": 3, "exclusiveMaximum": 8}),
    "a length": closed(s={"type": "string", "minLength": 2, "maxLength": 4}),
    "a number of elements": closed(
        l={"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "null"}}
    ),
    "a pattern": closed(s={"type": "string", "pattern": "^[a-c]{2,3}$"}),
    "a format": closed(d={"type": "string", "format": "date"}),
    "one of": closed(v={"oneOf": [{"type": "integer", "maximum": 9, "minimum": 0}, {"const": "no"}]}),
    "two objects": {
        "anyOf": [
            closed(kind={"const": "a"}, x={"type": "boolean"}),
            closed(kind={"const": "b"}, y={"type": "boolean"}),
        ]
    },
    "all of two objects": {
        "allOf": [
            {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
            {"$ref": "#/$defs/y"},
        ],
        "$defs": {"y": {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"]}},
    },
    "a map": {"type": "object", "additionalProperties": {"enum": [1, 2]}, "minProperties": 1},
    "a map within": closed(m={"type": "object", "additionalProperties": {"type": "boolean"}}),
}
LEFT_OUT: dict[str, dict[str, Any]] = {
    "uniqueItems": closed(
        l={"type": "array", "uniqueItems": True, "items": {"type": "boolean"}, "maxItems": 2}
    ),
    "not": closed(s={"enum": ["a", "b"], "not": {"const": "a"}}),
    "if": closed({"if": {"required": ["a"]}, "then": {"minProperties": 3}}, a={"type": "boolean"}),
    "a pattern that looks around": closed(s={"type": "string", "maxLength": 3, "pattern": "^(?=x)"}),
    "a pattern that is none": closed(s={"type": "string", "maxLength": 3, "pattern": "("}),
    "an unknown format": closed(s={"type": "string", "maxLength": 3, "format": "phone"}),
    "a reference elsewhere": closed(s={"$ref": "https://example.com/s.json", "enum": ["x"]}),
    "no value at all": closed(n={"type": "integer", "minimum": 5, "maximum": 3}),
    "half a character": closed(s={"type": "boolean", "description": "\ud800", "enum": [True, "\ud800"]}),
}


def conversation(parameters: dict[str, Any] | None, *, strict: bool = False) -> PromptConversation:
    tool = PromptTool(name="f", parameters=parameters, strict=strict)
    choice = ToolChoice(mode="required", parallel=False)
    return PromptConversation(items=[USER], tools=[tool], tool_choice=choice, reasoning_effort="none")


def followed(compiler: Any, grammar: StructuredOutput) -> StructuredOutput:
    """What the engine follows in its place."""
    engine_request = make_request("forced", [1], grammar=grammar, stop_ids=frozenset({0}))
    compiled = check_grammar(engine_request, compiler)
    candidate: StructuredOutput | None = grammar
    while candidate is not None:
        with suppress(RequestRefused):
            if compiler.compiled(candidate, engine_request.fairness_key) is compiled:
                return candidate
        candidate = candidate.relaxed
    raise AssertionError("the engine follows none of its grammars")


def arguments(family: str, parameters: dict[str, Any] | None, seed: str, rounds: int = ROUNDS) -> list[Any]:
    """Of forced calls that were drawn at random, as far as the grammar allows it."""
    compiler, chance = compiler_of(family), random.Random(seed)
    prompt = format_of(family).write(conversation(parameters))
    assert prompt.grammar is not None
    grammar = followed(compiler, prompt.grammar)
    found = []
    for _ in range(rounds):
        parser = format_of(family).parser(prompt)
        deltas = parser.feed(walk(compiler, grammar, chance, hints_of(family))) + parser.close()
        assert deltas[-1] == CallEnd(), deltas
        found.append(json.loads("".join(one.text for one in deltas if isinstance(one, CallDelta))))
    return found


def crossed(names: Iterable[str]) -> list[ParameterSet]:
    """Every family with every schema; of the families in the suite, a sixth of the pairs."""
    return [
        pytest.param(*family.values, name, marks=[*family.marks, *([pytest.mark.faults] * (number % 6 > 0))])
        for place, family in enumerate(GRAMMAR_CALLERS)
        for number, name in enumerate(names, place)
    ]


@pytest.mark.parametrize(("family", "name"), crossed(SCHEMAS))
def test_a_forced_call_follows_its_schema_though_it_is_not_strict(family: str, name: str) -> None:
    schema = SCHEMAS[name]
    if (
        family == "minimax_m3"
    ):  # its elements end with their names, and no grammar repeats one it does not know
        schema = {keyword: value for keyword, value in schema.items() if keyword != "minProperties"}
    check = jsonschema_rs.validator_for(schema, validate_formats=True)
    for value in arguments(family, SCHEMAS[name], name):
        check.validate(value)


@pytest.mark.parametrize(("family", "name"), crossed(LEFT_OUT))
def test_what_cannot_be_enforced_is_left_out_and_the_rest_is_followed(family: str, name: str) -> None:
    properties = LEFT_OUT[name]["properties"]
    for value in arguments(family, LEFT_OUT[name], name):
        assert value.keys() == properties.keys()
        if name == "uniqueItems":
            assert all(isinstance(one, bool) for one in value["l"])
            assert len(value["l"]) <= 2
        if name in ("a pattern that looks around", "an unknown format"):
            assert len(value["s"]) <= 3
        if name == "a pattern that is none":
            assert isinstance(value["s"], str)
        if name == "not":
            assert value["s"] in ("a", "b")


@pytest.mark.parametrize("family", GRAMMAR_CALLERS)
def test_forced_calls_follow_random_schemas(family: str) -> None:
    chance = random.Random(family)
    for number in range(ROUNDS):
        schema = random_parameters(chance)
        for value in arguments(family, schema, str(number), 1):
            jsonschema_rs.validate(schema, value)


@pytest.mark.parametrize("parameters", [None, {}, {"type": "string"}, {"anyOf": "?"}, {"properties": []}])
def test_a_forced_call_of_any_object_is_an_object(parameters: dict[str, Any] | None) -> None:
    for family in ("hermes", "qwen3_coder", "pythonic", "gemma4"):
        assert all(isinstance(value, dict) for value in arguments(family, parameters, "any", 2))


def test_a_forced_call_of_a_schema_that_takes_too_much_follows_its_shape() -> None:
    slow = closed(s={"type": "string", "allOf": [{"pattern": f"x{number}y"} for number in range(40)]})
    assert enforceable(slow) == slow
    for value in arguments("hermes", slow, "slow"):
        assert isinstance(value["s"], str)


def test_of_a_schema_that_is_enforced_what_means_nothing_is_kept_and_what_cannot_be_is_not() -> None:
    assert enforceable({"minLength": 3} | closed(a={"not": {}})) == closed({"minLength": 3}, a={})


def test_a_reference_has_a_name_of_its_own_and_there_is_a_bound_for_them() -> None:
    schema = closed({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "null"}}}, x={"$ref": "#/$defs/a"})
    part = enforceable(schema)
    assert part["properties"] == {"x": {"$ref": "#/$defs/d0"}}
    assert part["$defs"] == {"d0": {"$ref": "#/$defs/d1"}, "d1": {"type": "null"}}
    many = {f"p{number}": {"$ref": f"#/$defs/r{number}"} for number in range(MAX_REFERENCES + 1)}
    schema = closed({"$defs": {f"r{number}": {"type": "null"} for number in range(len(many))}}, **many)
    assert enforceable(schema)["properties"][f"p{MAX_REFERENCES}"] == {}


def test_a_schema_that_refers_to_itself_is_followed() -> None:
    schema = closed(next={"anyOf": [{"type": "null"}, {"$ref": "#"}]})
    check = jsonschema_rs.validator_for(schema)
    for family in ("hermes", "qwen3_coder", "pythonic", "gemma4"):
        for value in arguments(family, schema, "again"):
            check.validate(value)


def test_strict_functions_and_custom_tools_stay_as_they_are() -> None:
    tools = [PromptTool(name="f", parameters=closed(), strict=True), PromptTool(name="g", kind="custom")]
    assert forced_levels(tools) == [tools]
    levels = forced_levels([*tools, PromptTool(name="h", parameters=closed(a={"not": {}}))])
    assert [level[:2] for level in levels] == [tools] * 3
    assert [level[2].parameters for level in levels] == [
        closed(a={}),
        closed(a={}),
        {"type": "object"},
    ]


def test_more_alternatives_than_are_written_out_are_the_schema_itself() -> None:
    branches = [closed(**{f"p{number}": {"type": "null"}}) for number in range(20)]
    tool = PromptTool(name="f", strict=True, parameters={"type": "object", "anyOf": branches})
    assert [one.parameters for one in alternatives(tool)] == [tool.parameters]


def test_many_functions_that_take_anything_need_one_schema() -> None:
    tools = [PromptTool(name=f"f{number}") for number in range(128)]
    choice = ToolChoice(mode="required")
    for family in ("hermes", "qwen3_coder", "gemma4"):
        prompt = format_of(family).write(PromptConversation(items=[USER], tools=tools, tool_choice=choice))
        compiler = compiler_of(family)
        assert prompt.grammar is not None
        assert followed(compiler, prompt.grammar) == prompt.grammar


def test_keywords_that_cannot_be_enforced_are_left_out_at_every_level() -> None:
    schema = {
        "type": "object",
        "properties": {
            "not": {"type": "array", "uniqueItems": True, "items": {"not": {"const": 1}, "type": "integer"}},
            "if": {"anyOf": [{"type": "string", "if": {}, "then": {}, "else": {}}, True]},
        },
        "$defs": {"d": {"propertyNames": {"pattern": "a"}, "additionalProperties": {"not": {}}}},
        "required": ["not"],
        "uniqueItems": True,
    }
    assert without_unenforced(schema) == {
        "type": "object",
        "properties": {
            "not": {"type": "array", "items": {"type": "integer"}},
            "if": {"anyOf": [{"type": "string"}, True]},
        },
        "$defs": {"d": {"additionalProperties": {}}},
        "required": ["not"],
    }


def test_a_value_that_is_no_schema_stays_as_it_is() -> None:
    schema = {"enum": [{"not": 1}], "const": {"uniqueItems": True}, "default": {"if": 1}}
    assert without_unenforced(schema) == schema
    assert without_unenforced(True) is True
