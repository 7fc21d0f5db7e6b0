"""Schemas that the grammar enforces for forced calls (`tool_choice: required` or named), as in vLLM.

They follow the function's schema even if it is not strict. A schema that cannot be enforced completely is
enforced in part; if that does not compile, less of it, down to any JSON object. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from server.model_formats.grammar.enforceable_schema import basic_schema, enforceable
from server.model_formats.interface import Tool
from server.model_formats.tool_names import (
    ANY_OBJECT,
    additional_of,
    definition_of,
    definitions_of,
    properties_of,
    schema_of,
)

MAX_ALTERNATIVES = 16
"""Maximum alternatives of a schema, expanded to objects with properties of their own."""
_MAX_DEPTH = 8
_JOINING = {"$ref", "anyOf", "oneOf", "allOf"}


def forced_levels(tools: Iterable[Tool]) -> list[list[Tool]]:
    """The tools with enforced schemas, in lists from the strictest to the loosest.

    Schemas of strict functions are equal in all lists.
    """
    tools = list(tools)
    if all(tool.strict or tool.kind == "custom" for tool in tools):
        return [tools]
    return [[_enforcing(tool, part) for tool in tools] for part in (enforceable, basic_schema, _anything)]


def _enforcing(tool: Tool, part: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Tool:
    if tool.strict or tool.kind == "custom":
        return tool
    return replace(tool, strict=True, parameters=part(tool.parameters or ANY_OBJECT))


def _anything(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    del schema
    return ANY_OBJECT


def alternatives(tool: Tool) -> Iterator[Tool]:
    """A strict function once per alternative object of its schema (`anyOf`).

    For families that write arguments per property, see `ToolCallFormat.per_property`.
    """
    if not tool.strict or tool.parameters is None:
        yield tool
        return
    for schema in objects_of(tool.parameters):
        yield replace(tool, parameters=schema)


def objects_of(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternative objects of a schema, without `anyOf`, `allOf` and `$ref` at their top level."""
    if not schema.keys() & _JOINING:
        return [schema]
    objects = _alternatives(schema, 0)
    if len(objects) > MAX_ALTERNATIVES:
        return [definition_of(schema)]
    return [{**definitions_of(schema), **one} for one in objects]


def arguments_of(tool: Tool) -> tuple[dict[str, Mapping[str, Any]], Mapping[str, Any]]:
    """The schemas of a tool's arguments by name, and of additional ones."""
    schemas = objects_of(schema_of(tool))
    schemas_by_name: dict[str, Mapping[str, Any]] = {}
    for schema in schemas:
        for name, inner in properties_of(schema).items():
            known = schemas_by_name.get(name)
            schemas_by_name[name] = (
                inner if known in (None, inner) else {**definitions_of(schema), "anyOf": [known, inner]}
            )
    return schemas_by_name, additional_of(schemas[0])


def _alternatives(schema: Any, depth: int) -> list[dict[str, Any]]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return [{}]
    named = definition_of(schema)
    own = {key: value for key, value in named.items() if key not in ("anyOf", "oneOf", "allOf")}
    if named is not schema:  # keywords beside `$ref` apply, too
        own = _merged({key: value for key, value in schema.items() if key != "$ref"}, own)
    merged = [own]
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := named.get(key), list) and branches:
            merged = _crossed(merged, [one for inner in branches for one in _branch(schema, inner, depth)])
    parts = named.get("allOf")
    for inner in parts if isinstance(parts, list) else []:
        merged = _crossed(merged, _branch(schema, inner, depth))
    return merged


def _branch(schema: Mapping[str, Any], inner: Any, depth: int) -> list[dict[str, Any]]:
    whole = {**definitions_of(schema), **inner} if isinstance(inner, Mapping) else inner
    return _alternatives(whole, depth + 1)


def _crossed(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(some) * len(others) > MAX_ALTERNATIVES:
        return [{}] * (MAX_ALTERNATIVES + 1)
    return [_merged(one, other) for one in some for other in others]


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The intersection of two object schemas."""
    merged = {**one, **other}
    first, second = (_mapping(schema.get("properties")) for schema in (one, other))
    if first or second:
        merged["properties"] = {
            **first,
            **{
                name: {"allOf": [first[name], inner]} if name in first else inner
                for name, inner in second.items()
            },
        }
    required = [*_list(one.get("required")), *_list(other.get("required"))]
    if required:
        merged["required"] = required
    for schema, rest in ((one, second), (other, first)):
        if schema.get("additionalProperties") is False and "properties" in merged:
            own = _mapping(schema.get("properties"))
            merged["properties"] = {
                name: inner for name, inner in merged["properties"].items() if name in own or name not in rest
            }
            merged["additionalProperties"] = False
    return merged


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
