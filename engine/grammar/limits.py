"""Limits of grammars, checked before the compile: size and nesting of schemas, patterns, Lark grammars.

Any thread. A compile cannot be interrupted, so the limits admit only grammars that compile in far less than
the callers' timeout. The checks are long Python loops that hold the GIL, so they pause regularly.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import isfinite
from typing import Any
from urllib.parse import unquote

from engine.grammar.circles import has_circle
from engine.grammar.lark_joins import most_joined
from engine.grammar.pace import Pace

MAX_TEXT = 400_000
"""Characters of a grammar in the request, a schema's descriptions included."""
MAX_RAW_DEPTH = 64
"""Nesting of a schema's JSON, whatever it means."""
MAX_DEPTH = 10
"""Nesting of objects and arrays in the values that a schema describes."""
MAX_PROPERTIES = 5_000
MAX_OPTIONAL = 300
"""Optional properties of one object: the work for them grows with their square."""
MAX_SUBSCHEMAS = 10_000
MAX_CHAIN = 2_000
"""Distinct $refs times the deepest nesting: how deep schemas can nest through references, which bounds the
stack of a compile (16 kB each, measured)."""
MAX_ENUM_VALUES = 1_000
MAX_NAMES = 120_000
"""Characters of property names, definition names and enum values together."""
MAX_COUNT = 10_000
"""Of minLength, maxItems and the like."""
MAX_DIVISOR = 10_000
"""Of multipleOf, without its decimal point: a grammar needs a state for every remainder."""
MAX_TOGETHER = 8
"""Patterns of one value, by `allOf` and `$ref`, and `&` of Lark: each doubles a compile's time and memory."""
MAX_PATTERN_PROPERTIES = 40
MAX_PATTERN = 512
MAX_PATTERN_DEPTH = 16
MAX_REPETITION = 10_000
"""Characters of a pattern with its counted repetitions written out."""
MAX_LARK = 20_000
MAX_LARK_DEPTH = 32
MAX_LARK_REPETITION = 200_000
MAX_TAGS = 128

_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
_OWN = {"multipleOf", "pattern", "enum", "const"}
_MAPPINGS = {"properties", "patternProperties"}
_DEFINITIONS = {"$defs", "definitions"}
_LISTS = {"anyOf", "oneOf", "allOf"}
_INNER = {
    "additionalProperties": 1,
    "items": 1,
    "additionalItems": 1,
    "contains": 1,
    "propertyNames": 1,
    "not": 1,
    "prefixItems": 1,
    **dict.fromkeys(("if", "then", "else", *_LISTS), 0),
}
"""By keyword with one or several schemas: 0 if they describe the same value, 1 if a value within it."""
_KEYWORDS = {*_COUNTS, *_OWN, *_REFERENCES, *_MAPPINGS, *_DEFINITIONS, *_INNER}
CHECK_INTERVAL = 64
"""After this many schemas the totals are checked."""
_PATTERN_PART = re.compile(
    r"(?P<repetition>\{(?P<least>\d*+)(?:,(?P<most>\d*+))?\})|(?P<open>\()|(?P<close>\))|(?P<loop>[*+?])"
    # The first character of a class is part of it even if it is "]" or, after "^", seems to end it.
    r"|(?P<atom>\\.?|\[.?(?:\\.|[^\]\\])*+[\]\\]?|\{)|[^\\\[(){*+?]++",
    re.DOTALL,
)
LARK_LITERAL = re.compile(
    # A regular expression may go over several lines and ends at the first slash, within a class too.
    r'(?://|#)[^\n]*+|"(?:\\.|[^"\\\n])*+"|(?P<regex>/(?:\\[\s\S]|[^/\\])++/)|(?P<open>["/])[\s\S]*+'
)
"""Comments and literals of Lark. `open` matches a literal without an end, which is an error."""


class BadGrammar(ValueError):
    """The grammar is invalid or exceeds a limit; `str()` is a sentence for the caller."""


def parse_json(text: str) -> Any:
    """The JSON value of the text. Raises `BadGrammar`, also for nesting above `MAX_RAW_DEPTH`."""
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
    """Raises `BadGrammar` for a JSON schema that exceeds a limit; most keywords are not validated."""
    tally = _Tally()
    pace = Pace()
    places: list[_Place] = [(schema, 0, 1)]
    schemas: list[dict[str, Any]] = []
    while places:
        pace.keep()
        inner, depth, nesting = places.pop()
        if isinstance(inner, bool):
            continue
        if not isinstance(inner, dict):
            raise BadGrammar("A schema must be an object, true or false, and so must all within it.")
        if depth > MAX_DEPTH:
            raise BadGrammar(f"A schema may nest objects and arrays {MAX_DEPTH} levels deep.")
        tally.subschemas += 1
        tally.nesting = max(tally.nesting, nesting)
        for keyword, value in inner.items():
            if keyword in _KEYWORDS:
                _check_keyword(keyword, value, tally)
                _add_inner(keyword, value, depth, nesting + 1, places)
        if "properties" in inner or "required" in inner:
            _check_properties(inner, tally)
        schemas.append(inner)
        if tally.subschemas % CHECK_INTERVAL == 0:
            tally.check()
    tally.check()
    combined = _Combined(schema, schemas)
    combined.check(pace)
    if tally.references and has_circle(schemas, combined.target, pace):
        raise BadGrammar("A $ref leads back to itself, so that no value can ever fit the schema.")


def check_pattern(pattern: str) -> None:
    """Raises `BadGrammar` for a regular expression that exceeds a limit; its syntax is not validated."""
    if len(pattern) > MAX_PATTERN:
        raise BadGrammar(f"A pattern may have {MAX_PATTERN} characters; this one has {len(pattern)}.")
    _check_repetitions(pattern, MAX_PATTERN_DEPTH, MAX_REPETITION)


def check_lark(text: str) -> None:
    """Raises `BadGrammar` for a Lark grammar that exceeds a limit; its syntax is not validated."""
    if len(text) > MAX_LARK:
        raise BadGrammar(f"A Lark grammar may have {MAX_LARK} characters; this one has {len(text)}.")
    for literal in LARK_LITERAL.finditer(text):
        if literal["regex"]:
            check_pattern(literal["regex"][1:-1])
        elif literal["open"]:
            raise not_closed(text, literal.start())
    bare = LARK_LITERAL.sub("x", text)
    if most_joined(bare) > MAX_TOGETHER:
        raise BadGrammar(f"A Lark grammar may join {MAX_TOGETHER} terminals by &.")
    _check_repetitions(bare, MAX_LARK_DEPTH, MAX_LARK_REPETITION)


def not_closed(text: str, start: int) -> BadGrammar:
    """The error for a literal that begins at `start` and does not end."""
    what = "string" if text[start] == '"' else "regular expression"
    return BadGrammar(f"In line {text.count(chr(10), 0, start) + 1} of the grammar, a {what} does not end.")


_Place = tuple[Any, int, int]
"""A schema; the nesting depth of the values that it describes; the nesting depth of the schema, from 1."""


@dataclass(slots=True)
class _Tally:
    subschemas: int = 0
    properties: int = 0
    pattern_properties: int = 0
    enum_values: int = 0
    names: int = 0
    references: set[str] = field(default_factory=set)
    nesting: int = 0

    def count_values(self, values: list[Any]) -> None:
        self.enum_values += len(values)
        self.names += sum(len(value if isinstance(value, str) else json.dumps(value)) for value in values)

    def check(self) -> None:
        for count, limit, what in (
            (self.subschemas, MAX_SUBSCHEMAS, "schemas within it"),
            (self.properties, MAX_PROPERTIES, "properties"),
            (self.pattern_properties, MAX_PATTERN_PROPERTIES, "patternProperties"),
            (self.enum_values, MAX_ENUM_VALUES, "enum values"),
            (self.names, MAX_NAMES, "characters of names and values"),
            (len(self.references) * self.nesting, MAX_CHAIN, "schemas within each other by reference"),
        ):
            if count > limit:
                raise BadGrammar(f"A schema may have {limit} {what}; this one has more.")


class _Combined:
    """What one value must fulfil together: that of a schema, of all in its `allOf`, and of its `$ref`."""

    def __init__(self, root: Any, schemas: Sequence[dict[str, Any]]) -> None:
        self._root = root
        self._schemas = schemas
        self._known = set(map(id, schemas))
        self._weights: dict[int, tuple[int, int]] = {}
        """By id of a schema: how many patterns a value must match, and the product of what must divide it."""

    def check(self, pace: Pace) -> None:
        """Raises `BadGrammar`. Without recursion: references may be deeper than Python's stack."""
        begun: set[int] = set()
        stack = list(self._schemas)
        while stack:
            pace.keep()
            schema = stack[-1]
            groups = [] if id(schema) in self._weights else self._groups(schema)
            if id(schema) not in begun:
                begun.add(id(schema))
                stack += [inner for group in groups for inner in group if id(inner) not in begun]
                continue
            stack.pop()
            if id(schema) not in self._weights:
                self._weights[id(schema)] = self._weigh(schema, groups)

    def _weigh(self, schema: Mapping[str, Any], groups: Iterable[Sequence[object]]) -> tuple[int, int]:
        patterns = int("pattern" in schema)
        divisor = schema.get("multipleOf")
        product = max(1, _digits(divisor + 0)) if isinstance(divisor, int | float) else 1
        for group in groups:  # of alternatives the largest counts, and of a circle nothing
            weights = [self._weights.get(id(inner), (0, 1)) for inner in group]
            patterns += max((count for count, _ in weights), default=0)
            product *= max((each for _, each in weights), default=1)
        if patterns > MAX_TOGETHER or product > MAX_DIVISOR:
            raise BadGrammar(f"One value may have {MAX_TOGETHER} patterns and a multipleOf of {MAX_DIVISOR}.")
        return patterns, product

    def _groups(self, schema: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
        """The schemas for the same value: of each group, one holds."""
        values = [[inner] for inner in schema.get("allOf", ())]
        values += [schema[keyword] for keyword in ("anyOf", "oneOf") if keyword in schema]
        if "$ref" in schema:
            values.append([self.target(schema["$ref"])])
        return [[inner for inner in group if isinstance(inner, dict)] for group in values]

    def target(self, reference: str) -> Any:
        """What a `$ref` points to, if anything. Raises `BadGrammar` for what was not checked as a schema."""
        found = self._root
        for part in unquote(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(name[:9])] if name.isdecimal() and int(name[:9]) < len(found) else None
            else:
                found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, dict) and id(found) not in self._known:
            raise BadGrammar("A $ref must point to a schema, such as one in $defs.")
        return found


def _check_keyword(keyword: str, value: Any, tally: _Tally) -> None:
    """Checks one keyword of a schema, without the schemas within it."""
    if keyword in _REFERENCES:
        _check_reference(keyword, value, tally)
    elif keyword in _COUNTS:
        if isinstance(value, int | float) and value > MAX_COUNT:
            raise BadGrammar(f"{keyword} may be at most {MAX_COUNT}.")
    elif keyword == "multipleOf":
        if isinstance(value, int | float) and _digits(value + 0) > MAX_DIVISOR:
            raise BadGrammar(f"multipleOf may be at most {MAX_DIVISOR}, its decimal point left out.")
    elif keyword == "pattern":
        if isinstance(value, str):
            check_pattern(value)
    elif keyword == "enum":
        if not isinstance(value, list):
            raise BadGrammar("enum must be an array.")
        tally.count_values(value)
    elif keyword == "const":
        tally.count_values([value])
    elif keyword == "patternProperties":
        tally.pattern_properties += len(_mapping(value, keyword))


def _check_reference(keyword: str, value: Any, tally: _Tally) -> None:
    if keyword != "$ref":
        raise BadGrammar("Of the references only $ref is served.")
    if not isinstance(value, str) or not value.startswith("#"):
        raise BadGrammar('A $ref must point into the same schema: "#" or "#/...".')
    tally.references.add(value)


def _check_properties(schema: Mapping[str, Any], tally: _Tally) -> None:
    properties = _mapping(schema.get("properties", {}), "properties")
    required = schema.get("required", [])
    known = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    tally.properties += len(properties) + len(known - properties.keys())
    if tally.properties > MAX_PROPERTIES:
        tally.check()  # before their schemas are checked
    tally.names += sum(map(len, known | properties.keys()))
    if len(properties.keys() - known) > MAX_OPTIONAL:
        raise BadGrammar(f"An object may have {MAX_OPTIONAL} optional properties.")


def _add_inner(keyword: str, value: Any, depth: int, nesting: int, places: list[_Place]) -> None:
    """Adds the schemas in this keyword's value to `places`."""
    if keyword in _INNER:
        deeper = depth + _INNER[keyword]
        if isinstance(value, list):
            places += [(inner, deeper, nesting) for inner in value]
        elif keyword in _LISTS:
            raise BadGrammar(f"{keyword} must be an array.")
        else:
            places.append((value, deeper, nesting))
    elif keyword in _MAPPINGS:
        if keyword == "patternProperties":
            for pattern in _mapping(value, keyword):
                check_pattern(pattern)
        places += [(inner, depth + 1, nesting) for inner in _mapping(value, keyword).values()]
    elif keyword in _DEFINITIONS:
        if any(len(name) > MAX_PATTERN for name in _mapping(value, keyword)):
            raise BadGrammar(f"The name of a definition may have {MAX_PATTERN} characters.")
        places += [(inner, 0, 1) for inner in value.values()]


def _mapping(value: Any, keyword: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadGrammar(f"{keyword} must be an object.")
    return value


def _digits(number: float) -> int:
    """The number without its decimal point: 25 for 2.5, 250 for 250."""
    decimal = Decimal(repr(number))
    exponent = decimal.as_tuple().exponent
    return int(decimal.scaleb(-min(exponent, 0) if isinstance(exponent, int) else 0))


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
    if "{" not in text and text.count("(") < max_depth and len(text) <= max_cost:
        return  # the cost is at most the number of characters
    pace = Pace()
    sums = [0]
    last = 0
    """The cost of the part that a repetition would repeat."""
    for part in _PATTERN_PART.finditer(text):
        kind = part.lastgroup
        if kind == "repetition":
            times = int((part["most"] or part["least"] or "1")[:9])
            sums[-1] += last * max(0, times - 1)
            last *= max(1, times)
            pace.keep()
        elif kind == "open":
            sums.append(0)
            if len(sums) > max_depth:
                raise BadGrammar(f"A pattern or grammar may nest {max_depth} groups.")
        elif kind == "close" and len(sums) > 1:
            last = sums.pop() + 1
            sums[-1] += last
        elif kind == "loop":
            last = 0
        else:
            last = 1
            sums[-1] += 1 if kind else part.end() - part.start()
        if sums[-1] > max_cost:
            raise BadGrammar(f"The repetitions, written out, may have {max_cost} characters.")


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{digits[:40]} is larger than any number here")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
