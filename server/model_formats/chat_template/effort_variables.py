"""The template variables for `reasoning.effort`, which each family names and words in its own way: found by
rendering a question with every effort.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from server.model_formats.chat_template.template import ChatTemplate, Message
from server.model_formats.chat_template.template_probe import THINKING
from server.model_formats.model_format import PromptError
from server.protocol.responses.request import Effort

EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)
"""In ascending order."""
_LEVELS: Sequence[str] = (
    *("reasoning_effort", "reasoning_strength", "thinking_effort", "thinking_level", "thinking_mode"),
)
"""Variables whose values are words: efforts, or one of `_ON` and `_OFF`."""
_BUDGET: Final = "thinking_budget"
"""A variable whose value is a number of tokens; without it there is no limit."""
_BUDGETS: Final[Mapping[Effort, int]] = {"none": 0, "minimal": 0, "low": 1024, "medium": 4096}
_ON, _OFF, _UNKNOWN = ("enabled",), ("no_think", "disabled"), "xeffortx"
_OF_ONE_END: Final[Mapping[Effort, tuple[Effort, ...]]] = {
    "none": ("minimal", "low"),
    "minimal": ("low", "none"),
    "xhigh": ("max", "high"),
    "max": ("xhigh", "high"),
}
"""Nearest efforts of those that a template without an error for unknown words may not know."""


def thinks(effort: Effort | None) -> bool:
    return effort not in ("none", "minimal")


class EffortVariables:
    """The variables for each effort, none of which the template refuses."""

    def __init__(self, template: ChatTemplate, question: Message, **inputs: Any) -> None:
        """`question` is a user's message in the form that the template takes; `inputs` as for `render`."""
        self._template, self._question, self._inputs = template, question, inputs
        self._rendered: dict[tuple[tuple[str, Any], ...], str | None] = {}
        known = template.variables
        self._switches = [name for name in THINKING if name in known]
        levels = {name: self._words(name) for name in _LEVELS if name in known}
        self.variables: dict[Effort, dict[str, Any]] = {}
        """The template's variables for each effort, or for the nearest effort that the template accepts."""
        self.prompts: dict[Effort, str] = {}
        """The question's prompt for each effort; empty if the template refuses it."""
        for effort in EFFORTS:
            switches: dict[str, Any] = dict.fromkeys(self._switches, thinks(effort))
            words: dict[str, Any] = {name: of[effort] for name, of in levels.items() if effort in of}
            if _BUDGET in known and effort in _BUDGETS:
                words[_BUDGET] = _BUDGETS[effort]
            tried: list[dict[str, Any]] = [switches | words, switches, {}]
            self.variables[effort] = next((each for each in tried if self._render(each) is not None), {})
            self.prompts[effort] = self._render(self.variables[effort]) or ""
        prompts = dict.fromkeys(self.prompts.values())
        alike = [[effort for effort in EFFORTS if self.prompts[effort] == prompt] for prompt in prompts]
        self.groups: list[list[Effort]] = alike if len(alike) > 1 else []
        """Efforts that lead to the same prompt, together; empty if effort changes nothing."""

    def _render(self, variables: Mapping[str, Any]) -> str | None:
        key = tuple(sorted(variables.items()))
        if key not in self._rendered:
            try:
                self._rendered[key] = self._template.render([self._question], **self._inputs, **variables)
            except PromptError:
                self._rendered[key] = None
        return self._rendered[key]

    def _words(self, name: str) -> dict[Effort, str]:
        """The value of the variable `name` for each effort; none for efforts that need none."""
        switches = dict.fromkeys(self._switches, True)
        unknown = self._render({**switches, name: _UNKNOWN})
        known = set(self._known_words(name, switches, unknown))
        written = unknown is not None and _UNKNOWN in unknown
        words: dict[Effort, str] = {}
        for effort in EFFORTS:
            word = _nearest(effort, known, free=unknown is not None)
            if word is not None or written:
                words[effort] = word or effort
        return words

    def _known_words(self, name: str, switches: Mapping[str, bool], unknown: str | None) -> Iterator[str]:
        """The words for which the prompt is another than for an unknown word."""
        for word in (*EFFORTS, *_ON, *_OFF):
            rendered = self._render({**switches, name: word})
            if rendered is not None and (unknown is None or rendered != unknown.replace(_UNKNOWN, word)):
                yield word


def _nearest(effort: Effort, known: set[str], *, free: bool) -> str | None:
    """The known word for an effort; of two that are equally near the higher one. `free` templates have a
    default for all other words, so that only the ends of the scale have a substitute.
    """
    if effort in known:
        return effort
    own = _ON if thinks(effort) else _OFF
    if word := next((word for word in own if word in known), None):
        return word
    if free:
        return next((other for other in _OF_ONE_END.get(effort, ()) if other in known), None)
    at = EFFORTS.index(effort)
    others = [other for other in reversed(EFFORTS) if other in known]
    return min(others, key=lambda other: abs(EFFORTS.index(other) - at), default=None)
