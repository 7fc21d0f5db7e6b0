"""Functions of which one must be called: held to their schemas like strict ones, where these are simple.

vLLM's required and named calls follow the function's schema, too. A schema that could be refused, or that
some family's calls cannot express, is left as it is: its function takes any object. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from server.dialects.base import Tool
from server.dialects.toolbox import ALL_TYPES

MOST_SCHEMAS = 500
"""Of all tools' arguments together, those within each other included."""
_MOST_VALUES = 100
_DEEPEST = 6
_TOLD = frozenset({"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment"})
"""Keywords that allow and forbid nothing."""
_KEPT = frozenset({"type", "properties", "required", "items", "enum", "additionalProperties"})


def held(tools: Iterable[Tool]) -> list[Tool]:
    """The tools, of which those with simple schemas are strict, as far as there is room for them."""
    room = MOST_SCHEMAS
    found = []
    for tool in tools:
        if tool.kind == "function" and not tool.strict and tool.parameters is not None:
            size = _size(tool.parameters, 0)
            if tool.parameters.get("type") == "object" and size is not None and size <= room:
                room -= size
                tool = replace(tool, strict=True)  # noqa: PLW2901 - the tool as it is offered
        found.append(tool)
    return found


def _size(schema: Any, depth: int) -> int | None:
    """How many schemas it consists of; None if it is not simple."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST or schema.keys() - _TOLD - _KEPT:
        return None
    properties, items = schema.get("properties", {}), schema.get("items", {})
    if not (
        _is_type(schema.get("type", "object"))
        and isinstance(properties, Mapping)
        and all(isinstance(name, str) and name.isidentifier() for name in properties)
        and _is_part(schema.get("required", []), properties)
        and _is_choice(schema.get("enum", [""]))
        and isinstance(schema.get("additionalProperties", True), bool)
    ):
        return None
    sizes = [_size(inner, depth + 1) for inner in (*properties.values(), items) if inner != {}]
    return None if None in sizes else 1 + sum(size or 0 for size in sizes)


def _is_type(named: object) -> bool:
    types = named if isinstance(named, list) else [named]
    return bool(types) and all(isinstance(one, str) and one in ALL_TYPES for one in types)


def _is_part(required: object, properties: Mapping[str, Any]) -> bool:
    return isinstance(required, list) and all(
        isinstance(name, str) and name in properties for name in required
    )


def _is_choice(values: object) -> bool:
    return (
        isinstance(values, list)
        and 0 < len(values) <= _MOST_VALUES
        and all(isinstance(one, str) for one in values)
    )
