"""What forced calls follow: their functions' schemas, strict or not, as far as masks can enforce these.

vLLM's required and named calls follow the function's schema, too. A schema that cannot be enforced whole is
enforced in part; should even that not compile, less of it is, down to any JSON object. Pure.
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
"""Of one schema, written out as objects that each have their own properties."""
_MAX_DEPTH = 8
_JOINING = {"$ref", "anyOf", "oneOf", "allOf"}


def forced_levels(tools: Iterable[Tool]) -> list[list[Tool]]:
    """The tools with the schemas that their calls follow, from the most that is enforced to the least.

    The schemas of strict functions are the same in all.
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
    """A strict function once for each object that its schema allows: with `anyOf` there may be several.

    For families whose calls have a place for each property, and none for a whole object.
    """
    if not tool.strict or tool.parameters is None:
        yield tool
        return
    for schema in objects_of(tool.parameters):
        yield replace(tool, parameters=schema)


def objects_of(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The objects that a schema allows, each as one without `anyOf`, `allOf` and reference of its own."""
    if not schema.keys() & _JOINING:
        return [schema]
    found = _alternatives(schema, 0)
    if len(found) > MAX_ALTERNATIVES:
        return [definition_of(schema)]
    return [{**definitions_of(schema), **one} for one in found]


def arguments_of(tool: Tool) -> tuple[dict[str, Mapping[str, Any]], Mapping[str, Any]]:
    """What each of a tool's arguments may be, and what any other may."""
    schemas = objects_of(schema_of(tool))
    found: dict[str, Mapping[str, Any]] = {}
    for schema in schemas:
        for name, inner in properties_of(schema).items():
            known = found.get(name)
            found[name] = (
                inner if known in (None, inner) else {**definitions_of(schema), "anyOf": [known, inner]}
            )
    return found, additional_of(schemas[0])


def _alternatives(schema: Any, depth: int) -> list[dict[str, Any]]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return [{}]
    named = definition_of(schema)
    own = {key: value for key, value in named.items() if key not in ("anyOf", "oneOf", "allOf")}
    if named is not schema:  # what stands beside a reference holds, too
        own = _merged({key: value for key, value in schema.items() if key != "$ref"}, own)
    found = [own]
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := named.get(key), list) and branches:
            found = _crossed(found, [one for inner in branches for one in _branch(schema, inner, depth)])
    parts = named.get("allOf")
    for inner in parts if isinstance(parts, list) else []:
        found = _crossed(found, _branch(schema, inner, depth))
    return found


def _branch(schema: Mapping[str, Any], inner: Any, depth: int) -> list[dict[str, Any]]:
    whole = {**definitions_of(schema), **inner} if isinstance(inner, Mapping) else inner
    return _alternatives(whole, depth + 1)


def _crossed(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(some) * len(others) > MAX_ALTERNATIVES:
        return [{}] * (MAX_ALTERNATIVES + 1)
    return [_merged(one, other) for one in some for other in others]


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """An object that both schemas allow."""
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
