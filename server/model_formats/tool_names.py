"""The tools of one conversation under the names that a model knows them by, and their arguments' schemas."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from server.model_formats.interface import PromptError, Tool, qualified_name

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
SEPARATORS = ("__", "-", ".")
"""What clients and models write between a namespace, plugin or server label and a tool's name."""
_UNKNOWN_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
"""A name that a tool of a request may have, and so may be sent back with a call."""


def without_labels(tools: Sequence[Tool]) -> list[Tool]:
    """The tools, those of MCP servers without the label before their names where no two names collide.

    Models leave such labels out. One whose `prefixed` is set already keeps its label.
    """
    names = Counter(name for tool in tools for name in {tool.name, qualified_name(tool.name, tool.namespace)})
    return [
        replace(tool, prefixed=tool.prefixed or names[tool.name] > 1) if tool.hosted else tool
        for tool in tools
    ]


def choice_names(tool: Tool) -> frozenset[str]:
    """The names by which a request's `tool_choice` means the tool: an MCP server's only with the label."""
    own = qualified_name(tool.name, tool.namespace)
    return frozenset({own} if tool.hosted else {own, tool.name})


def find_tool(name: str, tools: Iterable[Tool]) -> Tool | None:
    """The only tool that a model can mean by a name that is no tool's own; None if there is not exactly one.

    Models leave prefixes out (`get_weather` for `W-get_weather`), and write a label before the name of a
    tool that has one, in one way or another (`city.get_weather`).
    """
    meant = [tool for tool in tools if name and _matches(name, tool)]
    return meant[0] if len(meant) == 1 else None


def _matches(name: str, tool: Tool) -> bool:
    if tool.namespace and any(name == f"{tool.namespace}{between}{tool.name}" for between in SEPARATORS):
        return True
    return name == tool.name or tool.prompt_name.endswith(tuple(between + name for between in SEPARATORS))


class ToolIndex:
    """Tools by their spoken names."""

    def __init__(self, tools: Iterable[Tool], *, accepts_unknown: bool = False) -> None:
        """With `accepts_unknown`, `resolve` takes any name. Raises PromptError for two tools of one name."""
        self.accepts_unknown = accepts_unknown
        self.tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.prompt_name in self.tools:
                raise PromptError(f"There are two tools called {tool.prompt_name!r}.", "tools")
            self.tools[tool.prompt_name] = tool

    def __bool__(self) -> bool:
        return bool(self.tools)

    def find(self, name: str) -> Tool | None:
        """The tool of that name, or else the only one that a model can mean by it."""
        return self.tools.get(name) or find_tool(name, self.tools.values())

    def resolve(self, name: str) -> Tool | None:
        """The same; for a name of none a function without parameters, where unknown names are taken."""
        known = self.find(name)
        if known is None and self.accepts_unknown and _UNKNOWN_NAME.fullmatch(name):
            return Tool(name=name)
        return known

    def only(self, allowed: Sequence[str] | None) -> "ToolIndex":
        """Those that a choice names. Raises PromptError for a name of none."""
        if allowed is None:
            return self
        wanted = set(allowed)
        kept = [tool for tool in self.tools.values() if choice_names(tool) & wanted]
        known = {name for tool in kept for name in choice_names(tool)}
        if unknown := sorted(wanted - known):
            raise PromptError(f"There is no tool called {unknown[0]!r}.", "tool_choice")
        return ToolIndex(kept)


def function_schema(name: str, tool: Tool) -> dict[str, Any]:
    """The tool as chat templates are given functions, in the shape that transformers makes."""
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
    """A custom tool's arguments: one string."""
    return {
        "type": "object",
        "properties": {"input": {"type": "string", **more}},
        "required": ["input"],
        "additionalProperties": False,
    }


def schema_of(tool: Tool) -> Mapping[str, Any]:
    """What a function's arguments must follow, or are said to follow."""
    if tool.kind == "custom":
        return custom_parameters()
    return tool.parameters or ANY_OBJECT


def enforced_schema(tool: Tool) -> Mapping[str, Any]:
    """What the arguments are held to: the schema of a strict function, of another any object."""
    return schema_of(tool) if tool.strict or tool.kind == "custom" else ANY_OBJECT


def properties_of(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The named properties, each with the definitions that it may refer to."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {
        str(name): {**definitions_of(schema), **inner} if isinstance(inner, Mapping) else {}
        for name, inner in properties.items()
    }


def allows_additional(schema: Mapping[str, Any]) -> bool:
    """Whether an object is a free one, or says more than `properties` does of what else may be in it."""
    others = schema.get("additionalProperties")
    return others is not False and (
        "properties" not in schema or others is True or isinstance(others, Mapping)
    )


def additional_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What any other property must be, with the definitions that it may refer to."""
    others = schema.get("additionalProperties")
    return {**definitions_of(schema), **others} if isinstance(others, Mapping) else {}


def repeated(schema: Mapping[str, Any], *, after_first: bool = False) -> str:
    """How often a free object's properties may come, as a Lark grammar says it; those `after_first`."""
    least = schema.get("minProperties")
    count = least if isinstance(least, int) and 0 < least <= _MAX_REPEATED else 0
    return f"{{{max(count - after_first, 0)},}}"


_MAX_REPEATED = 16


def required_of(schema: Mapping[str, Any]) -> frozenset[str]:
    wanted = schema.get("required")
    return frozenset(name for name in _list(wanted) if isinstance(name, str)) if wanted else frozenset()


def definition_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that this one refers to, if it does; an empty one where that leads nowhere."""
    for _ in range(8):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found: Any = schema
        for part in reference.removeprefix("#").strip("/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        schema = {**definitions_of(schema), **found} if isinstance(found, Mapping) else {}
    return {}


ALL_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema leaves; none if it does not say. A number may be an integer."""
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
    """What references within the schema may lead to."""
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}


def _list(value: object) -> list[Any]:
    """A schema's keyword as a list, whatever a caller wrote there."""
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
