import json
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.model_formats.model_format import Prompt
from server.model_formats.output_grammar.argument_schemas import types_of
from server.model_formats.tool_calls.json_reader import CustomInput, StringDecoder
from server.model_formats.tool_calls.xml_calls import as_json
from tests.support.builders import examples
from tests.support.families import CALLERS, TOOLS, format_of, ids_of
from tests.support.family_formats import FAMILIES

texts = st.text(st.sampled_from('ab"\\\n\t/u0d😀é\x01'), max_size=12)
cuts = st.lists(st.integers(0, 80), max_size=8)


def pieces_of(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@given(texts, cuts, st.booleans())
@examples(300)
def test_a_string_is_decoded_however_it_is_cut(text: str, places: list[int], ascii_only: bool) -> None:
    told: list[str] = []
    decoder = StringDecoder(told.append)
    for piece in pieces_of(json.dumps(text, ensure_ascii=ascii_only)[1:-1], places):
        decoder.feed(piece)
    decoder.close()
    assert "".join(told) == text


@given(st.text(st.sampled_from('\\ud83"n0a'), max_size=10), cuts)
@examples(300)
def test_a_broken_string_is_read_the_same_however_it_is_cut(text: str, places: list[int]) -> None:
    results = []
    for cut in ([], places):
        told: list[str] = []
        decoder = StringDecoder(told.append)
        for piece in pieces_of(text, cut):
            decoder.feed(piece)
        decoder.close()
        results.append("".join(told))
    assert results[0] == results[1]
    results[0].encode()


@given(texts, cuts)
@examples(200)
def test_a_custom_input_is_told_without_its_frame(text: str, places: list[int]) -> None:
    told: list[str] = []
    reader = CustomInput(told.append)
    for piece in pieces_of(json.dumps({"input": text}), places):
        reader.feed(piece)
    reader.close()
    assert "".join(told) == text


@pytest.mark.parametrize("given_", ['{"command": "a"}', '{"input": 5}', "[]", '{"x": "' + "a" * 200 + '"}'])
def test_arguments_of_another_shape_are_the_input_as_they_stand(given_: str) -> None:
    told: list[str] = []
    reader = CustomInput(told.append)
    for letter in given_:
        reader.feed(letter)
    reader.close()
    assert "".join(told) == given_


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("5", {"integer"}, "5"),
        ("5", {"string", "integer"}, "5"),
        ("5", {"string", "null"}, '"5"'),
        ("True", {"boolean"}, "true"),
        ("None", {"string", "null"}, "null"),
        ("true", {"integer"}, "true"),
        ("NaN", {"number"}, '"NaN"'),
        ("{'a': 1}", {"object"}, '{"a": 1}'),
        ("{'a': x}", {"object"}, "\"{'a': x}\""),
        ('{"a": 1}', {"object"}, '{"a": 1}'),
        ('"a"', {"string"}, '"\\"a\\""'),
        ("so", set(), '"so"'),
        ("[1]", set(), "[1]"),
    ],
)
def test_a_value_is_json_of_a_type_that_the_schema_has(text: str, types: set[str], expected: str) -> None:
    assert as_json(text, frozenset(types)) == expected


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": ["string", "null"]}, {"string", "null"}),
        (
            {"anyOf": [{"$ref": "#/$defs/a"}, {"const": 1}], "$defs": {"a": {"type": "array"}}},
            {"integer", "array"},
        ),
        ({"enum": ["a", None, True, 1.5]}, {"string", "null", "boolean", "number"}),
        ({"enum": [[], {}]}, {"array", "object"}),
        ({"$ref": "#"}, set()),
        ({"$ref": "#/$defs/missing"}, set()),
        ({"type": 5, "enum": 7, "anyOf": "x"}, set()),
        ({"type": [{}, "string"]}, {"string"}),
    ],
)
def test_types_are_found_whatever_a_caller_wrote(schema: dict[str, object], types: set[str]) -> None:
    assert types_of(schema) == types


def seconds_for(name: str, tokens: list[int]) -> float:
    prompt = Prompt(token_ids=(), stop_ids=frozenset(), tools=TOOLS)
    parser = format_of(name).parser(prompt)
    begun = time.thread_time()
    for token in tokens:
        parser.feed((token,))
    parser.close()
    return time.thread_time() - begun


@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("what", ["opener", "half", "call", "blanks", "arguments"])
def test_the_cost_grows_with_the_length_and_not_with_its_square(name: str, what: str) -> None:
    """12 times the tokens against 12 times the cost; a square would be 144 times as dear."""
    family = FAMILIES[name]
    head, unit = {
        "opener": ("", family.call[: len(family.call) // 3]),
        "half": ("", family.call[: len(family.call) // 2]),
        "call": ("", family.call),
        "blanks": ("", " "),
        "arguments": (family.call[: family.call.index("Paris")], '<a "b'),
    }[what]
    many = [*ids_of(name, head), *(ids_of(name, unit) * 2_400)[:2_400]]
    few = max(min(seconds_for(name, many[:200]) for _ in range(2)), 0.001)
    assert any(seconds_for(name, many) < 60 * few for _ in range(3))
