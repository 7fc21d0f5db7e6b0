"""Reasoning parser: the tags of each model family's reasoning, which comes at most once, before the answer.

White space around the tags belongs to neither side. A model may repeat the start tag that its prompt ended
with. A tool call's opener, if it is a special token, also ends the reasoning.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from server.model_formats.special_tokens import Markup
from server.model_formats.text_scanner import SPACE, Reader, Scanner, StopTexts, TextEmitter


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The tags of a family's reasoning; the first of each kind is the one that a grammar writes."""

    name: str
    start_tags: tuple[str, ...]
    end_tags: tuple[str, ...]
    answer_tags: tuple[str, ...] = ()
    """Tags around the answer, removed from the output."""

    def with_signs(self, markup: Markup) -> "ReasoningFormat":
        def sign(texts: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(map(markup.sign, texts))

        return ReasoningFormat(self.name, sign(self.start_tags), sign(self.end_tags), sign(self.answer_tags))


THINK = ReasoningFormat("think", ("<think>",), ("</think>",))
REASONING_FORMATS = (
    ReasoningFormat("mistral", ("[THINK]",), ("[/THINK]",)),
    ReasoningFormat("gemma", ("<|channel>thought\n",), ("<channel|>",)),
    ReasoningFormat(
        "cohere", ("<|START_THINKING|>",), ("<|END_THINKING|>",), ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    ),
    ReasoningFormat("seed", ("<seed:think>",), ("</seed:think>",)),
    ReasoningFormat("kimi", ("◁think▷",), ("◁/think▷",)),
    ReasoningFormat(
        "granite",
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    ReasoningFormat("granite_tags", ("<think>",), ("</think>",), ("<response>", "</response>")),
    THINK,
)
"""In order of detection; the first match wins."""

_NEEDS_ALL = {"granite_tags"}
_TEMPLATE_MARKS = {
    "granite": ("Here's my thought process", "Here is my thought process", "Here are my thoughts"),
    "granite_tags": ("<think></think>", "<response></response>"),
    "gemma": ("<|channel>",),
    "think": ("<think>", "</think>"),
}
"""Texts in a chat template that identify a format, where the start tag itself does not."""


def detect_reasoning_format(template: str) -> ReasoningFormat | None:
    """The format that a chat template writes or instructs; None for models without reasoning."""
    for reasoning_format in REASONING_FORMATS:
        shown = [
            sign in template
            for sign in _TEMPLATE_MARKS.get(reasoning_format.name, reasoning_format.start_tags)
        ]
        if all(shown) if reasoning_format.name in _NEEDS_ALL else any(shown):
            return reasoning_format
    return None


def read_reasoning(
    scanner: Scanner,
    reasoning_format: ReasoningFormat,
    reasoning: TextEmitter,
    answer: TextEmitter,
    *,
    opened: bool,
    also_ends: Iterable[str] = (),
) -> Reader[None]:
    """Reads the reasoning, if any, up to the beginning of the answer."""
    scanner.in_reasoning = opened
    yield from scanner.copy_run(SPACE, answer.add)
    tag = yield from scanner.accept(*reasoning_format.start_tags)
    if not tag and not opened:
        return
    answer.restart()
    scanner.in_reasoning = True
    also_ends = tuple(also_ends)
    end_tag = yield from scanner.copy_until(
        StopTexts([*reasoning_format.end_tags, *also_ends]), reasoning.add
    )
    if end_tag in also_ends:
        scanner.unread(len(end_tag))
    scanner.in_reasoning = not end_tag
