"""Random schemas whose values are small, so that a model that knows nothing can come to their end."""

import random
from typing import Any

import jsonschema_rs

_STRINGS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": 6},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "enum": ["Paris", "Rome\n", "12", "true", "", "a<b", "日本 🙂"]},
    {"type": "string", "pattern": "^[a-c]{1,3}(-[0-9]{2})?$"},
    {"type": "string", "pattern": "^x|[/0-9]$", "maxLength": 5},
    {"type": "string", "format": "date"},
    {"const": "only"},
    {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "string", "maxLength": 2}]},
    {"$ref": "#/$defs/short"},
    {"allOf": [{"type": "string", "maxLength": 3}, {"pattern": "^[A-Z ]*$"}]},
]
_OTHERS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": -5, "maximum": 120},
    {"type": "integer", "exclusiveMinimum": 0, "maximum": 9, "multipleOf": 3},
    {"type": "boolean"},
    {"type": "null"},
    {"enum": [1, 2.5, None, True]},
    {"type": "number", "enum": [0.5, -3]},
]
_EITHER: list[dict[str, Any]] = [
    {"type": ["string", "null"], "maxLength": 5},
    {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 10, "maximum": 99}]},
    {"anyOf": [{"type": "string", "enum": ["yes", "7", "null"]}, {"type": "boolean"}]},
    {"anyOf": [{"$ref": "#/$defs/short"}, {"type": "null"}]},
    {"enum": ["a", 3, False, "4"]},
    {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "array", "items": {"const": 1}, "maxItems": 2}]},
]
DEFINITIONS: dict[str, Any] = {"short": {"type": "string", "minLength": 1, "maxLength": 3}}


def random_schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """Of any value."""
    kind = chance.random()
    if depth < 2 and kind < 0.15:
        low = chance.randint(0, 2)
        inner = random_schema(chance, depth + 1)
        return {"type": "array", "items": inner, "minItems": low, "maxItems": low + chance.randint(0, 2)}
    if depth < 2 and kind < 0.3:
        return random_object(chance, depth + 1)
    return dict(chance.choice(chance.choice([_STRINGS, _OTHERS, _EITHER])))


def random_object(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """Of an object with a few properties, most of which must be there."""
    names = chance.sample(["city", "days", "note", "x-y", "größe", "B"], chance.randint(0 if depth else 1, 3))
    return {
        "type": "object",
        "properties": {name: random_schema(chance, depth) for name in names},
        "required": [name for name in names if chance.random() < 0.8],
        "additionalProperties": False,
    }


def random_parameters(chance: random.Random) -> dict[str, Any]:
    """Of a function's arguments."""
    return {**random_object(chance), "$defs": DEFINITIONS}


def check_value(value: Any, schema: Any) -> None:
    """Raises AssertionError unless the value is what the schema asks for."""
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    errors = [error.message for error in validator.iter_errors(value)]
    assert not errors, (errors[0], value, schema)
