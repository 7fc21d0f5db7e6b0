"""Deferred tools: the search that loads them, and a prompt's tools after what its searches have found. Pure.

What a search finds is written as its result, at the prompt's end. The list of tools at the prompt's beginning
stays as it is, and with it all that is cached of the prompt.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from server.generation.call_arguments import parse_object
from server.model_formats.model_format import PromptConversation, PromptError, PromptTool
from server.model_formats.tool_names import choice_names, function_schema
from server.protocol.responses import tools as wire
from server.protocol.responses.items import Item, ToolSearchOutput
from server.protocol.responses.tools import TOOL_SEARCH, Tool, ToolSearchTool

MAX_FOUND = 10
NAME_WEIGHT, GROUP_WEIGHT = 4, 2
"""A word of the tool's name, and of its namespace or server, as multiples of one of its description."""
MARGIN = 3
"""A tool with less than 1/3 of the best one's score is not found."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_]")
"""Words of a text in any case: of `getWeather_2` get, Weather and 2; a letter of another script is one."""
_SEARCH = (
    "Searches for tools that are not loaded yet and loads those that match: the result has their "
    "definitions, and you may call them from then on."
)
_QUERY = {"type": "string", "description": "What the tool should do, in a few words, or its name."}
_SERVER_PARAMETERS = {"type": "object", "properties": {"query": _QUERY}, "required": ["query"]}
_PATHS = {"type": "array", "items": {"type": "string"}, "description": "Names of what is to be loaded."}
_CLIENT_PARAMETERS = {"type": "object", "properties": {"paths": _PATHS}, "required": ["paths"]}
"""The arguments that OpenAI's clients read where they have set no schema."""

Key = tuple[str | None, str | None]
"""A tool's namespace or MCP server, and its name; without a name, all tools of an MCP server."""


def find_tools(tools: Sequence[Tool], arguments: str) -> list[dict[str, Any]]:
    """The deferred tools that a search's arguments ask for, at most MAX_FOUND, as a response has them.

    They are ranked by the words that they share with the arguments: a rare word counts more than a frequent
    one, and one of a name more than one of a description. They are in the order of their declaration.
    """
    query = _words(" ".join(map(str, parse_object(arguments).values())))
    texts = {
        key: (_words(key[1] or ""), _words(group), _words(about)) for key, group, about in _deferred(tools)
    }
    frequency = Counter(word for words in texts.values() for word in set().union(*words) & query)
    scores = {
        key: sum(
            (len(texts) // frequency[word]).bit_length()
            * (NAME_WEIGHT * (word in name) + GROUP_WEIGHT * (word in group) + (word in about))
            for word in frequency
        )
        for key, (name, group, about) in texts.items()
    }
    best = max(scores.values(), default=0)
    ranked = sorted((key for key in scores if scores[key] * MARGIN >= best > 0), key=lambda key: -scores[key])
    chosen = set(ranked[:MAX_FOUND])
    return [wire.echo(part) for tool in tools if (part := _part(tool, chosen)) is not None]


def _words(text: str) -> set[str]:
    """The words of a text in lower case, without the plural's s and without single Latin letters."""
    words = (word.lower() for word in _WORD.findall(text) if len(word) > 1 or not word.isascii())
    return {word.removesuffix("s") if len(word) > 3 else word for word in words}


def _deferred(tools: Sequence[Tool]) -> Iterator[tuple[Key, str, str]]:
    """Each deferred tool, the name and description of its namespace or server, and its own description."""
    for tool in tools:
        match tool:
            case wire.NamespaceTool(label, inner, description):
                for (_, name), _, about in _deferred(inner):
                    yield (label, name), f"{label} {description or ''}", about
            case wire.McpTool(label, server_description=description, defer_loading=True):
                for listed in tool.offered:
                    yield (label, listed.name), f"{label} {description or ''}", listed.description or ""
            case wire.FunctionTool(defer_loading=True) | wire.CustomTool(defer_loading=True):
                yield (None, tool.name), "", tool.description or ""


def _part(tool: Tool, chosen: set[Key]) -> Tool | None:
    """The tool with those of its members that were chosen; None without any."""
    match tool:
        case wire.NamespaceTool(name, inner):
            members = [member for member in inner if (name, member.name) in chosen]
            return msgspec.structs.replace(tool, tools=members) if members else None
        case wire.McpTool(label):
            names = [listed.name for listed in tool.offered if (label, listed.name) in chosen]
            return msgspec.structs.replace(tool, allowed_tools=names) if names else None
    return tool if (None, tool.name) in chosen else None


def search_tool(declared: ToolSearchTool, tools: Sequence[Tool]) -> list[PromptTool]:
    """The search as the model sees it, with the names and descriptions of what is deferred.

    Of a namespace or a server its own, not its members'. A search by the server with nothing to find is none.
    """
    searched = dict.fromkeys(
        f"- {group or f'{name} {about}'}".strip() for (_, name), group, about in _deferred(tools)
    )
    client = declared.execution == "client"
    if not searched and not client:
        return []
    lines = [declared.description or _SEARCH, *(["These can be searched:", *searched] if searched else [])]
    parameters = declared.parameters or (_CLIENT_PARAMETERS if client else _SERVER_PARAMETERS)
    return [PromptTool(name=TOOL_SEARCH, description="\n".join(lines), parameters=parameters, hosted=True)]


def _loaded(items: Sequence[Item]) -> set[Key]:
    keys: set[Key] = set()
    for item in items:
        for tool in item.tools if isinstance(item, ToolSearchOutput) else ():
            match tool:
                case {"type": "namespace", "name": str(name), "tools": list(inner)}:
                    keys |= {(name, member["name"]) for member in inner}
                case {"type": "mcp", "server_label": str(label)}:
                    allowed = tool.get("allowed_tools")
                    keys |= {(label, name) for name in (allowed if isinstance(allowed, list) else [None])}
                case {"type": "function" | "custom", "name": str(name)}:
                    keys.add((None, name))
    return keys


def _is_in(keys: set[Key], tool: PromptTool) -> bool:
    return (tool.namespace, tool.name) in keys or (tool.namespace, None) in keys


def with_loaded_tools(conversation: PromptConversation, items: Sequence[Item]) -> PromptConversation:
    """The conversation with the tools that are not deferred and those that searches in `items` have found.

    Raises PromptError for a tool choice that leaves none of them.
    """
    keys = _loaded(items)
    if not keys and not any(tool.deferred for tool in conversation.tools):
        return conversation
    is_searched = any(tool.name == TOOL_SEARCH and tool.namespace is None for tool in conversation.tools)
    tools = [
        replace(tool, listed=not (is_searched and _is_in(keys, tool)))
        for tool in conversation.tools
        if not tool.deferred or _is_in(keys, tool)
    ]
    choice = conversation.tool_choice
    if choice.allowed:
        there = {name for tool in tools for name in choice_names(tool)}
        deferred = {name for tool in conversation.tools for name in choice_names(tool)} - there
        choice = msgspec.structs.replace(
            choice, allowed=tuple(name for name in choice.allowed if name not in deferred)
        )
        if not choice.allowed:
            raise PromptError("tool_choice names only tools that no search has loaded yet.", "tool_choice")
    return replace(conversation, tools=tools, tool_choice=choice)


def describe_found(tools: Sequence[PromptTool], output: ToolSearchOutput) -> str:
    """The result of a search as the model reads it: the definitions of the found tools that it may call."""
    keys = _loaded([output])
    schemas = [function_schema(tool.prompt_name, tool)["function"] for tool in tools if _is_in(keys, tool)]
    if not schemas:
        return "No tool matches. Search with other words."
    lines = [json.dumps(schema, ensure_ascii=False) for schema in schemas]
    return "\n".join(["These tools are loaded. Call them by these names:", *lines])
