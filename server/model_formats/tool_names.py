"""Tools of one conversation: lookup by the name that the model uses, and their arguments' JSON schemas."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from server.model_formats.interface import PromptError, Tool, qualified_name

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
SEPARATORS = ("__", "-", ".")
"""Separators that clients and models put between a namespace, plugin or server label and a tool's name."""
_UNKNOWN_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
"""Names that a request allows for tools, and which a response may therefore contain."""


def without_labels(tools: Sequence[Tool]) -> list[Tool]:
    """The tools, with MCP tools' labels removed from their prompt names unless two names would collide.

    Models tend to omit such labels. A tool that is `prefixed` already keeps its label.
    """
    names = Counter(name for tool in tools for name in {tool.name, qualified_name(tool.name, tool.namespace)})
    return [
        replace(tool, prefixed=tool.prefixed or names[tool.name] > 1) if tool.hosted else tool
        for tool in tools
    ]


def choice_names(tool: Tool) -> frozenset[str]:
    """The names of the tool in a request's `tool_choice`; an MCP tool's name needs the label."""
    own = qualified_name(tool.name, tool.namespace)
    return frozenset({own} if tool.hosted else {own, tool.name})


def find_tool(name: str, tools: Iterable[Tool]) -> Tool | None:
    """The only tool that matches an inexact name; None if none or several match.

    Models omit prefixes (`get_weather` for `W-get_weather`), or add a tool's label with another separator
    (`city.get_weather`).
    """
    matches = [tool for tool in tools if name and _matches(name, tool)]
    return matches[0] if len(matches) == 1 else None


def _matches(name: str, tool: Tool) -> bool:
    if tool.namespace and any(name == f"{tool.namespace}{between}{tool.name}" for between in SEPARATORS):
        return True
    return name == tool.name or tool.prompt_name.endswith(tuple(between + name for between in SEPARATORS))


class ToolIndex:
    """Tools by their prompt names."""

    def __init__(self, tools: Iterable[Tool], *, accepts_unknown: bool = False) -> None:
        """With `accepts_unknown`, `resolve` accepts any name. Raises PromptError for duplicate names."""
        self.accepts_unknown = accepts_unknown
        self.tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.prompt_name in self.tools:
                raise PromptError(f"There are two tools called {tool.prompt_name!r}.", "tools")
            self.tools[tool.prompt_name] = tool

    def __bool__(self) -> bool:
        return bool(self.tools)

    def find(self, name: str) -> Tool | None:
        """The tool of that name, or the only one that matches it inexactly."""
        return self.tools.get(name) or find_tool(name, self.tools.values())

    def resolve(self, name: str) -> Tool | None:
        """As `find`; with `accepts_unknown`, an unknown name returns a function without parameters."""
        known = self.find(name)
        if known is None and self.accepts_unknown and _UNKNOWN_NAME.fullmatch(name):
            return Tool(name=name)
        return known

    def only(self, allowed: Sequence[str] | None) -> "ToolIndex":
        """The tools that a tool choice allows. Raises PromptError for an unknown name."""
        if allowed is None:
            return self
        names = set(allowed)
        tools = [tool for tool in self.tools.values() if choice_names(tool) & names]
        known = {name for tool in tools for name in choice_names(tool)}
        if unknown := sorted(names - known):
            raise PromptError(f"There is no tool called {unknown[0]!r}.", "tool_choice")
        return ToolIndex(tools)


def function_schema(name: str, tool: Tool) -> dict[str, Any]:
    """The tool as a function in transformers' `tools` format for chat templates."""
    description = tool.description or ""
    if tool.kind == "custom":
        if tool.syntax != "text":
            description += f"\n\nThe input follows this {tool.syntax} grammar:\n{tool.definition}"
        parameters = custom_parameters()
    else:
        parameters = dict(tool.parameters or {"type": "object", "properties": {}})
    function = {"name": name, "description": description.strip(), "parameters": parameters}
    return {"type": "function", "function": function}


def custom_parameters(**more: Any) -> dict[str, Any]:
    """The schema of a custom tool's arguments: an object with the string `input`."""
    return {
        "type": "object",
        "properties": {"input": {"type": "string", **more}},
        "required": ["input"],
        "additionalProperties": False,
    }


def schema_of(tool: Tool) -> Mapping[str, Any]:
    """The declared schema of a tool's arguments."""
    if tool.kind == "custom":
        return custom_parameters()
    return tool.parameters or ANY_OBJECT


def enforced_schema(tool: Tool) -> Mapping[str, Any]:
    """The schema that the output grammar enforces: of a function that is not strict, any object."""
    return schema_of(tool) if tool.strict or tool.kind == "custom" else ANY_OBJECT


def properties_of(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The named properties' schemas, each with the definitions that it may reference."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {
        str(name): {**definitions_of(schema), **inner} if isinstance(inner, Mapping) else {}
        for name, inner in properties.items()
    }


def allows_additional(schema: Mapping[str, Any]) -> bool:
    """Whether an object has no `properties`, or has `additionalProperties` explicitly."""
    additional = schema.get("additionalProperties")
    return additional is not False and (
        "properties" not in schema or additional is True or isinstance(additional, Mapping)
    )


def additional_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of additional properties, with the definitions that it may reference."""
    additional = schema.get("additionalProperties")
    return {**definitions_of(schema), **additional} if isinstance(additional, Mapping) else {}


def repeated(schema: Mapping[str, Any], *, after_first: bool = False) -> str:
    """The Lark repetition for an object's `minProperties`; with `after_first`, for the rest of them."""
    least = schema.get("minProperties")
    count = least if isinstance(least, int) and 0 < least <= _MAX_REPEATED else 0
    return f"{{{max(count - after_first, 0)},}}"


_MAX_REPEATED = 16


def required_of(schema: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name in _list(schema.get("required")) if isinstance(name, str))


def definition_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The target of the schema's `$ref`, or the schema itself; empty for a dangling reference."""
    for _ in range(8):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target: Any = schema
        for part in reference.removeprefix("#").strip("/").split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        schema = {**definitions_of(schema), **target} if isinstance(target, Mapping) else {}
    return {}


ALL_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema allows, empty for all; `number` includes integers."""
    types = _types_left(schema, 0)
    if types == ALL_TYPES:
        return frozenset()
    return types - {"integer"} if "number" in types else types


def _types_left(schema: Any, depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > 8:
        return ALL_TYPES
    schema = definition_of(schema)
    types = ALL_TYPES
    if named := {type_ for type_ in _list(schema.get("type")) if isinstance(type_, str)}:
        types &= named | ({"integer"} if "number" in named else set())
    if values := _list(schema.get("enum")) if "const" not in schema else [schema["const"]]:
        types &= {_type_of(value) for value in values}
    inner = definitions_of(schema)
    for key in ("anyOf", "oneOf", "allOf"):
        branches = [b for b in _list(schema.get(key)) if isinstance(b, Mapping)]
        left = [_types_left({**inner, **branch}, depth + 1) for branch in branches]
        if left:
            types &= frozenset.intersection(*left) if key == "allOf" else frozenset().union(*left)
    return types


def definitions_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema's `$defs` and `definitions`."""
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}


def _list(value: object) -> list[Any]:
    """A schema keyword's value as a list; empty if it is neither a list nor a string."""
    if isinstance(value, list | tuple):
        return list(value)
    return [value] if isinstance(value, str) else []


def _type_of(value: object) -> str:
    match value:
        case str():
            return "string"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case None:
            return "null"
        case list():
            return "array"
    return "object"
