"""The output grammar of models with a chat template: reasoning, then an answer in its format, or tool calls.
Free text is only what the model format's own parser reads back as such.
"""

import json
from dataclasses import dataclass, replace
from typing import Literal

from engine.request import StructuredOutput
from server.model_formats.model_format import PromptError
from server.model_formats.output_grammar.argument_schemas import alternatives
from server.model_formats.output_grammar.grammar_builder import GrammarBuilder, regex_of
from server.model_formats.output_grammar.relaxed_schemas import forced_grammar, format_schema
from server.model_formats.reasoning import ReasoningFormat
from server.model_formats.special_tokens import Markup
from server.model_formats.tool_calls.tool_call_format import ToolCallFormat
from server.model_formats.tool_names import ToolIndex
from server.protocol.responses.request import TextFormat
from server.protocol.responses.tools import ToolChoice

ReasoningStart = Literal["no", "maybe", "open"]
"""Whether the output may begin with reasoning (`maybe`) or the prompt has already started it (`open`)."""
_SPACE = "/[ \\n]{0,4}/"


@dataclass(kw_only=True)
class OutputGrammar:
    """The constraints of one output, and the expressions of its grammar."""

    markup: Markup
    calls: ToolCallFormat | None
    reasoning: ReasoningFormat | None
    tools: ToolIndex
    """The tools that may be called; with the choice `none`, all tools of the prompt."""
    choice: ToolChoice
    format: TextFormat
    thinking: ReasoningStart

    def __post_init__(self) -> None:
        self._lark = GrammarBuilder(self.markup)

    def build(self) -> StructuredOutput | None:
        """The grammar, or None if nothing is constrained. Raises PromptError for what cannot be enforced.

        Required calls get a chain of grammars, from the most to the least strict schema.
        """
        if self.choice.mode != "required":
            return self._build()
        if not self.tools:
            raise PromptError("A call is required, but there are no tools.", "tool_choice")
        tools = self.tools.tools.values()
        return forced_grammar(tools, lambda level: replace(self, tools=ToolIndex(level))._build())

    def _build(self) -> StructuredOutput | None:
        body = self._body()
        if body is None:
            return None
        called = self._call_within(self.calls) if self.calls else None
        return self._lark.grammar(self._with_reasoning(body, called))

    def _body(self) -> str | None:
        """The expression for the output after the reasoning; None if anything is allowed."""
        calls, schema = self.calls, format_schema(self.format)
        answer = None if schema is None else self._framed(self._lark.json(schema))
        if calls is None or not self.tools:
            return answer
        match self.choice.mode:
            case "required":
                call = self._calls(calls, calls.prefix)
                framed = self._framed("", ends=False)
                return f"({framed}) {call}" if framed else call
            case "none":
                banned = [] if calls.bare_starts else list(calls.openers)
                return answer or (self._framed(self._lark.text_without(banned)) if banned else None)
        if answer is not None:
            return f"{answer} | {self._calls(calls, calls.prefix)}"
        return self._text_or_calls(calls) if self._restricts_calls() else None

    def _framed(self, text: str, *, ends: bool = True) -> str:
        """The answer's expression in its tags, each of which may be absent; without `ends`, before calls."""
        frame = self.reasoning.answer_frame if self.reasoning else None
        if frame is None:
            return text
        begin, end, last = map(self._lark.literal, frame)
        return f"({begin})? {text} ({end}{f' ({last})?' if ends else ''})?"

    def _restricts_calls(self) -> bool:
        return (
            not self.choice.parallel
            or self.choice.allowed is not None
            or any(tool.strict or tool.syntax != "text" for tool in self.tools.tools.values())
        )

    def _text_or_calls(self, calls: ToolCallFormat) -> str:
        lark, forbidden = self._lark, self._forbidden_start()
        if calls.bare_starts:
            start = f"[^\\s{regex_of(calls.bare_starts + forbidden)}]"
            text = lark.rule("FREE", f"/[ \\n\\t]*{start}(.|\\n)*/")
            return f"({text} | {self._calls(calls, calls.prefix)})?"
        opener = calls.openers[0]
        rest = self._calls(calls, calls.prefix.removeprefix(opener))
        if calls.markup.is_sign(opener):
            text = lark.text_without(calls.openers)
            before = self._framed(text, ends=False)
            return f"({self._framed(text)} | {before} {lark.literal(opener)} {rest})?"
        start = f"[^\\s{regex_of(forbidden)}]" if forbidden else ""
        if isinstance(calls.markup.grammar_pieces(opener)[0], int):
            text = lark.rule("FREE", lark.text_body(calls.openers, start, empty=True))
            return f"({text} | {text} {lark.literal(opener)} {rest})?"
        text = lark.rule("FREE", lark.text_body(calls.openers, start))
        before = lark.rule("BEFORE", lark.text_body(calls.openers[1:], start, empty=True))
        head = lark.rule("head[lazy]", f"{before} {json.dumps(opener)}")
        return f"({text} | {head} {rest})?"

    def _calls(self, calls: ToolCallFormat, lead: str) -> str:
        """One call, or several if they may be parallel; `lead` is the rest of the prefix to be written."""
        lark = self._lark
        own = [
            calls.call_grammar(lark, name, alternative)
            for name, tool in self.tools.tools.items()
            for alternative in (alternatives(tool) if calls.per_property else [tool])
        ]
        call = lark.rule("call", " | ".join(own))
        more = f" ({lark.literal(calls.separator)} {call})*" if self.choice.parallel else ""
        return f"({lark.literal(lead)} {call}{more} {lark.literal(calls.suffix)})"

    def _forbidden_start(self) -> str:
        """Characters that free text must not begin with, because it would be parsed as reasoning."""
        if self.reasoning is None or self.thinking != "maybe":
            return ""
        tags, is_sign = self.reasoning.start_tags, self.markup.is_sign
        return "".join(sorted({opening[0] for opening in tags if not is_sign(opening)}))

    def _call_within(self, calls: ToolCallFormat) -> str | None:
        """Reasoning that calls end, by a whole prefix, as openers may be mentioned; None if they cannot."""
        excluded = bool(calls.bare_starts) or not calls.in_reasoning
        if excluded or not self.tools or self.choice.mode == "none":
            return None
        return f"{self._lark.until(calls.prefix)} {self._calls(calls, '')}"

    def _with_reasoning(self, body: str, called: str | None) -> str:
        """`called` is reasoning that ends with calls."""
        lark, reasoning, thinking = self._lark, self.reasoning, self.thinking
        if reasoning is None or thinking == "no":
            return body
        thought = f"{lark.until(reasoning.end_tags[0])} {_SPACE} ({body})"
        if called:
            thought = f"({thought} | {called})"
        if thinking == "open":
            return thought
        return f"{lark.literal(reasoning.start_tags[0])} {thought} | ({body})"
