"""Reasoning parser: the tags of each model family's reasoning, which comes at most once, before the answer.

White space around the tags belongs to neither side. A model may repeat the start tag that its prompt ended
with. Some call tools before they end it: such calls count if no answer follows, else they are mentioned.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from server.model_formats.special_tokens import Markup
from server.model_formats.text_scanner import SPACE, Reader, Scanner, TextEmitter, stop_at
from server.model_formats.tool_calls.tool_call_format import ToolCallEmitter, ToolCallFormat, read_calls
from server.model_formats.tool_names import ToolIndex


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The tags of a family's reasoning; the first of each kind is the one that a grammar writes."""

    name: str
    start_tags: tuple[str, ...]
    end_tags: tuple[str, ...]
    answer_tags: tuple[str, ...] = ()
    """Tags around the answer, removed from the output."""
    template_marks: tuple[tuple[str, ...], ...] = ()
    """Texts of chat templates with this format, where the start tag is none: all of one of these."""
    answer_frame: tuple[str, str, str] | None = None
    """Tags that a grammar allows around the answer: before it, after it, and behind that without calls."""
    repeated: bool = False
    """Reasoning may come again within the answer."""
    trims_answer: bool = False
    """White space before the answer is dropped, as prompts end within the line that begins it."""

    def with_signs(self, markup: Markup) -> "ReasoningFormat":
        def sign(texts: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(map(markup.sign, texts))

        return replace(
            self,
            start_tags=sign(self.start_tags),
            end_tags=sign(self.end_tags),
            answer_tags=sign(self.answer_tags),
        )


THINK = ReasoningFormat("think", ("<think>",), ("</think>",), template_marks=(("<think>",), ("</think>",)))
REASONING_FORMATS = (
    ReasoningFormat("mistral", ("[THINK]",), ("[/THINK]",)),
    ReasoningFormat("gemma", ("<|channel>thought\n", "<|channel>thought"), ("<channel|>",),
        ("<|channel>", "<channel|>"), template_marks=(("<|channel>",),), repeated=True),
    ReasoningFormat("cohere", ("<|START_THINKING|>",), ("<|END_THINKING|>",),
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")),
    ReasoningFormat("minimax_m3", ("<mm:think>",), ("</mm:think>",), ("</mm:think>",)),
    ReasoningFormat("kimi_k3", ("<|open|>think<|sep|>",),
        ("<|close|>think<|sep|>", "<|open|>response<|sep|>"),
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        template_marks=(("<|open|>", "<|sep|>", "think"),),
        answer_frame=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")),
    ReasoningFormat("muse_glimmer", ("to=self<|message|>", " to=self<|message|>"),
        ("<|eom|><|start|>assistant", "<|eom|>"),
        ("to=user<|message|>", " to=user<|message|>", "<|start|>assistant", "<|eom|>", "<|eot|>"),
        template_marks=(("to=self", "<atem:"),),
        answer_frame=(" to=user<|message|>", "<|eom|><|start|>assistant", ""), repeated=True),
    ReasoningFormat("llm_jp", ("<|channel|>analysis<|message|>",), ("<|end|><|start|>assistant", "<|end|>"),
        ("<|channel|>final<|message|>", "<|channel|>commentary<|message|>", "<|start|>assistant", "<|end|>"),
        template_marks=(("<|start|>assistant", "<|channel|>analysis"),),
        answer_frame=("<|channel|>final<|message|>", "<|end|><|start|>assistant", ""), repeated=True),
    ReasoningFormat("hyperclovax", ("/think\n",), ("<|im_end|>\n<|im_start|>assistant",),
        template_marks=(("assistant/think", "tool/function_call"),), trims_answer=True),
    ReasoningFormat("openpangu", ("[unused16]",), ("[unused17]",)),
    ReasoningFormat("hy_v3", ("<think:opensource>",), ("</think:opensource>",),
        template_marks=(("<think{}>",), ("<think:opensource>",))),
    ReasoningFormat("apertus", ("<|inner_prefix|>",), ("<|inner_suffix|>",)),
    ReasoningFormat("apriel", ("Here are my reasoning steps:",), ("[BEGIN FINAL RESPONSE]",),
        ("[END FINAL RESPONSE]",), template_marks=(("[BEGIN FINAL RESPONSE]",),)),
    ReasoningFormat("solar", ("<|think|>",), ("<|end|>",),
        ("<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"),
        template_marks=(("<|begin|>assistant", "<|think|>"),)),
    ReasoningFormat("longcat", ("<longcat_think>",), ("</longcat_think>",)),
    ReasoningFormat("seed", ("<seed:think>",), ("</seed:think>",)),
    ReasoningFormat("kimi", ("◁think▷",), ("◁/think▷",)),
    ReasoningFormat("granite", ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"), template_marks=(("Here's my thought process",),
        ("Here is my thought process",), ("Here are my thoughts",))),
    ReasoningFormat("granite_tags", ("<think>",), ("</think>",), ("<response>", "</response>"),
        template_marks=(("<think></think>", "<response></response>"), ("<think>", "<response>\\n"))),
    ReasoningFormat("hunyuan", ("<think>",), ("</think>",), ("<answer>", "</answer>"),
        (("<think>", "<answer>"),)),
    THINK,
)  # fmt: skip
"""In order of detection; the first match wins."""


def detect_reasoning_format(template: str) -> ReasoningFormat | None:
    """The format that a chat template writes or instructs; None for models without reasoning."""
    for form in REASONING_FORMATS:
        if shows_any(template, form.template_marks or [(tag,) for tag in form.start_tags]):
            return form
    return None


def shows_any(template: str, marks: Iterable[Iterable[str]]) -> bool:
    """Whether a chat template has all texts of one of the `marks`."""
    return any(all(text in template for text in texts) for texts in marks)


class ThoughtReader:
    def __init__(
        self,
        scanner: Scanner,
        reasoning_format: ReasoningFormat,
        reasoning: TextEmitter,
        calls: ToolCallFormat | None = None,
        tools: ToolIndex = ToolIndex(()),  # noqa: B008 - is never changed
        *,
        opened: bool = False,
        begun: bool = False,
    ) -> None:
        """`calls` is None where the reasoning has none; those of `tools` count. The prompt may have `opened`
        the reasoning, or end in its midst if that has `begun`.
        """
        self.reasoning_format = reasoning_format
        self._opened, self._begun = opened, begun
        self._scanner = scanner
        self._reasoning = reasoning
        self._calls = calls
        self._emitter = ToolCallEmitter(scanner, ToolIndex(tools.tools.values()))
        self._free = tools.accepts_unknown
        """Whether no grammar says where calls are."""
        self._openers = calls.openers if calls else ()
        self._stops = stop_at(*reasoning_format.end_tags, *self._openers)

    def read_first(self, answer: TextEmitter) -> Reader[None]:
        """Reads the reasoning, if any, up to the beginning of the answer."""
        if self._begun:
            yield from self.read(answer, begun=True)
            return
        self._scanner.in_reasoning = self._opened
        yield from self._scanner.copy_run(SPACE, answer.add)
        tag = yield from self._scanner.accept(*self.reasoning_format.start_tags)
        if tag or self._opened:
            yield from self.read(answer)
        elif self.reasoning_format.trims_answer:
            answer.restart()

    def read(self, answer: TextEmitter, *, begun: bool = False) -> Reader[None]:
        """Reads reasoning after its start tag, or in its midst if it has `begun`, up to what ends it."""
        scanner = self._scanner
        answer.restart()
        if not begun:
            self._reasoning.restart()
        scanner.in_reasoning = True
        while True:
            stop = yield from scanner.copy_until(self._stops, self._reasoning.add)
            if self._calls and stop in self._openers:
                stop = yield from self._read_calls(self._calls, stop)
            if stop not in self._openers:
                break
        scanner.in_reasoning = not stop

    def _read_calls(self, calls: ToolCallFormat, opener: str) -> Reader[str]:
        """Reads calls within the reasoning; returns the tag that ended it, or the opener if there is no call.

        Their deltas are withheld until it is known whether an answer follows: then they were only mentioned.
        So was a call that was begun and whose value has the tag: cut off, or before another call.
        """
        scanner, within, emitter = self._scanner, self._reasoning.another(), self._emitter
        tags, openers = stop_at(*self.reasoning_format.end_tags), stop_at(*self._openers)
        scanner.hold(len(opener))
        stop, call_end = opener, None
        while stop in calls.openers:
            piece, before = scanner.pieces, emitter.count
            yield from read_calls(calls, emitter, within, stop)
            called, cut = emitter.count > before, emitter.is_open
            if called and self._free and (tag := scanner.find_held(tags, openers, piece, cut=cut)):
                self._reasoning.add(calls.markup.restore(scanner.put_back(tag)))
                yield from scanner.skip_space()
                return tag[0]
            if called:
                call_end = scanner.offset
            elif call_end is None:
                break
            stop = yield from scanner.copy_until(self._stops, within.add)
        end = scanner.offset - (len(stop) if stop not in calls.openers else 0)
        if stop not in calls.openers:
            yield from scanner.skip_space()
        if call_end is None or (stop and (yield from scanner.peek())):
            self._reasoning.add(calls.markup.restore(scanner.recall(end)))
        else:
            scanner.release(call_end)
        return stop
