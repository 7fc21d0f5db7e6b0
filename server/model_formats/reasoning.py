"""How families mark their reasoning, and how it is read: at most once, before the answer.

White space around the marks belongs to neither side. A model may repeat the mark with which its prompt
opened the reasoning. What opens a call, where it is a special token, also ends the reasoning.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from server.model_formats.text_stream.scanner import SPACE, Reader, Scanner, Stops
from server.model_formats.text_stream.special_tokens import Markup
from server.model_formats.text_stream.surrounding_whitespace import Prose


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """What stands before and after the reasoning."""

    name: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    """Marks around the answer, which are never shown."""

    def signed(self, markup: Markup) -> "ReasoningForm":
        def sign(texts: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(map(markup.sign, texts))

        return ReasoningForm(self.name, sign(self.opens), sign(self.closes), sign(self.dropped))


THINK = ReasoningForm("think", ("<think>",), ("</think>",))
FORMS = (
    ReasoningForm("mistral", ("[THINK]",), ("[/THINK]",)),
    ReasoningForm("gemma", ("<|channel>thought\n",), ("<channel|>",)),
    ReasoningForm(
        "cohere", ("<|START_THINKING|>",), ("<|END_THINKING|>",), ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    ),
    ReasoningForm("seed", ("<seed:think>",), ("</seed:think>",)),
    ReasoningForm("kimi", ("◁think▷",), ("◁/think▷",)),
    ReasoningForm(
        "granite",
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    ReasoningForm("granite_tags", ("<think>",), ("</think>",), ("<response>", "</response>")),
    THINK,
)
"""In the order in which they are looked for."""

_NEEDS_ALL = {"granite_tags"}
_SIGNS_OF = {
    "granite": ("Here's my thought process", "Here is my thought process", "Here are my thoughts"),
    "granite_tags": ("<think></think>", "<response></response>"),
    "gemma": ("<|channel>",),
    "think": ("<think>", "</think>"),
}
"""What of a template shows a form, where it is not the opening itself."""


def find_form(template: str) -> ReasoningForm | None:
    """The form that a chat template writes or asks for; None where it knows no reasoning."""
    for form in FORMS:
        shown = [sign in template for sign in _SIGNS_OF.get(form.name, form.opens)]
        if all(shown) if form.name in _NEEDS_ALL else any(shown):
            return form
    return None


def read_reasoning(
    scanner: Scanner,
    form: ReasoningForm,
    reasoning: Prose,
    answer: Prose,
    *,
    opened: bool,
    also_ends: Iterable[str] = (),
) -> Reader[None]:
    """Reads the reasoning, if there is any, up to where the answer begins."""
    scanner.in_reasoning = opened
    yield from scanner.copy_run(SPACE, answer.add)
    tag = yield from scanner.accept(*form.opens)
    if not tag and not opened:
        return
    answer.restart()
    scanner.in_reasoning = True
    also_ends = tuple(also_ends)
    found = yield from scanner.copy_until(Stops([*form.closes, *also_ends]), reasoning.add)
    if found in also_ends:
        scanner.put_back(len(found))
    scanner.in_reasoning = not found
