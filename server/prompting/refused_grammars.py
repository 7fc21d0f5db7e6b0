"""Finds the tool whose schema or grammar makes the grammar of all tools' calls be refused.

The tools of a request become one grammar, in which the compiler's sentence names no tool.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.grammar.compiler import COMPILE_SECONDS
from engine.grammar.matcher import UNCOMPILED
from engine.request import EngineRequest, RequestRefused, StructuredOutput
from server.errors import InvalidRequest
from server.prompting.prompt_limits import grammar_path, invalid_function
from server.protocol.error_object import invalid_value
from server.protocol.responses.tools import CustomTool, FunctionTool, GrammarFormat, NamespaceTool, Tool


def refused_tool(
    check: Callable[[EngineRequest], object],
    engine_request: EngineRequest,
    tools: Sequence[Tool],
    declared: Sequence[Mapping[str, Any]] | None,
) -> InvalidRequest | None:
    """The error of the first tool whose grammar `check` refuses; it looks as long as one may compile."""
    end = time.monotonic() + COMPILE_SECONDS
    for tool, grammar in _grammars(tools):
        if time.monotonic() > end:
            return None
        try:
            check(replace(engine_request, grammar=grammar))
        except RequestRefused as refused:
            if refused.reason != "bad_grammar":
                return None
            cause = str(refused).removeprefix(UNCOMPILED)
            if isinstance(tool, FunctionTool):
                return invalid_function(tool.name, cause, declared)
            sentence = f"Invalid grammar of the custom tool '{tool.name}': {cause}"
            return invalid_value(sentence, grammar_path(declared, tool.name))
    return None


def _grammars(tools: Sequence[Tool]) -> Iterator[tuple[FunctionTool | CustomTool, StructuredOutput]]:
    for tool in tools:
        match tool:
            case NamespaceTool():
                yield from _grammars(tool.tools)
            case CustomTool(format=GrammarFormat(syntax, definition)):
                yield tool, StructuredOutput(kind=syntax, text=definition)
            case FunctionTool(strict=True, parameters=dict(parameters)):
                yield tool, StructuredOutput(kind="json_schema", text=json.dumps(parameters))
