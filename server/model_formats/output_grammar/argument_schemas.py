"""Readers of the JSON schemas of tools' arguments: properties, types, `$ref` targets, `anyOf` alternatives.

Every subschema that they return has the `$defs` that it may reference. Invalid keywords are ignored. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import NoneType
from typing import Any

from engine.grammar.recursive_schemas import reference_target
from server.model_formats.model_format import PromptTool

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
ALL_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
CUSTOM_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
MAX_ALTERNATIVES = 16
"""Maximum alternatives of a schema, expanded to objects with properties of their own."""
MAX_COUNT = 10_000
"""Maximum value of minLength, maxItems and the like that a grammar enforces."""
MAX_READ = 1_000
"""Maximum subschemas looked at to read one schema. References may multiply them without end."""
_MAX_DEPTH = 8
_MAX_REPEATED = 16
_TOO_MANY: list[dict[str, Any]] = [{}] * (MAX_ALTERNATIVES + 1)
_JOINING = {"$ref", "anyOf", "oneOf", "allOf"}
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null", list: "array"}


class SchemaBudget:
    def __init__(self, most: int = MAX_READ) -> None:
        self._left = most

    def spend(self, count: int) -> bool:
        self._left -= count
        return self._left >= 0


def schema_of(tool: PromptTool) -> Mapping[str, Any]:
    return CUSTOM_PARAMETERS if tool.kind == "custom" else tool.parameters or ANY_OBJECT


def enforced_schema(tool: PromptTool) -> Mapping[str, Any]:
    """The schema that the output grammar enforces: of a function that is not strict, any object."""
    return schema_of(tool) if tool.strict or tool.kind == "custom" else ANY_OBJECT


def members_of(schema: Mapping[str, Any]) -> tuple[dict[str, Mapping[str, Any]], Mapping[str, Any]]:
    """The schemas of an object's properties by name, and of additional ones."""
    schemas = objects_of(schema)
    arguments: dict[str, Mapping[str, Any]] = {}
    for each in schemas:
        for name, inner in properties_of(each).items():
            known = arguments.setdefault(name, inner)
            if known != inner:
                arguments[name] = subschema(each, {"anyOf": [known, inner]})
    return arguments, additional_of(schemas[0])


def properties_of(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    properties = mapping(schema, "properties")
    return {str(name): subschema(schema, mapping(properties, name)) for name in properties}


def allows_additional(schema: Mapping[str, Any]) -> bool:
    """Whether an object has no `properties`, or has `additionalProperties` explicitly."""
    additional = schema.get("additionalProperties")
    return additional is not False and (
        "properties" not in schema or additional is True or isinstance(additional, Mapping)
    )


def additional_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of additional properties; empty for any value."""
    additional = mapping(schema, "additionalProperties")
    return subschema(schema, additional) if additional else additional


def required_of(schema: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name in listed(schema, "required") if isinstance(name, str))


def repeated(schema: Mapping[str, Any], *, after_first: bool = False) -> str:
    """The Lark repetition for an object's `minProperties`; with `after_first`, for the rest of them."""
    least = schema.get("minProperties")
    count = least if isinstance(least, int) and 0 < least <= _MAX_REPEATED else 0
    return f"{{{max(count - after_first, 0)},}}"


def types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema allows, empty for all, as where it is too large; `number` has integers."""
    types = _types_left(schema, 0, SchemaBudget())
    if types == ALL_TYPES:
        return frozenset()
    return types - {"integer"} if "number" in types else types


def _types_left(schema: Any, depth: int, budget: SchemaBudget) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return ALL_TYPES
    schema = definition_of(schema)
    types = ALL_TYPES
    if named := {name for name in listed(schema, "type") if isinstance(name, str)}:
        types &= named | ({"integer"} if "number" in named else set())
    if values := listed(schema, "enum") if "const" not in schema else [schema["const"]]:
        types &= {type_name(value) for value in values}
    for key in ("anyOf", "oneOf", "allOf"):
        if not budget.spend(len(listed(schema, key))):
            continue
        branches = [branch for branch in listed(schema, key) if isinstance(branch, Mapping)]
        inner = [_types_left(subschema(schema, branch), depth + 1, budget) for branch in branches]
        if inner:
            types &= frozenset.intersection(*inner) if key == "allOf" else frozenset().union(*inner)
    return types


def type_name(value: object) -> str:
    return _TYPES.get(type(value), "object")


def definition_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The target of the schema's `$ref`, or the schema itself; empty for a dangling reference."""
    for _ in range(8):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target = reference_target(schema, reference)
        schema = subschema(schema, target) if isinstance(target, Mapping) else {}
    return {}


def subschema(schema: Mapping[str, Any], inner: Any) -> Any:
    """`inner`, if it is an object, with the `$defs` and `definitions` of `schema`."""
    if not isinstance(inner, Mapping):
        return inner
    return {**{key: schema[key] for key in ("$defs", "definitions") if key in schema}, **inner}


def mapping(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The keyword's object; empty for anything else."""
    value = schema.get(key)
    return value if isinstance(value, Mapping) else {}


def listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    """The keyword's list, or its string as a list; empty for anything else."""
    value = schema.get(key)
    if isinstance(value, list | tuple):
        return list(value)
    return [value] if isinstance(value, str) else []


def alternatives(tool: PromptTool) -> Iterator[PromptTool]:
    """A strict function once per alternative of its schema, for families with `per_property`."""
    if not tool.strict or tool.parameters is None:
        yield tool
        return
    for schema in objects_of(tool.parameters):
        yield replace(tool, parameters=schema)


def objects_of(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternative objects of a schema, without `anyOf`, `allOf` and `$ref` at their top level."""
    if not schema.keys() & _JOINING:
        return [schema]
    objects = _alternatives(schema, 0, SchemaBudget())
    if len(objects) > MAX_ALTERNATIVES:
        return [definition_of(schema)]
    return [subschema(schema, inner) for inner in objects]


def _alternatives(schema: Any, depth: int, budget: SchemaBudget) -> list[dict[str, Any]]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return [{}]
    named = definition_of(schema)
    own = {key: value for key, value in named.items() if key not in ("anyOf", "oneOf", "allOf")}
    if named is not schema:  # keywords beside `$ref` apply, too
        own = _merged({key: value for key, value in schema.items() if key != "$ref"}, own)
    merged = [own]

    def branches(key: str) -> list[list[dict[str, Any]]]:
        inner = listed(named, key)
        if not budget.spend(len(inner)):
            return [_TOO_MANY]
        return [_alternatives(subschema(schema, branch), depth + 1, budget) for branch in inner]

    for key in ("anyOf", "oneOf"):
        if either := branches(key):
            merged = _crossed(merged, [inner for branch in either for inner in branch])
    for part in branches("allOf"):
        merged = _crossed(merged, part)
    return merged


def _crossed(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(some) * len(others) > MAX_ALTERNATIVES:
        return _TOO_MANY
    return [_merged(left, right) for left in some for right in others]


def _merged(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """The intersection of two object schemas."""
    merged = {**left, **right}
    first, second = mapping(left, "properties"), mapping(right, "properties")
    if first or second:
        both = {name: {"allOf": [first[name], second[name]]} for name in first.keys() & second.keys()}
        merged["properties"] = {**first, **second, **both}
    if required := [*listed(left, "required"), *listed(right, "required")]:
        merged["required"] = required
    for schema, rest in ((left, second), (right, first)):
        if schema.get("additionalProperties") is False and "properties" in merged:
            own = mapping(schema, "properties")
            merged["properties"] = {
                name: inner for name, inner in merged["properties"].items() if name in own or name not in rest
            }
            merged["additionalProperties"] = False
    return merged
