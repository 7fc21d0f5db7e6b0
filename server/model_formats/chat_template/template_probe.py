"""Detects the capabilities of a chat template by rendering small conversations, and its variables for
`reasoning.effort`, which each family names and words in its own way.

Templates differ in their support for system messages, tools, calls with text, parallel calls, and in the form
of arguments; none declares it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from server.model_formats.chat_template.template import ChatTemplate, Message
from server.model_formats.model_format import PromptError
from server.protocol.responses.request import Effort

_SYSTEM, _LATER, _ASKED, _REPEATED, _TEXT = "xsystemx", "xlaterx", "xaskedx", "xagainx", "xtextx"
_FUNCTION, _OTHER, _VALUE, _OUTPUT, _THOUGHT = "xfunctionx", "xotherx", "xvaluex", "xoutputx", "xthoughtx"
_ID = "xcallxid1"
_USER: Message = {"role": "user", "content": _ASKED}
_AGAIN: Message = {"role": "user", "content": _REPEATED}
_ANSWER: Message = {"role": "assistant", "content": _TEXT}
_RESULT: Message = {"role": "tool", "content": _OUTPUT, "name": _FUNCTION, "tool_call_id": _ID}

ALL_REASONING: Mapping[str, bool | str] = {
    "clear_thinking": False,
    "drop_history_thinking": False,
    "drop_thinking": False,
    "keep_all_reasoning": True,
    "keep_past_thinking": True,
    "preserve_thinking": True,
    "preserved_thinking": True,
    "think_render_option": "all",
    "truncate_history_thinking": False,
}
"""Variables by which templates write the reasoning of all turns; each reads its own."""
THINKING: Mapping[str, bool] = dict.fromkeys(
    ("enable_thinking", "force_reasoning", "reasoning", "think", "thinking"), True
)
THOUGHT_FIELDS = ("thinking", "reasoning_content", "reasoning", "thought")
"""Fields of a message for its reasoning; each template reads its own."""


class TemplateCapabilities:
    """The features that a template renders, and their forms; an error or missing text means no support."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.no_tools: tuple[()] | None
        """The value of `tools` that stands for none."""
        self.content_as_parts: bool
        """Content is always a list of parts, as templates of some models that read pictures take no text."""
        forms: tuple[tuple[tuple[()] | None, bool], ...] = ((None, False), (None, True), ((), False))
        for self.no_tools, self.content_as_parts in forms:
            if self._shows([_USER], _ASKED):
                break
        else:
            self.no_tools, self.content_as_parts = None, False
        call = next((shape for shape in _CALL_VARIANTS if self._shows_call(*shape)), None)
        self.calls = call is not None
        self.arguments_as_object, self.empty_content = call or (True, "")
        """Arguments of calls are an object, else JSON text; the content of a message with calls only."""
        self._probe_calls()
        self._probe_messages()
        self._probe_reasoning()

    def _probe_calls(self) -> None:
        called, output = self._called(_FUNCTION), _RESULT
        self.tools = self._shows([_USER], _FUNCTION, tools=True)
        self.outputs = any(
            self._shows([_USER, answer, output], _OUTPUT, tools=True) for answer in (called, _ANSWER)
        )
        """Tools, tool calls in the history, tool outputs."""
        beside = {**called, "content": _TEXT}
        self.text_with_calls = self._shows([_USER, beside, output], _TEXT, _VALUE, tools=True)
        two = [_USER, self._called(_FUNCTION, _OTHER), output, output]
        self.parallel_calls = self._shows(two, _OTHER, tools=True)
        """Text beside calls, and several calls, in one message."""
        after = [_USER, called, _ANSWER, output]
        self.text_after_calls = self._shows(after, _VALUE, _TEXT, _OUTPUT, tools=self.tools)
        """A message between one with calls and their outputs."""
        placeholder = self._template.image_placeholder or ""
        picture = [{"type": "image"}, {"type": "text", "text": _ASKED}]
        question, seen = {**_USER, "content": picture}, {**output, "content": picture}
        self.images = bool(placeholder) and self._shows([question], placeholder, _ASKED)
        shown = [_USER, called, seen]
        self.images_in_outputs = bool(placeholder) and self._shows(shown, placeholder, _ASKED, tools=True)
        """Pictures in messages of users, and in outputs of tools."""

    def _probe_messages(self) -> None:
        system, later = ({"role": "system", "content": text} for text in (_SYSTEM, _LATER))
        looped = [self._called(_FUNCTION), _RESULT] if self.calls and self.outputs else [_ANSWER]
        self.needs_user = any(self._needs_user(*alone) for alone in ([system], [_ANSWER], looped))
        self.user_first = self._needs_user(_ANSWER, _USER)
        same = ([_USER, _ANSWER, _ANSWER, _AGAIN], [_USER, *looped, _AGAIN])
        self.alternates = any(self._render(messages, tools=False) is None for messages in same)
        """Whether there must be a user's message, one before all others, and one between any two of the
        assistant's that are no calls, and the other way round.
        """
        in_loop = self._shows([system, _USER, *looped], _SYSTEM, tools=self.tools)
        self.first_system = in_loop and self._shows([system, _USER], _SYSTEM, _ASKED)
        both = [system, later, _USER, _ANSWER, later, _AGAIN]
        self.later_systems = self._shows(both, _SYSTEM, twice=_LATER)
        """Further system messages at any position."""
        self.consecutive_users = self._shows([_USER, _AGAIN], _ASKED, _REPEATED)
        silent = [_USER, {**_ANSWER, "content": ""}, _AGAIN]
        self.blank = " " if self._render(silent, tools=False) is None else ""
        """The content of an assistant's message without text and calls."""

    def _probe_reasoning(self) -> None:
        thought = [{"type": "thinking", "thinking": _THOUGHT}, {"type": "text", "text": _TEXT}]
        parts = [_USER, {"role": "assistant", "content": thought}, _AGAIN]
        in_parts = self._shows(parts, _THOUGHT, _TEXT) and "thinking'" in self._template.source
        self.reasoning_as_part = in_parts
        """Reasoning is a content part, else a field of the message, which the template may ignore."""
        earlier = [_USER, {**_ANSWER, **dict.fromkeys(THOUGHT_FIELDS, _THOUGHT)}, _AGAIN]
        self.earlier_reasoning = in_parts or self._shows(earlier, _THOUGHT, _TEXT)
        switches = {**ALL_REASONING, **THINKING}
        self.all_reasoning = in_parts or self._shows(earlier, _THOUGHT, _TEXT, variables=switches)
        """Reasoning of turns before the last user message: by default, and with `ALL_REASONING`."""

    def _called(self, *names: str) -> Message:
        calls = [_call(name, self.arguments_as_object) for name in names]
        return {"role": "assistant", "content": self.empty_content, "tool_calls": calls}

    def _needs_user(self, *messages: Message) -> bool:
        """Whether the template writes these messages only after one of a user, or takes the first for it."""
        texts = [message["content"] or _VALUE for message in messages]
        systems = [message for message in messages if message["role"] == "system"]
        after = [*systems, {"role": "user", "content": ""}, *messages[len(systems) :]]
        alike = [{"role": "user", "content": texts[0]}, *messages[1:]]
        for tools in {False, self.tools}:
            written = self._shows(messages, *texts, tools=tools)
            is_taken_for_user = written and self._render(messages, tools) == self._render(alike, tools)
            if (is_taken_for_user or not written) and self._shows(after, *texts, tools=tools):
                return True
        return False

    def _shows(
        self,
        messages: Sequence[Message],
        *texts: str,
        tools: bool = False,
        twice: str | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> bool:
        rendered = self._render(messages, tools, variables)
        if rendered is None or (twice and rendered.count(twice) != 2):
            return False
        return all(text in rendered for text in texts)

    def _shows_call(self, parsed: bool, empty: str | None) -> bool:
        """Whether the call's argument is rendered, and not as a Python repr, escaped JSON or None."""
        message = {"role": "assistant", "content": empty, "tool_calls": [_call(_FUNCTION, parsed)]}
        for messages in ([_USER, message, _RESULT], [_USER, message]):
            rendered = self._render(messages, tools=True)
            if rendered is not None:
                odd = ("{'xkeyx'", '\\"xkeyx', "None")
                return _VALUE in rendered and not any(text in rendered for text in odd)
        return False

    def _render(
        self, messages: Sequence[Message], tools: bool, variables: Mapping[str, Any] | None = None
    ) -> str | None:
        if self.content_as_parts:
            messages = [
                {**message, "content": [{"type": "text", "text": message["content"]}]}
                if isinstance(message["content"], str)
                else message
                for message in messages
            ]
        try:
            schemas = _TOOLS if tools else self.no_tools
            return self._template.plain(self._template.render(messages, tools=schemas, **(variables or {})))
        except PromptError:
            return None


_CALL_VARIANTS: tuple[tuple[bool, str | None], ...] = ((True, ""), (True, None), (False, ""), (False, None))


def _call(name: str, parsed: bool) -> dict[str, Any]:
    arguments: Any = {"xkeyx": _VALUE} if parsed else f'{{"xkeyx": "{_VALUE}"}}'
    return {"type": "function", "id": _ID, "function": {"name": name, "arguments": arguments}}


_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _FUNCTION,
            "description": "It does.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "string", "description": "It is."}},
                "required": ["a"],
            },
        },
    }
]

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
