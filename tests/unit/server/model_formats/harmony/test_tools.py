"""Schemas of arguments as the TypeScript that gpt-oss is shown."""

from collections.abc import Sequence
from typing import Any

import pytest

from server.generation.hosted_items import items_for_model
from server.model_formats.harmony.tools import MAX_DEPTH, MAX_RUN, encodable, inlined_schema
from server.model_formats.model_format import PromptConversation, PromptError, PromptTool
from server.protocol.responses.items import CodeInterpreterCall, Item
from tests.support.harmony import encoding, harmony_format, text_of, user


def shown(schema: dict[str, Any]) -> str:
    """What stands between the parentheses of the function's type."""
    tool = {"name": "f", "description": "", "parameters": inlined_schema(schema)}
    text = encoding().tools_section({"functions": [tool]})
    return text[text.index("(_: ") + 4 : text.index(") => any;")]


def of(prop: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": prop}, "required": ["a"], **more}


POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}

TYPES: dict[str, tuple[dict[str, Any], str]] = {
    "string": (of({"type": "string"}), "{\na: string,\n}"),
    "optional": ({"properties": {"a": {"type": "integer"}}}, "{\na?: number,\n}"),
    "types": (of({"type": ["string", "null"]}), "{\na: string | null,\n}"),
    "null": (of({"type": "null"}), "{\na: null,\n}"),
    "any of types": (of({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "{\na: number | null,\n}"),
    "one of types": (of({"oneOf": [{"type": "string"}, {"const": 3}]}), "{\na: string | 3,\n}"),
    "any of objects": (
        of({"anyOf": [POINT, {"type": "null"}]}),
        "{\na:\n | {\n   x: number,\n   }\n | null\n,\n}",
    ),
    "strings": (of({"enum": ["x", "y"]}), '{\na: "x" | "y",\n}'),
    "values": (of({"enum": [1, None, "x", True]}), '{\na: 1 | null | "x" | true,\n}'),
    "constant": (of({"const": "x"}), '{\na: "x",\n}'),
    "number": (of({"const": 2.5}), "{\na: 2.5,\n}"),
    "reference": (of({"$ref": "#/$defs/p"}, **{"$defs": {"p": {"type": "boolean"}}}), "{\na: boolean,\n}"),
    "old reference": (
        of({"$ref": "#/definitions/a~1b"}, definitions={"a/b": {"type": "boolean"}}),
        "{\na: boolean,\n}",
    ),
    "reference with more": (
        of({"$ref": "#/$defs/p", "description": "Mine"}, **{"$defs": {"p": {"type": "string"}}}),
        "{\n// Mine\na: string,\n}",
    ),
    "reference to a place in a list": (of({"$ref": "#/$x/1"}, **{"$x": [0, {"const": 1}]}), "{\na: 1,\n}"),
    "reference to nothing": (of({"$ref": "#/$defs/none"}), "{\na: any,\n}"),
    "reference elsewhere": (of({"$ref": "http://127.0.0.1/x"}), "{\na: any,\n}"),
    "recursion": (
        of({"$ref": "#/$defs/l"}, **{"$defs": {"l": of({"$ref": "#/$defs/l"})}}),
        "{\na: {\n    a: any,\n    },\n}",
    ),
    "all of": (
        of({"allOf": [{"$ref": "#/$defs/p"}]}, **{"$defs": {"p": POINT}}),
        "{\na: {\n    x: number,\n    },\n}",
    ),
    "all of the properties": (
        {"allOf": [POINT, {"properties": {"y": {"type": "string"}}}]},
        "{\nx: number,\ny?: string,\n}",
    ),
    "array": (of({"type": "array", "items": {"enum": ["x"]}}), '{\na: "x"[],\n}'),
    "properties and alternatives": (of({"const": 1}, anyOf=[{"required": ["a"]}]), "{\na: 1,\n}"),
    "lines": (of({"type": "string", "description": "One.\nTwo."}), "{\n// One. Two.\na: string,\n}"),
    "default": (of({"type": "integer", "default": 3}), "{\na: number, // default: 3\n}"),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_a_schema_is_shown_as_its_type(name: str) -> None:
    schema, expected = TYPES[name]
    assert shown(schema) == expected


NONSENSE: list[Any] = [3, None, "x", [], [3], {"a": 3}]


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize(
    "key",
    ["type", "properties", "required", "items", "anyOf", "allOf", "enum", "$ref", "description", "default"],
)
def test_nonsense_is_shown_as_something(key: str, value: Any) -> None:
    assert shown(of({"type": "object", "properties": {"b": {}}, key: value}))


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = of(schema)
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """Every definition refers to the next twice."""
    links = {
        str(n): {"properties": {"a": {"$ref": f"#/$defs/{n + 1}"}, "b": {"$ref": f"#/$defs/{n + 1}"}}}
        for n in range(levels)
    }
    return {"$ref": "#/$defs/0", "$defs": links}


def test_what_is_too_large_is_refused() -> None:
    assert shown(nested(MAX_DEPTH))
    values: list[Any] = []
    for _ in range(500):
        values = [values]
    for schema in (nested(MAX_DEPTH + 1), doubling(25), of({"default": values})):
        with pytest.raises(PromptError) as refused:
            inlined_schema(schema)
        assert refused.value.param == "tools"


def test_long_runs_are_broken() -> None:
    assert encodable("a" * 10**6).split() == ["a" * MAX_RUN] * 1000
    assert encodable("a" + " " * 10**6 + "b") == "a" + " " * MAX_RUN + "b"
    assert encodable("just words\n\n") == "just words\n\n"
    assert len(shown(of({"enum": ["🙂" * 10_000]}))) > 10_000


TOOLS = [
    PromptTool(name="python", namespace="python", parameters={"type": "object"}, builtin=True),
    PromptTool(name="search", namespace="browser", parameters={"type": "object"}, builtin=True),
]


def written(items: Sequence[Item], **fields: Any) -> str:
    return text_of(harmony_format().write(PromptConversation(items=items, **fields)).token_ids)


def test_they_are_told_in_the_models_own_words() -> None:
    asked = written([user("a")], chat_template_kwargs={"builtin_tools": ["browser", "python"]})
    assert written([user("a")], tools=TOOLS) == asked
    assert asked != written([user("a")])


def test_code_that_was_run_is_read_as_the_model_wrote_it() -> None:
    ran = CodeInterpreterCall("ci_1", "completed", "1 + 1", "c", [{"type": "logs", "logs": "2"}])
    text = written([user("a"), *items_for_model([ran])], tools=TOOLS)
    assert "to=python<|channel|>analysis code<|message|>1 + 1<|call|>" in text
    assert "<|start|>python to=assistant<|channel|>analysis<|message|>2<|end|>" in text
