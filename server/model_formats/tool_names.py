"""Names of a conversation's tools: `ToolIndex` finds the tool that a name in an output or a choice means."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from server.model_formats.model_format import PromptError, PromptTool, qualified_name
from server.model_formats.output_grammar.argument_schemas import CUSTOM_PARAMETERS, mapping
from server.protocol.responses.tools import ALLOWED_NAME

SEPARATORS = ("__", "-", ".")
"""Separators that clients and models put between a namespace, plugin or server label and a tool's name."""


def without_labels(tools: Sequence[PromptTool]) -> list[PromptTool]:
    """The tools, MCP tools without their labels, which models tend to omit, unless two names collide."""
    names = Counter(name for tool in tools for name in {tool.name, qualified_name(tool.name, tool.namespace)})
    return [
        replace(tool, prefixed=tool.prefixed or names[tool.name] > 1) if tool.hosted else tool
        for tool in tools
    ]


def choice_names(tool: PromptTool) -> frozenset[str]:
    """The names of the tool in a request's `tool_choice`; an MCP tool's name needs the label."""
    own = qualified_name(tool.name, tool.namespace)
    return frozenset({own} if tool.hosted else {own, tool.name})


def find_tool(name: str, tools: Iterable[PromptTool]) -> PromptTool | None:
    """The only tool that matches an inexact name; None if none or several do. Models omit prefixes
    (`get_weather` for `W-get_weather`), or use another separator (`city.get_weather`).
    """
    matches = [tool for tool in tools if name and _matches(name, tool)]
    return matches[0] if len(matches) == 1 else None


def _matches(name: str, tool: PromptTool) -> bool:
    if tool.namespace and any(name == f"{tool.namespace}{between}{tool.name}" for between in SEPARATORS):
        return True
    return name == tool.name or tool.prompt_name.endswith(tuple(between + name for between in SEPARATORS))


class ToolIndex:
    def __init__(self, tools: Iterable[PromptTool], *, accepts_unknown: bool = False) -> None:
        """With `accepts_unknown`, `resolve` accepts any name. Raises PromptError for duplicate names."""
        self.accepts_unknown = accepts_unknown
        self.tools: dict[str, PromptTool] = {}
        for tool in tools:
            if tool.prompt_name in self.tools:
                raise PromptError(f"There are two tools called {tool.prompt_name!r}.", "tools")
            self.tools[tool.prompt_name] = tool

    def __bool__(self) -> bool:
        return bool(self.tools)

    def find(self, name: str) -> PromptTool | None:
        return self.tools.get(name) or find_tool(name, self.tools.values())

    def resolve(self, name: str) -> PromptTool | None:
        """The tool of `find`; with `accepts_unknown`, a function without parameters for other names."""
        known = self.find(name)
        if known is None and self.accepts_unknown and ALLOWED_NAME.fullmatch(name):
            return PromptTool(name=name)
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


def description_of(tool: PromptTool) -> str:
    """The description, with a custom tool's grammar, so that the model knows what is enforced."""
    description = tool.description or ""
    if tool.kind == "custom" and tool.syntax != "text":
        kind = {"lark": "Lark grammar", "regex": "regular expression"}[tool.syntax]
        description += f"\n\nThe input follows this {kind}:\n{tool.definition}"
    return description


def with_descriptions(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with an empty description of each property without one, as Command R+ needs."""
    function = schema["function"]
    parameters = function["parameters"]
    properties = {
        name: {"description": "", **inner} if isinstance(inner, Mapping) else inner
        for name, inner in mapping(parameters, "properties").items()
    }
    return {**schema, "function": {**function, "parameters": {**parameters, "properties": properties}}}


def function_schema(name: str, tool: PromptTool) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    if tool.kind == "custom":
        parameters = CUSTOM_PARAMETERS
    function = {"name": name, "description": description_of(tool).strip(), "parameters": dict(parameters)}
    return {"type": "function", "function": function}
