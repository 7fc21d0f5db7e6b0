"""Removes schema keywords that cannot be enforced, for output formats that are not strict. Pure."""

from collections.abc import Mapping
from typing import Any

UNENFORCED = frozenset(
    {
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
"""Keywords that the grammar engine does not support; without them a schema allows more."""
_OF_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMAS = frozenset({"items", "additionalItems", "additionalProperties"})


def without_unenforced(schema: Any) -> Any:
    """The schema without these keywords at all levels; the caller limits the depth."""
    if not isinstance(schema, Mapping):
        return schema
    return {key: _inner(key, value) for key, value in schema.items() if key not in UNENFORCED}


def _inner(key: str, value: Any) -> Any:
    if key in _OF_NAMES and isinstance(value, Mapping):
        return {name: without_unenforced(schema) for name, schema in value.items()}
    if (key in _LISTS or key == "items") and isinstance(value, list):
        return [without_unenforced(schema) for schema in value]
    return without_unenforced(value) if key in _SCHEMAS else value
