"""Limits on what goes into a prompt: tools, formats and grammars of a request, the prompt's length. Pure.

Writing a prompt and compiling a grammar take time that may grow faster than the schemas and patterns. So the
engine's own limits for grammars are applied to the client's originals before a model format uses them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.grammar.lark_source import check_source
from engine.grammar.limits import MAX_PATTERN, MAX_RAW_DEPTH, BadGrammar, check_pattern, check_schema
from engine.request import StructuredOutput
from server.errors import OVER_THE_LIMIT, InvalidRequest
from server.model_formats.interface import Conversation, Tool
from server.model_formats.output_grammar.argument_schemas import types_of
from server.model_formats.tool_index import choice_names
from server.protocol.responses import tools as wire

MAX_COUNTED_CONTEXTS = 4
"""Tokens are counted up to so many times the model's context; longer input is refused."""
MAX_FUNCTIONS = 512
"""Functions and custom tools of a request, including those in namespaces and of MCP servers."""
MAX_TOOL_CHARACTERS = 131_072
"""Characters of one tool: its description, its grammar, and all keys and strings in its schema."""
MAX_TOOLS_CHARACTERS = 2**20
"""The same of all tools together."""
MAX_TOOL_VALUES = 10_000
"""Values in one tool's schema, objects and arrays included."""
MAX_FORMAT_NAME = 256
MAX_REGEX = MAX_PATTERN - 8
"""Characters of a custom tool's pattern; a group and anchors are added to it."""


def check_tools_and_grammars(
    conversation: Conversation,
    grammar: StructuredOutput | None,
    declared: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Raises InvalidRequest for tools, formats and grammars beyond the limits.

    `grammar` is that of `structured_outputs`; `declared` are the request's tools, whose paths errors name.
    """
    if grammar is not None:
        try:
            check_source(grammar)
        except BadGrammar as error:
            raise InvalidRequest(str(error), param="structured_outputs", code="invalid_value") from error
    _check_tool_sizes(conversation)
    for tool in conversation.tools:
        if _may_be_called(conversation, tool):
            _check_tool_grammar(tool, declared)
    _check_format(conversation)


def _check_tool_sizes(conversation: Conversation) -> None:
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


def _size(tool: Tool) -> int:
    """Characters of a tool. Raises InvalidRequest for a schema with too many values or levels."""
    total = len(tool.name) + len(tool.description or "") + len(tool.definition)
    level: list[Any] = [tool.parameters]
    values = 0
    for _ in range(MAX_RAW_DEPTH):
        values += len(level)
        total += sum(len(one) for one in level if isinstance(one, str))
        if values > MAX_TOOL_VALUES:
            raise _invalid_tools(f"The parameters of {tool.name!r} have more than {MAX_TOOL_VALUES} values.")
        if total > MAX_TOOL_CHARACTERS:
            return total
        inner: list[Any] = []
        for one in level:
            if isinstance(one, Mapping):
                total += sum(map(len, one))
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        level = inner
        if not level:
            return total
    raise _invalid_tools(f"The parameters of {tool.name!r} are nested more than {MAX_RAW_DEPTH} levels deep.")


def _may_be_called(conversation: Conversation, tool: Tool) -> bool:
    choice = conversation.tool_choice
    return choice.mode != "none" and (
        choice.allowed is None or not choice_names(tool).isdisjoint(choice.allowed)
    )


def check_functions(tools: Sequence[wire.Tool], declared: Sequence[Mapping[str, Any]] | None) -> None:
    """Raises InvalidRequest, in OpenAI's words, for a function whose arguments could not be an object."""
    for tool in tools:
        if isinstance(tool, wire.NamespaceTool):
            check_functions(tool.tools, declared)
        elif (
            isinstance(tool, wire.FunctionTool)
            and tool.parameters
            and (why := _no_arguments(tool.parameters, strict=bool(tool.strict)))
        ):
            raise InvalidRequest(
                f"Invalid schema for function '{tool.name}': {why}.",
                param=grammar_path(declared, tool.name),
                code="invalid_function_parameters",
            )


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


def grammar_path(declared: Sequence[Mapping[str, Any]] | None, name: str) -> str:
    """The path of a function's parameters or of a custom tool's grammar; `tools` for one not declared."""
    path, kind = wire.tool_path(declared, name)
    return (
        path if kind is None else f"{path}.parameters" if kind == "function" else f"{path}.format.definition"
    )


def _check_tool_grammar(tool: Tool, declared: Sequence[Mapping[str, Any]] | None) -> None:
    """Check what becomes a grammar: a strict function's schema, a custom tool's grammar."""
    try:
        if tool.kind == "function" and tool.strict and tool.parameters is not None:
            check_schema(tool.parameters)
        elif tool.syntax == "regex" and len(tool.definition) > MAX_REGEX:
            raise BadGrammar(
                f"A custom tool's pattern may have {MAX_REGEX} characters; this has {len(tool.definition)}."
            )
        elif tool.syntax == "regex":
            check_pattern(tool.definition)
        elif tool.syntax == "lark":
            check_source(StructuredOutput(kind="lark", text=tool.definition))
    except BadGrammar as error:
        code = "invalid_function_parameters" if tool.kind == "function" else "invalid_value"
        raise InvalidRequest(str(error), param=grammar_path(declared, tool.name), code=code) from error


def _check_format(conversation: Conversation) -> None:
    wanted = conversation.format
    if len(wanted.name) > MAX_FORMAT_NAME:
        raise InvalidRequest(
            f"The name of a format may have {MAX_FORMAT_NAME} characters.", param="text.format.name"
        )
    if wanted.kind != "json_schema" or wanted.schema is None:
        return
    why = _no_object(wanted.schema, strict=True) if wanted.strict else None
    if why is not None:
        raise _invalid_format(f"Invalid schema for response_format '{wanted.name}': {why}.")
    try:
        check_schema(wanted.schema)
    except BadGrammar as error:
        raise _invalid_format(str(error)) from error


def _invalid_format(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="text.format.schema", code="invalid_json_schema")


def _invalid_tools(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="tools", code="invalid_value")


def too_long(limit: int, param: str = "input", *, tokens: int | None = None) -> InvalidRequest:
    """The error for a prompt that leaves no room for an answer in a context of `limit` tokens.

    `tokens` is the prompt's length; None if counting stopped at the limit.
    """
    counted = "and the input has more" if tokens is None else f"and the input has {tokens}"
    return InvalidRequest(
        f"{OVER_THE_LIMIT} of {limit} tokens: this model's maximum context length is {limit} tokens, "
        f"{counted}.",
        param=param,
        code="context_length_exceeded",
    )


def too_long_to_count(limit: int, param: str = "input") -> InvalidRequest:
    """The error for more tokens than are counted for a request that generates nothing."""
    return InvalidRequest(
        f"{OVER_THE_LIMIT} of {limit} tokens: no more are counted here.",
        param=param,
        code="context_length_exceeded",
    )
