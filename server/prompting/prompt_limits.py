"""Limits on what goes into a prompt: tools, formats and grammars of a request, the prompt's length. Pure.

What a model format writes into a prompt or a grammar is bounded here; the cost of a grammar, by its compile.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from engine.grammar.structured_output_to_lark import MAX_RAW_DEPTH, is_nested_deeper
from server.errors import OVER_THE_LIMIT, InvalidRequest
from server.model_formats.model_format import PromptConversation, PromptTool
from server.model_formats.output_grammar.argument_schemas import types_of
from server.protocol.error_object import invalid_value, unsupported_parameter
from server.protocol.responses import tools as wire

MAX_COUNTED_CONTEXTS = 4
"""Tokens are counted up to so many times the model's context; longer input is refused."""
MAX_FUNCTIONS = 512
"""Functions and custom tools of a request, including those in namespaces and of MCP servers."""
MAX_TOOL_CHARACTERS = 131_072
"""Characters of one tool: its description, its grammar, and all keys and strings in its schema."""
MAX_TOOLS_CHARACTERS = 2**20
"""The limit of all tools together."""
MAX_TOOL_VALUES = 10_000
"""Values in one tool's schema, objects and arrays included."""
MAX_FORMAT_NAME = 256
MAX_DEFINITION = 20_000
"""Characters of a custom tool's grammar, which is rewritten for its input within JSON."""


def check_tools_and_format(
    conversation: PromptConversation, declared: Sequence[Mapping[str, Any]] | None = None
) -> None:
    """Raises InvalidRequest for tools and a format beyond the limits; `declared` are the request's tools."""
    _check_tool_sizes(conversation)
    for tool in conversation.tools:
        if len(tool.definition) > MAX_DEFINITION:
            raise invalid_value(
                f"A custom tool's grammar may have {MAX_DEFINITION} characters; that of {tool.name!r} has "
                f"{len(tool.definition)}.",
                grammar_path(declared, tool.name),
            )
    _check_format(conversation)


def _check_tool_sizes(conversation: PromptConversation) -> None:
    if len(conversation.tools) > MAX_FUNCTIONS:
        raise _invalid_tools(
            f"A request may have {MAX_FUNCTIONS} functions and custom tools; this one has "
            f"{len(conversation.tools)}, those in namespaces and of MCP servers included."
        )
    total = 0
    for tool in conversation.tools:
        size = _size(tool)
        if size > MAX_TOOL_CHARACTERS:
            raise _invalid_tools(f"The tool {tool.name!r} has more than {MAX_TOOL_CHARACTERS} characters.")
        total += size
        if total > MAX_TOOLS_CHARACTERS:
            raise _invalid_tools(
                f"The tools of a request may have {MAX_TOOLS_CHARACTERS} characters together."
            )


def _size(tool: PromptTool) -> int:
    """Characters of a tool. Raises InvalidRequest for a schema with too many values or levels."""
    total = len(tool.name) + len(tool.description or "") + len(tool.definition)
    level: list[Any] = [tool.parameters]
    values = 0
    for _ in range(MAX_RAW_DEPTH):
        values += len(level)
        total += sum(len(value) for value in level if isinstance(value, str))
        if values > MAX_TOOL_VALUES:
            raise _invalid_tools(f"The parameters of {tool.name!r} have more than {MAX_TOOL_VALUES} values.")
        if total > MAX_TOOL_CHARACTERS:
            return total
        inner: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                total += sum(map(len, value))
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = inner
        if not level:
            return total
    raise _invalid_tools(f"The parameters of {tool.name!r} are nested more than {MAX_RAW_DEPTH} levels deep.")


def check_functions(tools: Sequence[wire.Tool], declared: Sequence[Mapping[str, Any]] | None) -> None:
    """Raises InvalidRequest, in OpenAI's words, for a function whose arguments could not be an object."""
    for tool in tools:
        if isinstance(tool, wire.NamespaceTool):
            check_functions(tool.tools, declared)
        elif (
            isinstance(tool, wire.FunctionTool | wire.ToolSearchTool)
            and tool.parameters
            and (why := _no_arguments(tool.parameters, strict=bool(getattr(tool, "strict", False))))
        ):
            raise invalid_function(tool.name, f"{why}.", declared)


def check_callable(
    declared: Sequence[Mapping[str, Any]], path: str = "tools", *, searched: bool = False
) -> None:
    """Raises InvalidRequest for a tool that nobody can call: for programs alone, or deferred unsearched."""
    searched = searched or any(tool["type"] == wire.TOOL_SEARCH for tool in declared)
    for index, tool in enumerate(declared):
        field, why = "", ""
        if "direct" not in (tool.get("allowed_callers") or ["direct"]):
            field, why = "allowed_callers", "No programs are run here: add 'direct', or leave it out."
        elif tool.get("defer_loading") and not searched:
            field, why = "defer_loading", "Only tool_search loads a deferred tool: add that, or leave it out."
        if field and tool["type"] in wire.TOOL_TYPES:
            raise unsupported_parameter(why, f"{path}[{index}].{field}")
        if tool["type"] == "namespace":
            check_callable(tool["tools"], f"{path}[{index}].tools", searched=searched)


def _no_arguments(schema: Mapping[str, Any], *, strict: bool) -> str | None:
    """Why the schema of a function's arguments is none of an object; None if it is one."""
    properties, required = schema.get("properties"), schema.get("required")
    if properties is not None and not isinstance(properties, Mapping):
        return "properties must be an object"
    if required is not None and not isinstance(required, list):
        return "required must be an array"
    return _no_object(schema, strict=strict)


def _no_object(schema: Mapping[str, Any], *, strict: bool) -> str | None:
    """Why the root of a schema is no object's; None if it is, or may be where the schema is not strict."""
    if schema.get("type") == "object" or not (types := types_of(schema)):
        return None
    if types == {"object"} or ("object" in types and not strict):
        return None
    return (
        "schema must be a JSON Schema of 'type: \"object\"', got 'type: " + f'"{", ".join(sorted(types))}"\''
    )


def invalid_function(name: str, cause: str, declared: Sequence[Mapping[str, Any]] | None) -> InvalidRequest:
    """The error for a function's schema, in OpenAI's words."""
    sentence = f"Invalid schema for function '{name}': {cause}"
    return InvalidRequest(sentence, grammar_path(declared, name), "invalid_function_parameters")


def grammar_path(declared: Sequence[Mapping[str, Any]] | None, name: str) -> str:
    """The path of a function's parameters or of a custom tool's grammar; `tools` for one not declared."""
    path, kind = wire.tool_path(declared, name)
    return (
        path if kind is None else f"{path}.parameters" if kind == "function" else f"{path}.format.definition"
    )


def _check_format(conversation: PromptConversation) -> None:
    output_format = conversation.format
    if len(output_format.name or "") > MAX_FORMAT_NAME:
        raise InvalidRequest(
            f"The name of a format may have {MAX_FORMAT_NAME} characters.", param="text.format.name"
        )
    if output_format.type != "json_schema" or output_format.schema is None:
        return
    why = _no_object(output_format.schema, strict=True) if output_format.strict else None
    if why is not None:
        raise _invalid_format(f"Invalid schema for response_format '{output_format.name or ''}': {why}.")
    if is_nested_deeper(output_format.schema, MAX_RAW_DEPTH):
        raise _invalid_format(f"The schema of a format may be nested {MAX_RAW_DEPTH} levels deep.")


_invalid_format = partial(InvalidRequest, param="text.format.schema", code="invalid_json_schema")
_invalid_tools = partial(invalid_value, param="tools")
_over_the_limit = partial(InvalidRequest, code="context_length_exceeded")


def too_long(limit: int, param: str = "input", *, tokens: int | None = None) -> InvalidRequest:
    """The error for a prompt of so many tokens, None where counting stopped, in a context of `limit`."""
    counted = "and the input has more" if tokens is None else f"and the input has {tokens}"
    return _over_the_limit(
        f"{OVER_THE_LIMIT} of {limit} tokens: this model's maximum context length is {limit} tokens, "
        f"{counted}.",
        param,
    )


def too_long_to_count(limit: int, param: str = "input") -> InvalidRequest:
    """The error for more tokens than are counted for a request that generates nothing."""
    return _over_the_limit(f"{OVER_THE_LIMIT} of {limit} tokens: no more are counted here.", param)
