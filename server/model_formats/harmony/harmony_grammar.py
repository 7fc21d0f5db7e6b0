"""Builds gpt-oss's output grammar: analysis and commentary are free, then the answer or a call. Pure."""

import json
from collections.abc import Iterator, Sequence

from engine.request import StructuredOutput
from server.model_formats.harmony.tools import BROWSER, BROWSER_TOOLS, PYTHON, recipient
from server.model_formats.harmony.vocabulary import CHANNEL, CONSTRAIN, END, MESSAGE, START
from server.model_formats.model_format import PromptConversation, PromptError, PromptTool
from server.model_formats.output_grammar.argument_schemas import enforced_schema
from server.model_formats.output_grammar.grammar_builder import free_input
from server.model_formats.output_grammar.relaxed_schemas import forced_grammar, format_schema
from server.model_formats.tool_names import choice_names

_ANY_TEXT = "TEXT?"


def make_grammar(conversation: PromptConversation, builtin: tuple[str, ...] = ()) -> StructuredOutput | None:
    """The grammar of tool choice, strict tools and output format; None without. Raises PromptError."""
    choice, tools = conversation.tool_choice, _callable(conversation)
    if conversation.continue_final_message:
        if choice.mode == "required" or conversation.format.type != "text":
            raise PromptError("A message that is continued has no format and calls no tool.", "tool_choice")
        return None
    if not _restricts(conversation, tools):
        return None
    offered = tuple(
        name
        for name in (builtin if choice.mode != "none" else ())
        if choice.allowed is None or any(each.startswith(f"{name}__") for each in choice.allowed)
    )
    builtin_calls = list(_builtin_calls(offered))
    if choice.mode != "required":
        return _grammar(conversation, [*_calls(tools), *builtin_calls])
    if not tools and not offered:
        raise PromptError("A tool must be called, but there is none that may be.", "tool_choice")
    return forced_grammar(tools, lambda level: _grammar(conversation, [*_calls(level), *builtin_calls]))


def _grammar(conversation: PromptConversation, calls: Sequence[tuple[str, str, str]]) -> StructuredOutput:
    choice = conversation.tool_choice
    last = [f"c{number}" for number in range(len(calls))]
    answers = _final(conversation) if choice.mode != "required" else []
    lines = [
        f'start: (aside <[{START}]> "assistant")* ({" | ".join(["final", *last] if answers else last)})',
        f"aside: (analysis | commentary) <[{MESSAGE}]> {_ANY_TEXT} <[{END}]>",
        f'commentary: <[{CHANNEL}]> "commentary"',
        f'analysis: <[{CHANNEL}]> "analysis"',
        f'json: (" "? <[{CONSTRAIN}]> "json" | " json")? <[{MESSAGE}]>',
        f'plain: (" "? <[{CONSTRAIN}]>? ("code" | "text"))? <[{MESSAGE}]>',
        *answers,
    ]
    schemas: dict[str, str] = {}
    for number, (callee, channel, content) in enumerate(calls):
        head, _, schema = content.partition(" %json ")
        if schema:  # equal ones are in the grammar once
            content = f"{head} {schemas.setdefault(schema, f's{len(schemas)}')}"  # noqa: PLW2901
        # The recipient may come before the channel or after it.
        lines.append(f"c{number}: (n{number} {channel} | {channel} n{number}) {content}")
        lines.append(f"n{number}: {json.dumps(' to=' + callee)}")
    lines += [f"{name}: %json {schema}" for schema, name in schemas.items()]
    return StructuredOutput(kind="lark", text="\n".join([*lines, "TEXT: /(.|\\n)+/"]))


def _callable(conversation: PromptConversation) -> list[PromptTool]:
    choice = conversation.tool_choice
    if choice.mode == "none":
        return []
    return [
        tool
        for tool in conversation.tools
        if choice.allowed is None or not choice_names(tool).isdisjoint(choice.allowed)
    ]


def _restricts(conversation: PromptConversation, tools: list[PromptTool]) -> bool:
    choice = conversation.tool_choice
    return (
        choice.mode == "required"
        or (choice.mode == "none" and bool(conversation.tools))
        or choice.allowed is not None
        or conversation.format.type != "text"
        or any(tool.strict or tool.syntax != "text" for tool in tools)
    )


def _final(conversation: PromptConversation) -> list[str]:
    schema = format_schema(conversation.format)
    if schema is None:
        return [f'final: <[{CHANNEL}]> "final" <[{MESSAGE}]> {_ANY_TEXT}']
    return [f'final: <[{CHANNEL}]> "final" json answer', f"answer: %json {json.dumps(schema)}"]


def _calls(tools: list[PromptTool]) -> Iterator[tuple[str, str, str]]:
    """(recipient, rule of the channel, expression of the content) for a call of each tool."""
    for tool in tools:
        content = f"json %json {json.dumps(enforced_schema(tool))}"
        if tool.kind == "custom":
            content = f"plain {free_input(tool) or _ANY_TEXT}"
        yield recipient(tool.name, tool.namespace), "commentary", content


def _builtin_calls(names: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """The tuples of `_calls` for builtin tools, which are called on the analysis channel with code."""
    callees = [f"{BROWSER}.{name}" for name in BROWSER_TOOLS] if BROWSER in names else []
    callees += [PYTHON] if PYTHON in names else []
    for callee in callees:
        yield callee, "analysis", f"plain {_ANY_TEXT}"
