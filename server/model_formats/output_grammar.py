"""What a conversation's tool choice and format ask of the output, as one grammar.

It allows nothing that the same format's parser would not read as meant: the reasoning first, where the
model reasons; then an answer, calls, or either. Where nothing is asked there is no grammar.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from engine.request import StructuredOutput
from server.model_formats.grammar.forced_calls import alternatives, forced_levels
from server.model_formats.grammar.lark_rules import Lark
from server.model_formats.grammar.unenforced_keywords import without_unenforced
from server.model_formats.interface import OutputFormat, PromptError, ToolChoice
from server.model_formats.reasoning import ReasoningForm
from server.model_formats.text_stream.special_tokens import Markup
from server.model_formats.tool_calls.interface import CallFormat
from server.model_formats.tool_names import Toolbox

Thinking = Literal["no", "maybe", "open"]
"""Whether reasoning may come first, or has been opened by the prompt."""
_SPACE = "/[ \\n]{0,4}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """All that a grammar is made from."""

    tools: Toolbox
    """Those that may be called; with the choice `none`, those that were shown."""
    choice: ToolChoice
    format: OutputFormat
    thinking: Thinking


def constrain(
    markup: Markup, calls: CallFormat | None, form: ReasoningForm | None, asked: Asked
) -> StructuredOutput | None:
    """Raises PromptError for what cannot be enforced."""
    required = asked.choice.mode == "required"
    if required and not asked.tools:
        raise PromptError("A call is required, but there are no tools.", "tool_choice")
    if not required:
        return _grammar(markup, calls, form, asked)
    return chained(
        partial(_grammar, markup, calls, form, replace(asked, tools=Toolbox(tools)))
        for tools in forced_levels(asked.tools.tools.values())
    )


def chained(levels: Iterable[Callable[[], StructuredOutput | None]]) -> StructuredOutput | None:
    """The first grammar, with the ones behind it for where it cannot be compiled.

    Raises the first PromptError where no level can be written.
    """
    error: PromptError | None = None
    grammars: list[StructuredOutput | None] = []
    for level in levels:
        try:
            grammars.append(level())
        except PromptError as refusal:
            error = error or refusal
    if error is not None and not grammars:
        raise error
    chain: StructuredOutput | None = None
    for grammar in reversed(grammars):
        if grammar is not None and (chain is None or grammar.text != chain.text):
            chain = replace(grammar, relaxed=chain)
    return chain


def _grammar(
    markup: Markup, calls: CallFormat | None, form: ReasoningForm | None, asked: Asked
) -> StructuredOutput | None:
    lark = Lark(markup)
    body = _body(lark, calls, asked, _forbidden_start(markup, form, asked))
    if body is None:
        return None
    return lark.grammar(_with_reasoning(lark, form, asked.thinking, body))


def _body(lark: Lark, calls: CallFormat | None, asked: Asked, forbidden: str) -> str | None:
    """What comes after the reasoning; None for anything."""
    answer = _answer(lark, asked.format)
    if calls is None or not asked.tools:
        return answer
    match asked.choice.mode:
        case "required":
            return _calls(lark, calls, asked, calls.lead)
        case "none":
            banned = [] if calls.heads else list(calls.openers)
            return answer or (lark.without([*banned]) if banned else None)
    if answer is not None:
        return f"{answer} | {_calls(lark, calls, asked, calls.lead)}"
    return _free(lark, calls, asked, forbidden) if _is_bound(asked) else None


def _answer(lark: Lark, wanted: OutputFormat) -> str | None:
    match wanted.kind:
        case "json_schema":
            schema = wanted.schema if wanted.schema is not None else {"type": "object"}
            return lark.json(schema if wanted.strict else without_unenforced(schema))
        case "json_object":
            return lark.json({"type": "object"})
    return None


def _is_bound(asked: Asked) -> bool:
    """Something is asked of calls that a model need not make."""
    return (
        not asked.choice.parallel
        or asked.choice.allowed is not None
        or any(tool.strict or tool.syntax != "text" for tool in asked.tools.tools.values())
    )


def _free(lark: Lark, calls: CallFormat, asked: Asked, forbidden: str) -> str:
    """Any text, and calls after it."""
    if calls.heads:
        start = f"[^\\s{_in_class(calls.heads + forbidden)}]"
        text = lark.rule("FREE", f"/[ \\n\\t]*{start}(.|\\n)*/")
        return f"({text} | {_calls(lark, calls, asked, calls.lead)})?"
    opener = calls.openers[0]
    rest = _calls(lark, calls, asked, calls.lead.removeprefix(opener))
    if calls.markup.is_sign(opener):
        return (
            f"({lark.without(calls.openers)} | {lark.without(calls.openers)} {lark.literal(opener)} {rest})?"
        )
    start = f"[^\\s{_in_class(forbidden)}]" if forbidden else ""
    text = lark.rule("FREE", lark.plain(calls.openers, start))
    before = lark.rule("BEFORE", lark.plain(calls.openers[1:], start, empty=True))
    head = lark.rule("head[lazy]", f"{before} {json.dumps(opener)}")
    return f"({text} | {head} {rest})?"


def _calls(lark: Lark, calls: CallFormat, asked: Asked, lead: str) -> str:
    """One call, or more of them where they may be parallel, from behind what of the lead is already there."""
    own = [
        calls.own(lark, name, one)
        for name, tool in asked.tools.tools.items()
        for one in (alternatives(tool) if calls.spreads else [tool])
    ]
    one = lark.rule("call", " | ".join(own))
    more = f" ({lark.literal(calls.again)} {one})*" if asked.choice.parallel else ""
    return f"({lark.literal(lead)} {one}{more} {lark.literal(calls.tail)})"


def _forbidden_start(markup: Markup, form: ReasoningForm | None, asked: Asked) -> str:
    """What an answer of any text must not begin with, or it could be taken for reasoning."""
    if form is None or asked.thinking != "maybe":
        return ""
    return "".join({opening[0] for opening in form.opens if not markup.is_sign(opening)})


def _with_reasoning(lark: Lark, form: ReasoningForm | None, thinking: Thinking, body: str) -> str:
    if form is None or thinking == "no":
        return body
    thought = lark.until(form.closes[0])
    if thinking == "open":
        return f"{thought} {_SPACE} ({body})"
    return f"({lark.literal(form.opens[0])} {thought} {_SPACE})? ({body})"


def _in_class(characters: str) -> str:
    return "".join(f"\\x{{{ord(character):x}}}" for character in characters)
