"""Detects the capabilities of a chat template by rendering small conversations.

Templates differ in their support for system messages, tools, calls with text, parallel calls, and in the form
of arguments; none declares it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.model_formats.chat_template.template import ChatTemplate, Message
from server.model_formats.model_format import PromptError

_SYSTEM, _LATER, _ASKED, _AGAIN, _TEXT = "xsystemx", "xlaterx", "xaskedx", "xagainx", "xtextx"
_FUNCTION, _OTHER, _VALUE, _OUTPUT, _THOUGHT = "xfunctionx", "xotherx", "xvaluex", "xoutputx", "xthoughtx"
_ID = "xcallxid1"
_USER: Message = {"role": "user", "content": _ASKED}

ALL_REASONING: Mapping[str, bool | str] = {
    "clear_thinking": False,
    "drop_thinking": False,
    "keep_all_reasoning": True,
    "keep_past_thinking": True,
    "preserve_thinking": True,
    "preserved_thinking": True,
    "think_render_option": "all",
    "truncate_history_thinking": False,
}
"""Variables by which templates write the reasoning of all turns; each reads its own."""
THINKING: Mapping[str, bool] = {"enable_thinking": True, "thinking": True}
"""Variables that switch reasoning on."""
THOUGHT_FIELDS = ("thinking", "reasoning_content", "reasoning", "thought")
"""Fields of a message for its reasoning; each template reads its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateCapabilities:
    """The parts of a conversation that a template can render, and their form."""

    no_tools: tuple[()] | None
    """What stands for no tools."""
    needs_user: bool
    user_first: bool
    alternates: bool
    """Whether there must be a user's message, one before all others, and one between any two of the
    assistant's that are no calls, and the other way round.
    """
    first_system: bool
    later_systems: bool
    """Further system messages at any position."""
    consecutive_users: bool
    tools: bool
    calls: bool
    outputs: bool
    """Tools, tool calls in the history, tool outputs."""
    arguments_as_object: bool
    """Arguments of calls are an object, else JSON text."""
    blank: str
    """The content of an assistant's message without text and calls."""
    empty_content: str | None
    """The content of a message with calls only."""
    text_with_calls: bool
    parallel_calls: bool
    """Text beside calls, and several calls, in one message."""
    text_after_calls: bool
    """A message between one with calls and their outputs."""
    reasoning_as_part: bool
    """Reasoning is a content part, else a field of the message, which the template may ignore."""
    earlier_reasoning: bool
    all_reasoning: bool
    """Reasoning of turns before the last user message: by default, and with `ALL_REASONING`."""
    content_as_parts: bool
    """Content is always a list of parts, as templates of some models that read pictures take no text."""
    images: bool
    images_in_outputs: bool
    """Pictures in messages of users, and in outputs of tools."""


def probe_template(template: ChatTemplate) -> TemplateCapabilities:
    """Renders a conversation per capability; an error or missing text means no support."""
    probe = _Probe(template)
    system = {"role": "system", "content": _SYSTEM}
    later = {"role": "system", "content": _LATER}
    answer = {"role": "assistant", "content": _TEXT}
    again = {"role": "user", "content": _AGAIN}
    call = next((shape for shape in _CALL_VARIANTS if probe.shows_call(*shape)), None)
    parsed, empty = call or (True, "")
    called = {"role": "assistant", "content": empty, "tool_calls": [_call(_FUNCTION, parsed)]}
    output = {"role": "tool", "content": _OUTPUT, "name": _FUNCTION, "tool_call_id": _ID}
    beside = {**called, "content": _TEXT}
    two = {**called, "tool_calls": [_call(_FUNCTION, parsed), _call(_OTHER, parsed)]}
    thought = [{"type": "thinking", "thinking": _THOUGHT}, {"type": "text", "text": _TEXT}]
    thinking = {"role": "assistant", "content": thought}
    picture = [{"type": "image"}, {"type": "text", "text": _ASKED}]
    pictured = {"role": "user", "content": picture}
    placeholder = template.image_placeholder
    as_part = probe.shows([_USER, thinking, again], _THOUGHT, _TEXT) and "thinking'" in template.source
    earlier = [_USER, {**answer, **dict.fromkeys(THOUGHT_FIELDS, _THOUGHT)}, again]
    tools = probe.shows([_USER], _FUNCTION, tools=True)
    outputs = any(probe.shows([_USER, made, output], _OUTPUT, tools=True) for made in (called, answer))
    looped = [called, output] if call and outputs else [answer]
    in_loop = probe.shows([system, _USER, *looped], _SYSTEM, tools=tools)
    return TemplateCapabilities(
        no_tools=probe.no_tools,
        needs_user=any(probe.needs_user(*alone, tools=tools) for alone in ([system], [answer], looped)),
        user_first=probe.needs_user(answer, _USER, tools=tools),
        alternates=any(
            probe.refuses(messages) for messages in ([_USER, answer, answer, again], [_USER, *looped, again])
        ),
        content_as_parts=probe.as_parts,
        images=placeholder is not None and probe.shows([pictured], placeholder, _ASKED),
        images_in_outputs=placeholder is not None
        and probe.shows([_USER, called, {**output, "content": picture}], placeholder, _ASKED, tools=True),
        first_system=in_loop and probe.shows([system, _USER], _SYSTEM, _ASKED),
        later_systems=probe.shows([system, later, _USER, answer, later, again], _SYSTEM, twice=_LATER),
        consecutive_users=probe.shows([_USER, again], _ASKED, _AGAIN),
        tools=tools,
        calls=call is not None,
        outputs=outputs,
        arguments_as_object=parsed,
        blank=" " if probe.refuses([_USER, {**answer, "content": ""}, again]) else "",
        empty_content=empty,
        text_with_calls=probe.shows([_USER, beside, output], _TEXT, _VALUE, tools=True),
        parallel_calls=probe.shows([_USER, two, output, output], _FUNCTION + '"', _OTHER, tools=True)
        or probe.shows([_USER, two, output, output], _OTHER, tools=True),
        text_after_calls=probe.shows([_USER, called, answer, output], _VALUE, _TEXT, _OUTPUT, tools=tools),
        reasoning_as_part=as_part,
        earlier_reasoning=as_part or probe.shows(earlier, _THOUGHT, _TEXT),
        all_reasoning=as_part
        or probe.shows(earlier, _THOUGHT, _TEXT, variables={**ALL_REASONING, **THINKING}),
    )


_CALL_VARIANTS: tuple[tuple[bool, str | None], ...] = ((True, ""), (True, None), (False, ""), (False, None))


def _call(name: str, parsed: bool) -> dict[str, Any]:
    arguments: Any = {"xkeyx": _VALUE} if parsed else f'{{"xkeyx": "{_VALUE}"}}'
    return {"type": "function", "id": _ID, "function": {"name": name, "arguments": arguments}}


def _after_system(messages: Sequence[Message], user: Message) -> list[Message]:
    systems = [message for message in messages if message["role"] == "system"]
    return [*systems, user, *messages[len(systems) :]]


class _Probe:
    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        forms: tuple[tuple[tuple[()] | None, bool], ...] = ((None, False), (None, True), ((), False))
        for self.no_tools, self.as_parts in forms:
            if self.shows([_USER], _ASKED):
                return
        self.no_tools, self.as_parts = None, False

    def refuses(self, messages: Sequence[Message]) -> bool:
        return self._render(messages, tools=False) is None

    def needs_user(self, *messages: Message, tools: bool) -> bool:
        """Whether the template writes these messages only after one of a user, or takes the first for it."""
        texts = [message["content"] or _VALUE for message in messages]
        before = {"role": "user", "content": ""}
        alike = [{"role": "user", "content": texts[0]}, *messages[1:]]
        return any(
            (not self.shows(messages, *texts, tools=with_tools) or self._equal(messages, alike, with_tools))
            and self.shows(_after_system(messages, before), *texts, tools=with_tools)
            for with_tools in {False, tools}
        )

    def _equal(self, messages: Sequence[Message], others: Sequence[Message], tools: bool) -> bool:
        return self._render(messages, tools) == self._render(others, tools)

    def shows(
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

    def shows_call(self, parsed: bool, empty: str | None) -> bool:
        """Whether the call's argument is rendered, and not as a Python repr, escaped JSON or None."""
        message = {"role": "assistant", "content": empty, "tool_calls": [_call(_FUNCTION, parsed)]}
        output = {"role": "tool", "content": _OUTPUT, "name": _FUNCTION, "tool_call_id": _ID}
        for messages in ([_USER, message, output], [_USER, message]):
            rendered = self._render(messages, tools=True)
            if rendered is not None:
                odd = ("{'xkeyx'", '\\"xkeyx', "None")
                return _VALUE in rendered and not any(text in rendered for text in odd)
        return False

    def _render(
        self, messages: Sequence[Message], tools: bool, variables: Mapping[str, Any] | None = None
    ) -> str | None:
        if self.as_parts:
            messages = [
                {**message, "content": [{"type": "text", "text": message["content"]}]}
                if isinstance(message["content"], str)
                else message
                for message in messages
            ]
        try:
            given = _TOOLS if tools else self.no_tools
            rendered = self._template.render(messages, tools=given, **(variables or {}))
            return self._template.plain(rendered)
        except PromptError:
            return None


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
