"""How large a grammar may be: every bound is checked before anything is compiled.

Pure functions on plain data; any thread. A compile cannot be interrupted, so what is let through here
must be what compiles in far less than the time a caller waits. Ignorant of the library that compiles,
of tokens and of jobs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import isfinite
from typing import Any

MAX_TEXT = 400_000
"""Characters of a grammar as it is sent, a schema's descriptions included."""
MAX_RAW_DEPTH = 64
"""Brackets within brackets in a schema's JSON, whatever they mean."""
MAX_DEPTH = 10
"""Objects and arrays within each other in what a schema describes."""
MAX_PROPERTIES = 5_000
MAX_OPTIONAL = 300
"""Optional properties of one object: the work for them grows with their square."""
MAX_SUBSCHEMAS = 10_000
MAX_CHAIN = 2_000
"""Different $refs times the deepest nesting: how deep schemas can lie in each other through references,
and so how much of its stack a compile may need (16 kB for each, measured)."""
MAX_ENUM_VALUES = 1_000
MAX_NAMES = 120_000
"""Characters of property names, definition names and enum values together."""
MAX_COUNT = 10_000
"""Of minLength, maxItems and the like."""
MAX_DIVISOR = 10_000
"""Of multipleOf, without its decimal point: a grammar needs a state for every remainder."""
MAX_PATTERN = 512
MAX_PATTERN_DEPTH = 16
MAX_REPETITION = 10_000
"""Characters of a pattern with its counted repetitions written out."""
MAX_LARK = 20_000
MAX_LARK_DEPTH = 32
MAX_LARK_REPETITION = 200_000
MAX_TAGS = 128

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_ONE = ("additionalProperties", "items", "additionalItems", "contains", "propertyNames", "not")
_ONE_SAME_VALUE = ("if", "then", "else")
_LISTS = ("anyOf", "oneOf", "allOf")
_LISTS_OF_ITEMS = ("prefixItems",)
_DEFINITIONS = ("$defs", "definitions")
_REPETITION = re.compile(r"\{(\d*)(,?)(\d*)\}")
_LARK_LITERAL = re.compile(
    r'//[^\n]*|#[^\n]*|"(?:\\.|[^"\\\n])*"|(?P<regex>/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/)'
)


class BadGrammar(ValueError):
    """The grammar is not valid or larger than what is served; `str()` is a sentence for the caller."""


def parse_json(text: str) -> Any:
    """The JSON value in the text, which is not deeper than `MAX_RAW_DEPTH`."""
    if len(text) > MAX_TEXT:
        raise BadGrammar(f"A grammar may have {MAX_TEXT} characters; this one has {len(text)}.")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise BadGrammar("The JSON is nested too deeply.") from None
    except ValueError as error:
        raise BadGrammar(f"This is not JSON: {error}.") from None
    _check_raw_depth(value)
    return value


def check_schema(schema: Any) -> None:
    """Raises `BadGrammar` for a JSON schema outside the bounds; most of its meaning is not looked at."""
    tally = _Tally()
    places = [_Place(schema, 0, 1)]
    while places:
        place = places.pop()
        if isinstance(place.schema, bool):
            continue
        if not isinstance(place.schema, dict):
            raise BadGrammar("A schema must be an object, true or false, and so must all within it.")
        tally.subschemas += 1
        tally.nesting = max(tally.nesting, place.nesting)
        _check_keywords(place.schema, tally)
        places += _inner(place)
        tally.check()
        if place.depth > MAX_DEPTH:
            raise BadGrammar(f"A schema may nest objects and arrays {MAX_DEPTH} levels deep.")


def check_pattern(pattern: str) -> None:
    """Raises `BadGrammar` for a regular expression outside the bounds; its syntax is not looked at."""
    if len(pattern) > MAX_PATTERN:
        raise BadGrammar(f"A pattern may have {MAX_PATTERN} characters; this one has {len(pattern)}.")
    _check_repetitions(pattern, MAX_PATTERN_DEPTH, MAX_REPETITION)


def check_lark(text: str) -> None:
    """Raises `BadGrammar` for a Lark grammar outside the bounds; its syntax is not looked at."""
    if len(text) > MAX_LARK:
        raise BadGrammar(f"A Lark grammar may have {MAX_LARK} characters; this one has {len(text)}.")
    for literal in _LARK_LITERAL.finditer(text):
        if literal["regex"]:
            check_pattern(literal["regex"][1:-1])
    _check_repetitions(_LARK_LITERAL.sub("x", text), MAX_LARK_DEPTH, MAX_LARK_REPETITION)


@dataclass(slots=True)
class _Place:
    schema: Any
    depth: int
    """Of objects and arrays around the value that this schema describes."""
    nesting: int
    """Of schemas, this one included."""


@dataclass(slots=True)
class _Tally:
    subschemas: int = 0
    properties: int = 0
    enum_values: int = 0
    names: int = 0
    references: set[str] = field(default_factory=set)
    nesting: int = 0

    def check(self) -> None:
        for count, limit, what in (
            (self.subschemas, MAX_SUBSCHEMAS, "schemas within it"),
            (self.properties, MAX_PROPERTIES, "properties"),
            (self.enum_values, MAX_ENUM_VALUES, "enum values"),
            (self.names, MAX_NAMES, "characters of names and values"),
            (len(self.references) * self.nesting, MAX_CHAIN, "schemas within each other by reference"),
        ):
            if count > limit:
                raise BadGrammar(f"A schema may have {limit} {what}; this one has more.")


def _check_keywords(schema: Mapping[str, Any], tally: _Tally) -> None:
    """What a schema says of itself; the schemas within it are looked at elsewhere."""
    for name in _COUNTS:
        count = schema.get(name)
        if isinstance(count, int | float) and count > MAX_COUNT:
            raise BadGrammar(f"{name} may be at most {MAX_COUNT}.")
    divisor = schema.get("multipleOf", 1)
    if isinstance(divisor, int | float) and _digits(divisor + 0) > MAX_DIVISOR:
        raise BadGrammar(f"multipleOf may be at most {MAX_DIVISOR}, its decimal point left out.")
    if isinstance(pattern := schema.get("pattern"), str):
        check_pattern(pattern)
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise BadGrammar('A $ref must point into the same schema: "#" or "#/...".')
    if "$ref" in schema:
        tally.references.add(reference)
    if "$dynamicRef" in schema or "$recursiveRef" in schema:
        raise BadGrammar("Of the references only $ref is served.")
    values = schema.get("enum", [])
    if not isinstance(values, list):
        raise BadGrammar("enum must be an array.")
    values = [*values, schema["const"]] if "const" in schema else values
    tally.enum_values += len(values)
    tally.names += sum(len(value if isinstance(value, str) else json.dumps(value)) for value in values)
    properties = _mapping(schema, "properties")
    required = schema.get("required", [])
    known = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    tally.properties += len(properties) + len(known - properties.keys())
    tally.names += sum(map(len, known | properties.keys()))
    if len(properties.keys() - known) > MAX_OPTIONAL:
        raise BadGrammar(f"An object may have {MAX_OPTIONAL} optional properties.")


def _inner(place: _Place) -> Iterator[_Place]:
    """The schemas within a schema."""
    schema, nesting = place.schema, place.nesting + 1
    for pattern in _mapping(schema, "patternProperties"):
        check_pattern(pattern)
    for keyword in ("properties", "patternProperties"):
        for inner in _mapping(schema, keyword).values():
            yield _Place(inner, place.depth + 1, nesting)
    for keyword in _DEFINITIONS:
        for name, inner in _mapping(schema, keyword).items():
            if len(name) > MAX_PATTERN:
                raise BadGrammar(f"The name of a definition may have {MAX_PATTERN} characters.")
            yield _Place(inner, 0, 1)
    for keyword in (*_ONE, *_ONE_SAME_VALUE, *_LISTS, *_LISTS_OF_ITEMS):
        within = schema.get(keyword, [])
        if keyword in _LISTS and not isinstance(within, list):
            raise BadGrammar(f"{keyword} must be an array.")
        deeper = keyword in _ONE or keyword in _LISTS_OF_ITEMS
        for inner in within if isinstance(within, list) else [within]:
            yield _Place(inner, place.depth + deeper, nesting)


def _mapping(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    inner = schema.get(keyword, {})
    if not isinstance(inner, dict):
        raise BadGrammar(f"{keyword} must be an object.")
    return inner


def _digits(number: float) -> int:
    """The number without its decimal point: 25 for 2.5, 250 for 250."""
    exponent = Decimal(repr(number)).as_tuple().exponent
    return int(Decimal(repr(number)).scaleb(-min(exponent, 0) if isinstance(exponent, int) else 0))


def _check_raw_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_RAW_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if level:
        raise BadGrammar(f"The JSON may be nested {MAX_RAW_DEPTH} levels deep.")


def _check_repetitions(text: str, max_depth: int, max_cost: int) -> None:
    """Bounds the length that the text has when each counted repetition is written out.

    `*` and `+` count once: they are loops, not copies.
    """
    sums = [0]
    last = 0
    """The cost of what a repetition would repeat."""
    position = 0
    while position < len(text):
        character = text[position]
        repetition = _REPETITION.match(text, position) if character == "{" else None
        if repetition:
            times = int((repetition[3] or repetition[1] or "1")[:9])
            sums[-1] += last * max(0, times - 1)
            last *= max(1, times)
            position = repetition.end()
        elif character == "(":
            sums.append(0)
            position += 1
        elif character == ")" and len(sums) > 1:
            last = sums.pop() + 1
            sums[-1] += last
            position += 1
        else:
            end = _atom_end(text, position)
            last = 0 if character in "*+?" else 1
            sums[-1] += last
            position = end
        if len(sums) > max_depth:
            raise BadGrammar(f"A pattern or grammar may nest {max_depth} groups.")
        if max(sums) > max_cost:
            raise BadGrammar(f"The repetitions, written out, may have {max_cost} characters.")


def _atom_end(text: str, position: int) -> int:
    """Where the character, escape or class that starts here ends."""
    if text[position] == "\\":
        return position + 2
    if text[position] != "[":
        return position + 1
    end = position + 2  # "[]" and "[^]" do not end at once
    while end < len(text) and text[end] != "]":
        end += 2 if text[end] == "\\" else 1
    return end + 1


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{digits[:40]} is larger than any number here")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
