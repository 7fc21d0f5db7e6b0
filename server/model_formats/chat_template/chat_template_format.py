"""The model format of every model with a Hugging Face chat template, whatever its family."""

import copy
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, Literal, Self

from engine.request import PromptImage
from server.model_formats.chat_template.chat_grammar import OutputGrammar, ReasoningStart
from server.model_formats.chat_template.chat_output_parser import ChatParser
from server.model_formats.chat_template.template import PLAIN_STOPS, ChatTemplate
from server.model_formats.chat_template.template_messages import describe_tools, thought_of, write_messages
from server.model_formats.chat_template.template_probe import (
    ALL_REASONING,
    EffortVariables,
    TemplateCapabilities,
    thinks,
)
from server.model_formats.model_format import Prompt, PromptConversation, PromptError, ReasoningMarks
from server.model_formats.reasoning import detect_reasoning_format
from server.model_formats.special_tokens import markup_of
from server.model_formats.tool_calls.format_table import TOOL_CALL_FORMATS
from server.model_formats.tool_calls.tool_call_format import ToolCallFormat
from server.model_formats.tool_names import ToolIndex, function_schema, with_descriptions
from server.protocol.responses.items import Message, PreparedImage, Reasoning, plain_text
from server.protocol.responses.request import Effort

log = logging.getLogger("holdfast.model_formats")

CHAT_TEMPLATE_KWARGS = frozenset(
    {
        *("add_vision_id", "clear_thinking", "controls", "custom_instructions", "date_string", "verbosity"),
        *("enable_thinking", "keep_all_reasoning", "preserve_thinking", "reasoning_effort", "thinking"),
        *("thinking_budget", "today_date", "tools_in_user_message", "truncate_history_thinking"),
    }
)
"""Variables that clients may set in `chat_template_kwargs` for every template, beside those that it reads."""
_RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "functions", "datetime"),
        *("add_generation_prompt", "continue_final_message"),
    }
)
"""Variables that the server sets, beside the special tokens."""
_SOME_DAY = datetime(2026, 1, 1, tzinfo=UTC)
"""The date of prompts that are compared with one another."""
_MAX_KWARG = 4096
_NO_TOOLS, _ANY_TOOL = ToolIndex(()), ToolIndex((), accepts_unknown=True)
_TEMPLATE_CACHE_SIZE = 8
"""Clients' templates to cache, as each is compiled and probed."""


class ChatTemplateFormat:
    """Implements `model_format.ModelFormat` for one model folder. Thread-safe."""

    def __init__(
        self,
        template: ChatTemplate,
        stop_ids: frozenset[int],
        call_format: ToolCallFormat | None,
        image_token_id: int | None = None,
        grammar_token_ids: Collection[int] = (),
    ) -> None:
        """Without `call_format` tools are refused; `grammar_token_ids` are those of `ModelInfo`."""
        self._image_token_id = image_token_id
        self._stop_ids = stop_ids
        self._markup = markup_of(template.tokenizer, grammar_token_ids)
        self._shown_calls = self._calls = call_format.with_signs(self._markup) if call_format else None
        form = detect_reasoning_format(template.source)
        self._reasoning_format = form.with_signs(self._markup) if form else None
        self._openings = tuple(tag.rstrip() for tag in form.start_tags) if form else ()
        ends = form.end_tags if form else ()
        self._closings = tuple(tag.rstrip() for tag in ends if not tag.endswith("assistant"))
        """Texts at the end of a prompt that has begun the reasoning, and of one that has ended it. Those that
        begin the assistant's next message, too, say nothing: every prompt ends so.
        """
        self.reasoning_name = form.name if form else None
        self.reasoning_tags = (self._openings[0], ends[0].rstrip()) if form else ()
        """The first tags around the reasoning; none for models that do not reason."""
        shown = (f"{tag}{line}" for tag in self._openings for line in ("\n", "\\n"))
        self._after_opening = "\n" if any(text in template.source for text in shown) else ""
        self._write_with(template)
        self._with_template = lru_cache(_TEMPLATE_CACHE_SIZE)(self._replaced)

    def _write_with(self, template: ChatTemplate) -> None:
        self._template = template
        self._capabilities = TemplateCapabilities(template)
        self.describes_tools = not self._capabilities.tools
        """Whether tools are described in the system message, as the template writes none."""
        known = self._shown_calls
        if self.describes_tools and (known is None or known.render_calls([]) is None):
            self._calls = TOOL_CALL_FORMATS["hermes"].with_signs(self._markup)
        content: Any = [{"type": "text", "text": "Hi"}] if self._capabilities.content_as_parts else "Hi"
        question = {"role": "user", "content": content}
        self._effort = EffortVariables(
            template, question, tools=self._capabilities.no_tools, strftime_now=_SOME_DAY.strftime
        )
        self.effort_values = [" = ".join(group) for group in self._effort.groups]
        """Efforts with another prompt each, those of the same as `a = b`; empty if effort changes nothing."""
        self._says_no_effort = not self.effort_values
        known_variables = template.variables - _RESERVED
        self.template_inputs = sorted(name for name in known_variables if not name.endswith("_token"))
        """The variables of the template that clients may set."""
        self.reasoning_context: Literal["current_turn", "all_turns"] = (
            "all_turns" if self._capabilities.earlier_reasoning else "current_turn"
        )
        self._opens_with_switches = self._opened(self._effort.prompts["high"])

    def _replaced(self, template: str) -> Self:
        """A copy that renders prompts with another template; the output parser stays the model's own."""
        other = copy.copy(self)
        other._write_with(self._template.replaced(template))
        return other

    @property
    def is_plain(self) -> bool:
        """Whether messages are written as plain text, as a base model's folder has no template."""
        return self._template.is_plain

    def write(self, conversation: PromptConversation) -> Prompt:
        own = conversation.chat_template
        return (self if own is None else self._with_template(own))._write(conversation)

    def _write(self, conversation: PromptConversation) -> Prompt:
        tool_index = self._tools(conversation)
        choice = conversation.tool_choice
        callable_ = _NO_TOOLS if choice.mode == "none" else tool_index.only(choice.allowed)
        conversation, thought = self._unfinished_thought(self._with_reasoning_of(conversation))
        schemas = [function_schema(name, tool) for name, tool in tool_index.tools.items() if tool.listed]
        if self.describes_tools and schemas and self._calls is not None:
            texts = [conversation.instructions or "", describe_tools(schemas, self._calls)]
            conversation = replace(conversation, instructions="\n\n".join(filter(None, texts)))
            schemas = []
        messages, images = write_messages(conversation, self._template, self._capabilities, self._calls)
        continues = conversation.continue_final_message
        if continues and not _can_continue(messages):
            raise PromptError("Only an assistant's message, with text and last, can be continued.")
        rendered = self._render(
            messages,
            conversation,
            tools=schemas or self._capabilities.no_tools,
            documents=self._documents(conversation),
            generates=conversation.add_generation_prompt,
            continues=continues,
        )
        thinking = "no" if continues else self._thinking(rendered, conversation.reasoning_effort)
        if thought is not None:
            rendered, thinking = self._opened_with(rendered, thought), "open"
        grammar = None
        if conversation.tools or choice.mode == "required" or conversation.format.type != "text":
            tools = tool_index if choice.mode == "none" else callable_
            grammar = OutputGrammar(
                markup=self._markup,
                calls=self._calls,
                reasoning=self._reasoning_format,
                tools=tools,
                choice=choice,
                format=conversation.format,
                thinking=thinking,
            ).build()
        if choice.mode == "required" and self._calls and self._calls.begins_opened:
            rendered = rendered.removesuffix(self._markup.restore(self._calls.openers[0]))
        rendered = self._template.insert_images(rendered, [image.text for image in images])
        token_ids = self._template.encode(rendered, conversation.max_tokens)
        if conversation.add_special_tokens or self.is_plain:
            token_ids = self._template.surround(token_ids)
        return Prompt(
            token_ids=token_ids,
            images=self._images(token_ids, images),
            stop_ids=self._stop_ids,
            stop_strings=PLAIN_STOPS if self.is_plain else (),
            opens_reasoning=thinking == "open",
            continues_reasoning=bool(thought),
            grammar=grammar,
            tools=tuple(callable_.tools.values()),
            must_call=choice.mode == "required",
        )

    def _images(self, token_ids: Sequence[int], images: Sequence[PreparedImage]) -> tuple[PromptImage, ...]:
        """The pictures with their positions in the prompt. Raises PromptError."""
        if not images:
            return ()
        indexes = [index for index, token in enumerate(token_ids) if token == self._image_token_id]
        if len(indexes) != sum(image.tokens for image in images):
            raise PromptError("The model's chat template does not write its pictures in their tokens.")
        placed = []
        for image in images:
            own, indexes = indexes[: image.tokens], indexes[image.tokens :]
            placed.append(
                PromptImage(data=image.data, digest=image.digest, start=own[0], length=own[-1] + 1 - own[0])
            )
        return tuple(placed)

    def encode(self, text: str, *, special: bool, limit: int | None = None) -> tuple[int, ...]:
        (ids,) = self._template.tokens.encode([text], limit, special=special)
        return tuple(ids)

    def spell(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones spelled out."""
        text: str = self._template.tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    @property
    def call_format(self) -> str | None:
        """The name of the format of tool calls; None if it is not known, and tools are refused."""
        return self._calls.name if self._calls else None

    def refuse_tools(self) -> None:
        """Tools are refused from now on, as calls would be read wrongly."""
        self._calls = None

    def without_reasoning_marks(self, text: str) -> str:
        """The text without marks of reasoning at its end."""
        marks = [mark for mark in (*self._openings, *self._closings) if mark]
        while mark := next((mark for mark in marks if text.rstrip().endswith(mark)), None):
            text = text.rstrip().removesuffix(mark)
        return text

    @property
    def max_chars_per_token(self) -> int | None:
        return self._template.tokens.max_chars_per_token

    @cached_property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """The reasoning tags as tokens; None unless the end tag is one token, whose encoding is unique."""
        if not self.reasoning_tags:
            return None
        texts = [tag.strip() for tag in self.reasoning_tags]
        start, end = (tuple(ids) for ids in self._template.tokens.encode(texts, None, special=False))
        return ReasoningMarks(start, end) if len(end) == 1 and start else None

    def _with_reasoning_of(self, conversation: PromptConversation) -> PromptConversation:
        """The conversation without the reasoning that its context leaves out. Raises PromptError."""
        context = conversation.reasoning_context
        if context == "all_turns" and not self._capabilities.all_reasoning:
            raise PromptError(
                "The model's chat template leaves out the reasoning of earlier turns.", "reasoning.context"
            )
        if context != "current_turn":
            return conversation
        items = conversation.items
        starts = [at for at, item in enumerate(items) if isinstance(item, Message) and item.role == "user"]
        start = starts[-1] if starts else 0
        earlier = [item for item in items[:start] if not isinstance(item, Reasoning)]
        return replace(conversation, items=[*earlier, *items[start:]])

    def parser(self, prompt: Prompt) -> ChatParser:
        tools = _NO_TOOLS if prompt.grammar is not None else _ANY_TOOL
        if prompt.tools:
            tools = ToolIndex(prompt.tools, accepts_unknown=prompt.grammar is None)
        return ChatParser(
            self._template.tokenizer,
            self._markup,
            self._reasoning_format,
            self._calls if prompt.tools or (self._calls and self._calls.begins_opened) else None,
            tools,
            self._stop_ids,
            opens_reasoning=prompt.opens_reasoning,
            continues_reasoning=prompt.continues_reasoning,
            must_call=prompt.must_call,
        )

    def _tools(self, conversation: PromptConversation) -> ToolIndex:
        tools = ToolIndex(conversation.tools)
        if tools and self._calls is None:
            raise PromptError(
                "It is not known how this model writes calls; see the setting tool_parser.", "tools"
            )
        return tools

    def _documents(self, conversation: PromptConversation) -> Sequence[Mapping[str, Any]] | None:
        if conversation.documents and "documents" not in self._template.variables:
            raise PromptError("The model's chat template cannot write documents.", "documents")
        return conversation.documents or None

    def _render(
        self, messages: Sequence[dict[str, Any]], conversation: PromptConversation, **inputs: Any
    ) -> str:
        kwargs = self._checked_kwargs(conversation.chat_template_kwargs)
        if conversation.created_at is not None:
            inputs["strftime_now"] = conversation.created_at.strftime
        variables = self._own_variables(conversation)
        try:
            return self._template.render(messages, **inputs, **variables, **kwargs)
        except PromptError as error:
            if tools := inputs.get("tools"):
                inputs["tools"] = [with_descriptions(tool) for tool in tools]
                with suppress(PromptError):
                    return self._template.render(messages, **inputs, **variables, **kwargs)
            if variables:
                with suppress(PromptError):
                    return self._template.render(messages, **inputs, **kwargs)
            if kwargs:
                self._template.render(messages, **inputs)
                raise PromptError(str(error), "chat_template_kwargs") from error
            raise

    def _own_variables(self, conversation: PromptConversation) -> dict[str, Any]:
        """The template variables for reasoning and verbosity, without those that the client sets."""
        known, effort = self._template.variables, conversation.reasoning_effort
        variables: dict[str, Any] = {}
        if effort is not None:
            variables = dict(self._effort.variables[effort])
            if self._says_no_effort:
                self._says_no_effort = False
                log.warning("reasoning.effort has no effect: the model's chat template reads no effort.")
        if conversation.reasoning_context == "all_turns":
            variables |= {name: value for name, value in ALL_REASONING.items() if name in known}
        if conversation.verbosity is not None and "verbosity" in known:
            variables["verbosity"] = conversation.verbosity
        return {name: variables[name] for name in variables.keys() - conversation.chat_template_kwargs.keys()}

    def _checked_kwargs(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The kwargs. Raises PromptError for names that clients may not set, and large values."""
        read = self.template_inputs
        for name, value in variables.items():
            param = f"chat_template_kwargs.{name}"
            if name not in CHAT_TEMPLATE_KWARGS and name not in read:
                known = f"the model's reads {', '.join(read)}" if read else "the model's reads none"
                raise PromptError(f"{name[:100]!r} cannot be told to a chat template; {known}.", param)
            if not isinstance(value, str | int | float | bool | None) and name not in read:
                raise PromptError(f"{name} must be text, a number, true, false or null.", param)
            if len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) > _MAX_KWARG:
                raise PromptError(f"{name} may have {_MAX_KWARG} characters.", param)
        return dict(variables)

    def _unfinished_thought(self, conversation: PromptConversation) -> tuple[PromptConversation, str | None]:
        """The conversation before its last reasoning, to be continued, and that, or None."""
        items = list(conversation.items) if conversation.continue_final_message else []
        last = items[-1] if items else None
        if isinstance(last, Message) and last.role == "assistant" and not plain_text(last.content):
            items.pop()
        thoughts: list[str] = []
        while items and isinstance(item := items[-1], Reasoning):
            thoughts.insert(0, thought_of(item))
            items.pop()
        if not thoughts:
            return conversation, None
        if self._reasoning_format is None:
            raise PromptError("This model does not reason, so its reasoning cannot be continued.")
        before = replace(conversation, items=items, continue_final_message=False, add_generation_prompt=True)
        return before, "\n\n".join(thoughts)

    def _opened_with(self, rendered: str, thought: str) -> str:
        """A prompt for an answer as one that ends within the reasoning, after `thought`."""
        text = rendered.rstrip()
        if closing := next((tag for tag in self._closings if text.endswith(tag)), None):
            text = text.removesuffix(closing)
            rendered = text.rstrip() if self._opened(text) else text
        if not self._opened(rendered):
            rendered += self._openings[0]
        if not rendered[-1:].isspace():
            rendered += self._after_opening
        guarded: str = self._template.guard(thought)
        return rendered + guarded

    def _thinking(self, rendered: str, effort: Effort | None) -> ReasoningStart:
        """Whether the rendered prompt ends within the reasoning, after or before it. Before it the model may
        reason, unless there is no effort, or the template starts it itself when it is switched on.
        """
        if self._reasoning_format is None:
            return "no"
        if self._opened(rendered):
            return "open"
        closed = rendered.rstrip().endswith(self._closings)
        return "no" if closed or self._opens_with_switches or not thinks(effort) else "maybe"

    def _opened(self, rendered: str) -> bool:
        return rendered.rstrip().endswith(self._openings)


def _can_continue(messages: Sequence[dict[str, Any]]) -> bool:
    last = messages[-1] if messages else {"role": "", "content": ""}
    text = last["content"]
    return last["role"] == "assistant" and bool(text.strip() if isinstance(text, str) else text)
