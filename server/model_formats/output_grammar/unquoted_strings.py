"""Lark terminals of a schema's strings (pattern, length, format) where calls write them without quotes. Pure.
A string matches one of several alternatives, each a conjunction. `anyOf`, `allOf` and references are
resolved, `oneOf` as `anyOf`; unknown formats are ignored and lookaround is refused. If a value may be of
another type, too, and no mark tells, no string is allowed that looks like one of those values.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from engine.grammar.structured_output_to_lark import in_slashes
from server.model_formats.model_format import PromptError
from server.model_formats.output_grammar.argument_schemas import (
    MAX_COUNT,
    SchemaBudget,
    definition_of,
    listed,
    subschema,
)

_ANNOTATIONS = {
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
    *("$defs", "definitions", "$comment", "$schema", "$id", "nullable"),
}
_LIMITS = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "enum", "const", "allOf"),
}
"""Keywords that may constrain numbers beyond their type."""
_MAX_ALTERNATIVES = 64
_MAX_DEPTH = 16
_MAX_LENGTH = 5_000
"""Maximum of one counted repetition; longer ones are composed of several."""
_ANY = "/(.|\\n)*/"
_SPACE = r"[\s\x1c-\x1f]*"
_NUMBERS = {"integer": r"-?(0|[1-9][0-9]*)", "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"}
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])"
_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
"""Days 29 to 31 are excluded, as not every month has them."""
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": rf"[a-zA-Z0-9_+\-]{{1,64}}@{_LABEL}(\.{_LABEL}){{0,3}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,3}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
_ATOM = re.compile(
    r"(?P<class>\[\^?\]?(?:\\.?|[^\]\\])*+\]?)|\\(?P<escape>.)|(?P<look>\(\?(?!:|P?<\w))|(?P<open>\()|(?P<close>\))"
    r"|(?P<bar>\|)|(?P<start>\^)|(?P<end>\$)|.",
    re.DOTALL,
)


def allows_anything(schema: Mapping[str, Any]) -> bool:
    return not schema.keys() - _ANNOTATIONS


def strings_of(schema: Any) -> str | None:
    """The terminal of the strings that the schema allows, or None. Raises PromptError."""
    alternatives = _alternatives(schema, 0, SchemaBudget())
    if not alternatives:
        return None
    return " | ".join(f"({' & '.join(parts) or _ANY})" for parts in alternatives)


def distinguish_strings(
    strings: str, others: frozenset[str], schema: Mapping[str, Any]
) -> tuple[str, frozenset[str]]:
    """A terminal of strings and of values of the types `others`, for text without type marks.

    Strings exclude text that would be parsed as another type. Also returns the types that the terminal does
    not include; no string begins like their values.
    """
    out = [rf"/{_SPACE}(?i:{'|'.join(_WORDS[word])}){_SPACE}/" for word in sorted(others & _WORDS.keys())]
    literals = [json.dumps(word) for word, value in _VALUES if _allows(schema, value, 0, SchemaBudget())]
    numbers = others & _NUMBERS.keys()
    kind = "number" if "number" in numbers else "integer"
    rest = others & {"array", "object"}
    starts = "".join({"array": r"\[", "object": r"\{"}[name] for name in sorted(rest))
    if numbers and not _limits_numbers(schema, 0, SchemaBudget()):
        out.append(f"/{_SPACE}{_NUMBERS[kind]}{_SPACE}/")
        literals.append(f"/{_NUMBERS[kind]}/")
    elif numbers:
        rest |= numbers
        starts += "0-9\\-"
    if starts:
        out.append(f"/{_SPACE}[{starts}](.|\\n)*/")
    apart = "".join(f" & ~{part}" for part in out)
    return " | ".join([f"(({strings}){apart})", *literals]), rest


_WORDS = {"boolean": ("true", "false"), "null": ("null", "none")}
_VALUES: tuple[tuple[str, bool | None], ...] = (("true", True), ("false", False), ("null", None))


def _alternatives(schema: Any, depth: int, budget: SchemaBudget) -> list[list[str]]:
    """The alternatives of a string, each a list of terminals that must all match."""
    if not isinstance(schema, Mapping):
        return [] if schema is False else [[]]
    if depth > _MAX_DEPTH:
        raise PromptError("The schema of a string is nested too deeply.", "tools")
    schema = definition_of(schema)
    if "type" in schema and "string" not in listed(schema, "type"):
        return []
    alternatives = [own] if (own := _own_constraints(schema)) is not None else []
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            branches = _inner(schema, key, budget)
            either = [way for branch in branches for way in _alternatives(branch, depth + 1, budget)]
            alternatives = _conjoined(alternatives, either)
    for branch in _inner(schema, "allOf", budget):
        alternatives = _conjoined(alternatives, _alternatives(branch, depth + 1, budget))
    return alternatives


def _conjoined(some: list[list[str]], others: list[list[str]]) -> list[list[str]]:
    if len(some) * len(others) > _MAX_ALTERNATIVES:
        raise PromptError(f"A string may have {_MAX_ALTERNATIVES} alternatives in its schema.", "tools")
    return [[*left, *right] for left in some for right in others]


def _own_constraints(schema: Mapping[str, Any]) -> list[str] | None:
    """The terminals of the schema's own keywords; None if they exclude all strings."""
    parts = []
    for values in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
        if isinstance(values, list):
            texts = [json.dumps(value) for value in values if isinstance(value, str)]
            if not texts:
                return None
            parts.append(f"({' | '.join(texts)})")
    low, high = (_count(schema, key) for key in ("minLength", "maxLength"))
    if low is not None or high is not None:
        parts.append(_of_length(low or 0, high))
    if isinstance(pattern := schema.get("pattern"), str):
        parts.append(f"/{_searched(pattern)}/")
    if (known := _FORMATS.get(str(schema.get("format")))) is not None:
        parts.append(f"/{known}/")
    return parts


def _count(schema: Mapping[str, Any], key: str) -> int | None:
    """The value of a length keyword. Raises PromptError beyond `MAX_COUNT`."""
    value = schema.get(key)
    if not isinstance(value, int | float):
        return None
    if not 0 <= value <= MAX_COUNT:
        raise PromptError(f"{key} may be at most {MAX_COUNT}.", "tools")
    return int(value)


def _of_length(low: int, high: int | None) -> str:
    pieces = []
    while low > _MAX_LENGTH or (high or 0) > _MAX_LENGTH:
        least = min(low, _MAX_LENGTH)
        most = None if high is None else min(high, _MAX_LENGTH)
        pieces.append(f"/(?s:.{{{least},{least if most is None else most}}})/")
        low -= least
        high = None if high is None or most is None else high - most
    pieces.append(f"/(?s:.{{{low},{'' if high is None else high}}})/")
    return f"({' '.join(pieces)})"


def _searched(pattern: str) -> str:
    """The pattern, which JSON schema searches, as one that matches the whole text. Raises PromptError."""
    branches: list[str] = [""]
    depth = 0
    for atom in _ATOM.finditer(pattern):
        text, kind = atom[0], atom.lastgroup
        if kind == "look" or (kind == "escape" and atom["escape"] in "bB"):
            raise PromptError(
                f"The pattern {pattern[:100]!r} looks around, which cannot be enforced.", "tools"
            )
        depth += (kind == "open") - (kind == "close")
        if kind == "bar" and depth == 0:
            branches.append("")
        else:
            branches[-1] += text
    return in_slashes("|".join(map(_anchored, branches)))


def _anchored(branch: str) -> str:
    begins = branch.startswith("^")
    ends = branch.endswith("$") and (len(branch) - len(branch[:-1].rstrip("\\"))) % 2 == 1
    inside = branch[begins : len(branch) - ends]
    return f"{'' if begins else '(?s:.*)'}(?:{inside}){'' if ends else '(?s:.*)'}"


def _allows(schema: Any, value: bool | None, depth: int, budget: SchemaBudget) -> bool:
    """Whether the schema allows true, false or null."""
    if not isinstance(schema, Mapping):
        return schema is not False
    schema = definition_of(schema)
    kind = "null" if value is None else "boolean"
    if depth > _MAX_DEPTH or ("type" in schema and kind not in listed(schema, "type")):
        return False
    for values in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
        if isinstance(values, list) and not any(value is allowed for allowed in values):
            return False
    for key in ("anyOf", "oneOf"):
        branches = _inner(schema, key, budget)
        allowing = (_allows(branch, value, depth + 1, budget) for branch in branches)
        if isinstance(schema.get(key), list) and not any(allowing):
            return False
    return all(_allows(branch, value, depth + 1, budget) for branch in _inner(schema, "allOf", budget))


def _limits_numbers(schema: Any, depth: int, budget: SchemaBudget) -> bool:
    """Whether the schema constrains numbers beyond their type."""
    if not isinstance(schema, Mapping):
        return False
    schema = definition_of(schema)
    if depth > _MAX_DEPTH or schema.keys() & _LIMITS:
        return True
    branches = [*_inner(schema, "anyOf", budget), *_inner(schema, "oneOf", budget)]
    return any(_limits_numbers(branch, depth + 1, budget) for branch in branches)


def _inner(schema: Mapping[str, Any], key: str, budget: SchemaBudget) -> list[Any]:
    """A keyword's subschemas with the definitions that they may reference. Raises PromptError if too many."""
    if not budget.spend(len(listed(schema, key))):
        raise PromptError("The schema of a string has too many schemas within it.", "tools")
    return [subschema(schema, branch) for branch in listed(schema, key)]
