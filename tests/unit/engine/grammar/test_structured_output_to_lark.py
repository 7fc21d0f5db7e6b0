"""Translating a grammar to Lark: JSON that is none, schemas that need themselves, and any text."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.matcher import BadGrammar
from engine.grammar.structured_output_to_lark import parse_json, to_lark
from engine.request import StructuredOutputKind
from tests.support.grammars import grammar, schema
from tests.support.rounds import example_count


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"properties": {"a": {"$ref": "#"}}}, {"$ref": "#"}),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, {"anyOf": [{"$ref": "#"}]}),
        ({"items": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, {"allOf": [{"$ref": "#"}]}),
        (
            {"type": "object", "properties": {"a": {"$ref": "#"}}},
            {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        ),
        (
            {"type": "array", "items": {"$ref": "#"}},
            {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        ),
        (
            {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        ),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {"$ref": "#"}}}}},
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        ),
        ({"properties": {"$ref": {}, "allOf": {}, "anyOf": {}}}, {"$ref": "#/a/1", "a": [{}, {"$ref": "#"}]}),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_schema_is_refused_if_no_value_of_it_is_ever_complete(good: Any, bad: Any) -> None:
    to_lark(schema(good), {})
    with pytest.raises(BadGrammar, match="back to itself"):
        to_lark(schema(bad), {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nothing",
        "NaN",
        "1e999",
        '{"a":Infinity}',
        "[" * 100_000,
        '{"a":' * 100 + "1" + "}" * 100,
        "9" * 5000,
    ],
    ids=lambda text: text[:12],
)
def test_json_that_is_none_or_too_deep_is_refused(text: str) -> None:
    with pytest.raises(BadGrammar):
        parse_json(text)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["properties", "items", "enum", "$ref", "$defs", "pattern", "anyOf", "required", "multipleOf"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=example_count(100), deadline=None)
@given(value=json_values, pattern=st.text("(){}[]\\/,0129^a*+?|\n", max_size=40))
def test_any_json_and_any_text_is_let_through_or_refused(value: Any, pattern: str) -> None:
    contents: tuple[tuple[StructuredOutputKind, str], ...] = (
        ("json_schema", json.dumps(value)),
        ("regex", pattern),
        ("lark", pattern),
        ("structural_form", json.dumps(value)),
    )
    for kind, content in contents:
        with suppress(BadGrammar):
            to_lark(grammar(kind, content), {})
