"""The bounds of grammars, each met and passed."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.limits import (
    MAX_CHAIN,
    MAX_COUNT,
    MAX_DEPTH,
    MAX_ENUM_VALUES,
    MAX_LARK,
    MAX_NAMES,
    MAX_OPTIONAL,
    MAX_PATTERN,
    MAX_PATTERN_PROPERTIES,
    MAX_PROPERTIES,
    MAX_SUBSCHEMAS,
    MAX_TOGETHER,
    BadGrammar,
    check_lark,
    check_pattern,
    check_schema,
    parse_json,
)
from tests.support.rounds import example_count


def within(levels: int, leaf: Any = True) -> Any:
    """Objects and arrays within each other, in turn."""
    for level in range(levels):
        leaf = {"items": leaf} if level % 2 else {"properties": {"a": leaf}}
    return leaf


def objects(count: int, *, required: bool = True, name: str = "p") -> dict[str, Any]:
    names = [f"{name}{n}" for n in range(count)]
    return {"properties": dict.fromkeys(names, True), "required": names if required else []}


def chain(length: int) -> dict[str, Any]:
    definitions = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length - 1)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length - 1}": True}}


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (within(MAX_DEPTH, {}), within(MAX_DEPTH + 1, {})),
        (objects(MAX_PROPERTIES), objects(MAX_PROPERTIES + 1)),
        (objects(MAX_OPTIONAL, required=False), objects(MAX_OPTIONAL + 1, required=False)),
        ({"enum": [0] * MAX_ENUM_VALUES}, {"enum": [0] * (MAX_ENUM_VALUES + 1)}),
        ({"const": "x" * MAX_NAMES}, {"const": "x" * (MAX_NAMES + 1)}),
        ({"properties": {"x" * MAX_NAMES: True}}, {"properties": {"x" * MAX_NAMES + "y": True}}),
        ({"minItems": MAX_COUNT}, {"minItems": MAX_COUNT + 1}),
        ({"items": {"maxLength": MAX_COUNT}}, {"items": {"maxLength": MAX_COUNT + 1}}),
        ({"pattern": "x" * MAX_PATTERN}, {"pattern": "x" * (MAX_PATTERN + 1)}),
        ({"allOf": [{"pattern": "x"}] * MAX_TOGETHER}, {"allOf": [{"pattern": "x"}] * (MAX_TOGETHER + 1)}),
        ({"anyOf": [{"pattern": "x"}] * 99, "pattern": "y"}, {"$ref": "#/x", "x": {"pattern": "x"}}),
        ({"allOf": [{"multipleOf": 100}] * 2}, {"allOf": [{"multipleOf": 100}] * 3}),
        (
            {"patternProperties": {f"a{n}": {} for n in range(MAX_PATTERN_PROPERTIES)}},
            {"patternProperties": {f"a{n}": {} for n in range(MAX_PATTERN_PROPERTIES + 1)}},
        ),
        ({"patternProperties": {"(a{9}){9}": {}}}, {"patternProperties": {"(a{999}){999}": {}}}),
        ({"anyOf": [{}] * (MAX_SUBSCHEMAS - 1)}, {"anyOf": [{}] * MAX_SUBSCHEMAS}),
        ({"multipleOf": 0.25}, {"multipleOf": 12345.678}),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {"$ref": "#"}}}}},
            {"$ref": "https://a.test/schema"},
        ),
        ({"properties": {"a": {"$ref": "#"}}}, {"$ref": "other.json#/a"}),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, {"$ref": "#"}),
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
        (chain(MAX_CHAIN), chain(MAX_CHAIN + 2)),
        ({"properties": {"pattern": {}, "enum": {}}}, {"properties": {"a": 1}}),
        (True, 3),
        ({"not": {}}, {"not": "a"}),
        ({"prefixItems": [True]}, {"allOf": True}),
        ({}, {"properties": []}),
        ({}, {"enum": "abc"}),
        ({}, {"$dynamicRef": "#a"}),
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_a_schema_is_refused_only_beyond_its_bound(good: Any, bad: Any) -> None:
    check_schema(good)
    with pytest.raises(BadGrammar):
        check_schema(bad)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("(.{0,99}){0,90}", "(.{0,500}){0,500}"),
        ("((a{20}){20}){20}", "((a{100}){100}){100}"),
        ("a{1,2}{1,2}{1,2}", "a{9}{9}{9}{9}{9}{9}{9}"),
        ("a{9999}", "a{99999999999999999999}"),
        ("a{999,}", "a{99999,}"),
        (r"\({20000}"[:2] + "{2}", r"\({20000}"),
        ("[(]" * 40, "(" * 40),
        (r"[^\]{9}]" + "(x)" * 90, "(" * 17 + "x" + ")" * 17),
        ("a{x}{,}", "(a|b{200}){200}"),
        ("]})", "[a-z{9]{20000}"),
    ],
)
def test_a_pattern_is_refused_only_beyond_its_cost(good: str, bad: str) -> None:
    check_pattern(good)
    with pytest.raises(BadGrammar):
        check_pattern(bad)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ('start: "' + "(" * 99 + '"', "start: " + "(" * 99),
        ("start: /[(\\/]" + "x" * 400 + "/", "start: /" + "x" * 600 + "/"),
        ("start: a ~ 5\n// ((((((((((((((((((((((((((((((((((((((((", "start: /(a{900}){900}/"),
        ("x" * MAX_LARK, "x" * (MAX_LARK + 1)),
        ("start: A" + " & A" * MAX_TOGETHER, "start: A" + " & A" * (MAX_TOGETHER + 1)),
    ],
    ids=["groups", "regex", "comment", "length", "and"],
)
def test_a_lark_grammar_is_refused_only_beyond_its_bounds(good: str, bad: str) -> None:
    check_lark(good)
    with pytest.raises(BadGrammar):
        check_lark(bad)


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


@pytest.mark.parametrize(
    ("check", "large", "pauses"),
    [
        (check_schema, objects(MAX_PROPERTIES), MAX_PROPERTIES),
        (check_schema, {"anyOf": [{"minimum": n} for n in range(MAX_SUBSCHEMAS - 1)]}, MAX_SUBSCHEMAS - 1),
        (check_schema, {"anyOf": [{"pattern": "a{2}" * 9}] * 100}, 1000),
        (check_lark, "start: a\n" + "a: /b{2}c/\n" * 1500, 1500),
    ],
    ids=["properties", "choices", "patterns", "lark"],
)
def test_a_long_check_lets_other_threads_on_at_every_turn(
    check: Callable[[Any], None], large: Any, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    monkeypatch.setattr("engine.grammar.pace.BURST_SECONDS", -1.0)  # it is always over
    monkeypatch.setattr("engine.grammar.pace.time.sleep", rests.append)
    check(large)
    assert len(rests) >= min(pauses, 1000)
    assert min(rests) > 0


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
    for check, given_value in (
        (check_schema, parse_json(json.dumps(value))),
        (check_pattern, pattern),
        (check_lark, pattern),
    ):
        with suppress(BadGrammar):
            check(given_value)
