"""Tools in harmony: recipients of calls, and descriptions for the prompt. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from server.model_formats.harmony.typescript_schema import encodable, inlined_schema
from server.model_formats.interface import PromptError, Tool
from server.model_formats.tool_names import find_tool

FUNCTIONS = "functions"
"""The namespace of tools without one."""
PYTHON = "python"
"""The builtin tool without a namespace: its recipient is `python`, its input is code."""
BROWSER = "browser"
BUILTIN = (BROWSER, PYTHON)
BROWSER_TOOLS = ("search", "open", "find")


def recipient(name: str, namespace: str | None) -> str:
    """The recipient of calls of the tool."""
    if namespace == PYTHON and name == PYTHON:
        return PYTHON
    return f"{namespace or FUNCTIONS}.{name}"


def tool_of(called: str, tools: Mapping[str, Tool]) -> Tool:
    """The tool of a call's recipient; for an unknown recipient, a function of that name."""
    if tool := tools.get(called) or tools.get(f"{FUNCTIONS}.{called}"):
        return tool
    if tool := find_tool(called.removeprefix(f"{FUNCTIONS}."), tools.values()):
        return tool
    if called == PYTHON:
        return Tool(name=PYTHON, kind="custom", namespace=PYTHON)
    namespace, dot, name = called.partition(".")
    if not dot or not name:
        return Tool(name=called)
    return Tool(name=name, namespace=None if namespace == FUNCTIONS else namespace)


def tools_by_recipient(tools: Sequence[Tool]) -> dict[str, Tool]:
    return {recipient(tool.name, tool.namespace): tool for tool in tools}


def is_builtin(called: str) -> bool:
    """Whether the recipient is a builtin tool, called on the analysis channel."""
    return called.partition(".")[0] in BUILTIN


def tools_by_namespace(tools: Sequence[Tool]) -> dict[str, list[dict[str, Any]]]:
    """The argument of `HarmonyEncoding.tools_section`. Raises PromptError."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for tool in tools:
        described = {
            "name": encodable(tool.name),
            "description": encodable(_description(tool)),
            "parameters": _parameters(tool),
        }
        groups.setdefault(encodable(tool.namespace or FUNCTIONS), []).append(described)
    return groups


def read_builtin(value: object) -> tuple[str, ...]:
    """The builtin tools that a request enables. Raises PromptError."""
    names = value if isinstance(value, list | tuple) else [value]
    if not all(name in BUILTIN for name in names):
        raise PromptError("builtin_tools may name browser and python.", "chat_template_kwargs")
    return tuple(name for name in BUILTIN if name in names)


def _description(tool: Tool) -> str:
    """The description, with a custom tool's grammar, so that the model knows what is enforced."""
    description = tool.description or ""
    if tool.kind == "custom" and tool.syntax != "text":
        kind = {"lark": "Lark grammar", "regex": "regular expression"}[tool.syntax]
        description += f"\n\nThe input follows this {kind}:\n{tool.definition}"
    return description.strip("\n")


def _parameters(tool: Tool) -> dict[str, Any] | None:
    if tool.kind == "custom":
        return {"type": "string"}
    if tool.parameters is None:
        return None
    written = inlined_schema(tool.parameters)
    # The model was trained on `()`, not on `(_: {})`, for what takes no arguments.
    return None if written.get("type") == "object" and not written.get("properties") else written
