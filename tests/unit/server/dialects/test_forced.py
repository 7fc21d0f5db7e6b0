"""Which functions are held to their schemas when one of them must be called."""

from typing import Any

import pytest

from server.dialects.base import Tool
from server.dialects.forced import MOST_SCHEMAS, held

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def is_held(parameters: dict[str, Any] | None) -> bool:
    (tool,) = held([Tool(name="f", parameters=parameters)])
    return tool.strict


@pytest.mark.parametrize(
    "parameters",
    [
        CITY,
        CITY | {"$schema": "http://json-schema.org/draft-07/schema#", "additionalProperties": False},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"n": {"type": ["integer", "null"], "default": 3, "title": "N"}}},
        {"type": "object", "properties": {"unit": {"enum": ["c", "f"]}}},
        {"type": "object", "properties": {"of": {"type": "array", "items": CITY}}},
    ],
)
def test_a_simple_schema_is_held_to(parameters: dict[str, Any]) -> None:
    assert is_held(parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"type": "string"},
        CITY | {"minProperties": 1},
        CITY | {"required": ["town"]},
        CITY | {"required": "city"},
        CITY | {"properties": []},
        CITY | {"additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"to-day": {"type": "string"}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"type": "text"}}},
        {"type": "object", "properties": {"a": {"type": []}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}},
        {"type": "object", "properties": {"a": {"enum": []}}},
        {"type": "object", "properties": {"a": {"enum": [1, "1"]}}},
    ],
)
def test_any_other_schema_is_not(parameters: dict[str, Any] | None) -> None:
    assert not is_held(parameters)


def test_a_schema_that_is_too_deep_is_not_held_to() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(8):
        schema = {"type": "object", "properties": {"a": schema}}
    assert not is_held(schema)


def test_functions_are_held_as_far_as_there_is_room() -> None:
    tools = held(Tool(name=f"f{number}", parameters=CITY) for number in range(MOST_SCHEMAS))
    assert [tool.strict for tool in tools] == [number < MOST_SCHEMAS // 2 for number in range(MOST_SCHEMAS)]


def test_custom_tools_stay_as_they_are() -> None:
    tool = Tool(name="f", kind="custom", parameters=CITY)
    assert held([tool]) == [tool]
