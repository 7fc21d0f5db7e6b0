"""The output grammar of models with a chat template: reasoning, then an answer in its format, or tool calls.
Free text is only what the model format's own parser reads back as such.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from engine.request import StructuredOutput
from server.model_formats.model_format import CallChoice, PromptError, PromptTool
from server.model_formats.output_grammar.argument_schemas import alternatives
from server.model_formats.output_grammar.lark_builder import GrammarBuilder, regex_of
from server.model_formats.output_grammar.relaxed_schemas import forced_grammar, format_schema
from server.model_formats.reasoning import ReasoningFormat
from server.model_formats.special_tokens import Markup
from server.model_formats.tool_calls.tool_call_format import ToolCallFormat
from server.model_formats.tool_index import ToolIndex
from server.protocol.responses.request import TextFormat

ReasoningStart = Literal["no", "maybe", "open"]
"""Whether the output may begin with reasoning (`maybe`) or the prompt has already started it (`open`)."""
_SPACE = "/[ \\n]{0,4}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConstraints:
    tools: ToolIndex
    """The tools that may be called; with the choice `none`, all tools of the prompt."""
    choice: CallChoice
    format: TextFormat
    thinking: ReasoningStart


def build_grammar(
    markup: Markup,
    calls: ToolCallFormat | None,
    reasoning: ReasoningFormat | None,
    constraints: OutputConstraints,
) -> StructuredOutput | None:
    """The grammar, or None if nothing is constrained. Raises PromptError for what cannot be enforced.

    Required calls get a chain of grammars, from the most to the least strict schema.
    """

    def make(tools: Iterable[PromptTool]) -> StructuredOutput | None:
        lark = GrammarBuilder(markup)
        allowed = replace(constraints, tools=ToolIndex(tools))
        frame = reasoning.answer_frame if reasoning else None
        body = _body(lark, calls, allowed, _forbidden_start(markup, reasoning, constraints), frame)
        if body is None:
            return None
        called = _call_within(lark, calls, allowed) if calls else None
        return lark.grammar(_with_reasoning(lark, reasoning, constraints.thinking, body, called))

    tools = constraints.tools.tools.values()
    if constraints.choice.mode != "required":
        return make(tools)
    if not tools:
        raise PromptError("A call is required, but there are no tools.", "tool_choice")
    return forced_grammar(tools, make)


def _body(
    lark: GrammarBuilder,
    calls: ToolCallFormat | None,
    constraints: OutputConstraints,
    forbidden: str,
    frame: tuple[str, str, str] | None,
) -> str | None:
    """The expression for the output after the reasoning; None if anything is allowed."""
    schema = format_schema(constraints.format)
    answer = None if schema is None else _framed(lark, frame, lark.json(schema))
    if calls is None or not constraints.tools:
        return answer
    match constraints.choice.mode:
        case "required":
            call = _calls(lark, calls, constraints, calls.prefix)
            return f"({_framed(lark, frame, '', ends=False)}) {call}" if frame else call
        case "none":
            banned = [] if calls.bare_starts else list(calls.openers)
            return answer or (_framed(lark, frame, lark.text_without([*banned])) if banned else None)
    if answer is not None:
        return f"{answer} | {_calls(lark, calls, constraints, calls.prefix)}"
    return (
        _text_or_calls(lark, calls, constraints, forbidden, frame) if _restricts_calls(constraints) else None
    )


def _framed(lark: GrammarBuilder, frame: tuple[str, str, str] | None, text: str, *, ends: bool = True) -> str:
    """The answer's expression in its tags, each of which may be absent; without `ends`, before calls."""
    if frame is None:
        return text
    begin, end, last = map(lark.literal, frame)
    return f"({begin})? {text} ({end}{f' ({last})?' if ends else ''})?"


def _restricts_calls(constraints: OutputConstraints) -> bool:
    return (
        not constraints.choice.parallel
        or constraints.choice.allowed is not None
        or any(tool.strict or tool.syntax != "text" for tool in constraints.tools.tools.values())
    )


def _text_or_calls(
    lark: GrammarBuilder,
    calls: ToolCallFormat,
    constraints: OutputConstraints,
    forbidden: str,
    frame: tuple[str, str, str] | None,
) -> str:
    """Free text, optionally followed by calls."""
    if calls.bare_starts:
        start = f"[^\\s{regex_of(calls.bare_starts + forbidden)}]"
        text = lark.rule("FREE", f"/[ \\n\\t]*{start}(.|\\n)*/")
        return f"({text} | {_calls(lark, calls, constraints, calls.prefix)})?"
    opener = calls.openers[0]
    rest = _calls(lark, calls, constraints, calls.prefix.removeprefix(opener))
    if calls.markup.is_sign(opener):
        text = lark.text_without(calls.openers)
        before = _framed(lark, frame, text, ends=False)
        return f"({_framed(lark, frame, text)} | {before} {lark.literal(opener)} {rest})?"
    start = f"[^\\s{regex_of(forbidden)}]" if forbidden else ""
    if isinstance(calls.markup.grammar_pieces(opener)[0], int):
        text = lark.rule("FREE", lark.text_body(calls.openers, start, empty=True))
        return f"({text} | {text} {lark.literal(opener)} {rest})?"
    text = lark.rule("FREE", lark.text_body(calls.openers, start))
    before = lark.rule("BEFORE", lark.text_body(calls.openers[1:], start, empty=True))
    head = lark.rule("head[lazy]", f"{before} {json.dumps(opener)}")
    return f"({text} | {head} {rest})?"


def _calls(lark: GrammarBuilder, calls: ToolCallFormat, constraints: OutputConstraints, lead: str) -> str:
    """One call, or several if parallel calls are allowed; `lead` is the rest of the prefix to be written."""
    own = [
        calls.call_grammar(lark, name, alternative)
        for name, tool in constraints.tools.tools.items()
        for alternative in (alternatives(tool) if calls.per_property else [tool])
    ]
    call = lark.rule("call", " | ".join(own))
    more = f" ({lark.literal(calls.separator)} {call})*" if constraints.choice.parallel else ""
    return f"({lark.literal(lead)} {call}{more} {lark.literal(calls.suffix)})"


def _forbidden_start(
    markup: Markup, reasoning: ReasoningFormat | None, constraints: OutputConstraints
) -> str:
    """Characters that free text must not begin with, because it would be parsed as reasoning."""
    if reasoning is None or constraints.thinking != "maybe":
        return ""
    return "".join(sorted({opening[0] for opening in reasoning.start_tags if not markup.is_sign(opening)}))


def _call_within(lark: GrammarBuilder, calls: ToolCallFormat, constraints: OutputConstraints) -> str | None:
    """Reasoning that is ended by calls in place of its end tag, which many models write; else None.

    The whole prefix of a call begins it, as its opener alone may be mentioned.
    """
    excluded = bool(calls.bare_starts) or not calls.in_reasoning
    if excluded or not constraints.tools or constraints.choice.mode == "none":
        return None
    return f"{lark.until(calls.prefix)} {_calls(lark, calls, constraints, '')}"


def _with_reasoning(
    lark: GrammarBuilder,
    reasoning: ReasoningFormat | None,
    thinking: ReasoningStart,
    body: str,
    called: str | None,
) -> str:
    """`called` is reasoning that ends with calls."""
    if reasoning is None or thinking == "no":
        return body
    thought = f"{lark.until(reasoning.end_tags[0])} {_SPACE} ({body})"
    if called:
        thought = f"({thought} | {called})"
    return thought if thinking == "open" else f"{lark.literal(reasoning.start_tags[0])} {thought} | ({body})"
