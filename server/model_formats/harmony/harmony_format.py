"""gpt-oss's model format, OpenAI's harmony, as docs/format.md of openai/harmony has it: a system message of
settings, a developer message of instructions and tools, then the conversation, with reasoning after the last
final answer, unless all of it is asked for.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import ClassVar, Literal

from server.errors import InvalidRequest
from server.model_formats.harmony import vocabulary
from server.model_formats.harmony.encoding import HarmonyEncoding, clean
from server.model_formats.harmony.harmony_grammar import make_grammar
from server.model_formats.harmony.harmony_parser import HarmonyParser, read_messages
from server.model_formats.harmony.tools import (
    BUILTIN,
    FUNCTIONS,
    PYTHON,
    is_builtin,
    read_builtin,
    recipient,
    tools_by_namespace,
)
from server.model_formats.model_format import (
    Messages,
    Prompt,
    PromptConversation,
    PromptError,
    PromptTooLong,
    ReasoningMarks,
)
from server.protocol.decode import check_size
from server.protocol.responses.items import (
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    output_text,
    plain_text,
)
from server.protocol.responses.request import TextFormat

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
KNOWLEDGE_CUTOFF = "2024-06"
CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
FUNCTIONS_NOTE = "Calls to these tools must go to the commentary channel: 'functions'."
_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""The nearest supported effort of those that the model was not trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMessage:
    author: str
    """A role, or for a tool's output the recipient of its call."""
    text: str
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None
    """The content type in the header: `json` (with <|constrain|>), `code` or None."""
    unfinished: bool = False
    """The message has no end token, because the model continues it."""


@dataclass(frozen=True, slots=True)
class HarmonyFormat:
    """Implements `model_format.ModelFormat` for gpt-oss."""

    effort_values: ClassVar[tuple[str, ...]] = ("low", "medium", "high")
    """The efforts that the model was trained on."""
    default_effort: ClassVar[str] = "medium"
    reasoning_context: ClassVar[Literal["current_turn"]] = "current_turn"
    encoding: HarmonyEncoding
    today: Callable[[], date] = lambda: datetime.now(UTC).date()

    @classmethod
    def load(cls, folder: Path, places: vocabulary.VocabularyPlaces) -> "HarmonyFormat":
        """Raises FileNotFoundError or ValueError without a vocabulary."""
        return cls(HarmonyEncoding(vocabulary.find_vocabulary(folder, places), places.user_folder))

    def write(self, conversation: PromptConversation) -> Prompt:
        """The prompt; chat_template_kwargs may have `builtin_tools` (browser, python), `model_identity`."""
        if conversation.chat_template is not None:
            raise PromptError("This model's prompts are not written by a chat template.", "chat_template")
        if conversation.documents:
            raise PromptError("This model has no place for documents; put them into a message.", "documents")
        requested = read_builtin(conversation.chat_template_kwargs.get("builtin_tools", ()))
        declared = {tool.namespace for tool in conversation.tools if tool.builtin}
        builtin = tuple(name for name in BUILTIN if name in requested or name in declared)
        conversation = replace(conversation, tools=[tool for tool in conversation.tools if not tool.builtin])
        today = conversation.created_at.date() if conversation.created_at else self.today()
        system = system_text(conversation, today, self.encoding.builtin_section(builtin) if builtin else "")
        tokens = self._encode_message(PromptMessage(author="system", text=system))
        instructions, items = split_instructions(conversation)
        groups = tools_by_namespace([tool for tool in conversation.tools if tool.listed])
        sections = (
            f"# Instructions\n\n{instructions}" if instructions else "",
            self.encoding.tools_section(groups) if groups else "",
            format_section(conversation.format),
        )
        if developer := "\n\n".join(filter(None, sections)):
            message = PromptMessage(author="developer", text=developer)
            tokens += self._encode_message(message, conversation.max_tokens)
        for message in prompt_messages(
            items,
            continues=conversation.continue_final_message,
            all_reasoning=conversation.reasoning_context == "all_turns",
        ):
            tokens += self._encode_message(message, conversation.max_tokens)
            if conversation.max_tokens is not None and len(tokens) > conversation.max_tokens:
                raise PromptTooLong(conversation.max_tokens)
        if conversation.add_generation_prompt and not conversation.continue_final_message:
            tokens += (vocabulary.START, *self.encoding.word("assistant"))
        return Prompt(
            token_ids=tuple(tokens),
            stop_ids=vocabulary.STOPS,
            grammar=make_grammar(conversation, builtin),
            tools=conversation.tools,
            must_call=conversation.tool_choice.mode == "required",
        )

    def encode(
        self,
        text: str,
        *,
        special: bool,  # noqa: ARG002 - nothing is put around texts
        limit: int | None = None,
    ) -> tuple[int, ...]:
        return tuple(self.encoding.encode(text, limit, control=True))

    @property
    def max_chars_per_token(self) -> int | None:
        return self.encoding.max_bytes_per_token

    @property
    def reasoning_marks(self) -> ReasoningMarks:
        return ReasoningMarks(
            (vocabulary.CHANNEL, *self.encoding.word("analysis"), vocabulary.MESSAGE), (vocabulary.END,)
        )

    def messages(self, token_ids: Sequence[int]) -> Messages:
        return read_messages(token_ids, self.encoding.tokens)

    def parser(self, prompt: Prompt) -> HarmonyParser:
        return HarmonyParser(self.encoding.tokens, prompt)

    def _encode_message(self, message: PromptMessage, limit: int | None = None) -> list[int]:
        """A message's tokens, equal to openai-harmony's rendering."""
        word = self.encoding.word
        tokens = [vocabulary.START, *word(clean(message.author))]
        if message.recipient:
            tokens += word(clean(f" to={message.recipient}"))
        if message.channel:
            tokens += (vocabulary.CHANNEL, *word(message.channel))
        if message.content_type == "json":
            tokens += (*word(" "), vocabulary.CONSTRAIN, *word("json"))
        elif message.content_type:
            tokens += word(f" {message.content_type}")
        tokens += (vocabulary.MESSAGE, *self.encoding.encode(message.text, limit))
        if not message.unfinished:
            calls = message.author == "assistant" and message.recipient
            tokens.append(vocabulary.CALL if calls else vocabulary.END)
        return tokens


def system_text(conversation: PromptConversation, today: date, builtin_section: str) -> str:
    """The system message: identity, dates, reasoning effort, builtin tools, channels."""
    identity = conversation.chat_template_kwargs.get("model_identity", IDENTITY)
    if not isinstance(identity, str):
        raise PromptError("model_identity must be a string.", "chat_template_kwargs")
    effort = conversation.reasoning_effort or "medium"
    facts = f"{identity}\nKnowledge cutoff: {KNOWLEDGE_CUTOFF}\nCurrent date: {today.isoformat()}"
    channels = CHANNELS
    if any((tool.namespace or FUNCTIONS) == FUNCTIONS for tool in conversation.tools):
        channels += "\n" + FUNCTIONS_NOTE
    parts = (facts, f"Reasoning: {_EFFORTS.get(effort, effort)}", builtin_section, channels)
    return "\n\n".join(filter(None, parts))


def format_section(output_format: TextFormat) -> str:
    """The `# Response Formats` section; empty for text."""
    if output_format.type == "text":
        return ""
    schema = {"type": "object"} if output_format.type == "json_object" else output_format.schema or {}
    name = f"## {output_format.name or output_format.type}"
    about = [f"// {line}" for line in (output_format.description or "").splitlines()]
    return "\n".join(["# Response Formats", "", name, "", *about, json.dumps(schema, ensure_ascii=False)])


def split_instructions(conversation: PromptConversation) -> tuple[str | None, Sequence[Item]]:
    """Instructions and remaining items; without instructions, a first developer message supplies them."""
    items = conversation.items
    first = items[0] if items else None
    if conversation.instructions is None and isinstance(first, Message) and _is_instructions(first):
        return plain_text(first.content), items[1:]
    return conversation.instructions, items


def prompt_messages(
    items: Sequence[Item], *, continues: bool, all_reasoning: bool = False
) -> Iterator[PromptMessage]:
    """The messages. Raises PromptError for an output without its call, or if no message can be continued."""
    match items[-2:]:
        case [Reasoning(), Message(role="assistant") as last] if continues and not plain_text(last.content):
            items = items[:-1]
    answered = -1 if all_reasoning else _last_answer(items[:-1] if continues else items)
    callees: dict[str, str] = {}
    for index, item in enumerate(items):
        match item:
            case Message():
                yield _message(item, items, index, open=continues and index == len(items) - 1)
            case Reasoning(content=list() as content) if index > answered and content:
                text, open_ = "\n".join(part.text for part in content), continues and index == len(items) - 1
                yield PromptMessage(author="assistant", channel="analysis", text=text, unfinished=open_)
            case FunctionCall() | CustomToolCall():
                callees[item.call_id] = recipient(item.name, item.namespace or None)
                yield _call(item, callees[item.call_id])
            case FunctionCallOutput() | CustomToolCallOutput():
                yield _output(item.output, item.call_id or "", callees)
    match items[-1:]:
        case [Reasoning(content=[_, *_]) | Message(role="assistant")]:
            return
    if continues:
        raise PromptError("Only a last message of the assistant's, or reasoning, can be continued.")


def _message(item: Message, items: Sequence[Item], index: int, *, open: bool) -> PromptMessage:  # noqa: A002
    text = plain_text(item.content)
    if _is_instructions(item):
        return PromptMessage(author="developer", text=f"# Instructions\n\n{text}")
    if item.role == "user":
        return PromptMessage(author="user", text=text)
    channel = "commentary" if not open and _is_preamble(item, items, index) else "final"
    return PromptMessage(author="assistant", channel=channel, text=text, unfinished=open)


def _is_instructions(item: Message) -> bool:
    """Whether the message has instructions: the API's `system` is harmony's developer role, too."""
    return item.role in ("system", "developer")


def _is_preamble(item: Message, items: Sequence[Item], index: int) -> bool:
    """Whether the message is commentary: by its `phase`, or, if clients drop that, by a call after it."""
    if item.phase in ("commentary", "final_answer"):
        return item.phase == "commentary"
    after = index + 1
    while after < len(items) and isinstance(items[after], Reasoning):
        after += 1
    return after < len(items) and isinstance(items[after], FunctionCall | CustomToolCall)


def _last_answer(items: Sequence[Item]) -> int:
    """The index of the last final answer, or -1."""
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        if isinstance(item, Message) and item.role == "assistant" and not _is_preamble(item, items, index):
            return index
    return -1


def _call(item: FunctionCall | CustomToolCall, callee: str) -> PromptMessage:
    text = item.arguments if isinstance(item, FunctionCall) else item.input
    if callee == PYTHON and isinstance(item, FunctionCall):
        text = _code(text)
    builtin = is_builtin(callee)
    data = "code" if builtin else "json" if isinstance(item, FunctionCall) else None
    return PromptMessage(
        author="assistant",
        recipient=callee,
        channel="analysis" if builtin else "commentary",
        content_type=data,
        text=text,
    )


def _code(arguments: str) -> str:
    """The code in the JSON arguments of a `python` call."""
    try:
        check_size(arguments.encode(errors="replace"))
        value = json.loads(arguments)
    except (InvalidRequest, ValueError, RecursionError):
        return arguments
    code = value.get("code") if isinstance(value, dict) else None
    return code if isinstance(code, str) else arguments


def _output(output: str | list[ContentPart], call_id: str, callees: dict[str, str]) -> PromptMessage:
    if call_id not in callees:
        raise PromptError(f"There is no call {call_id[:100]!r} before its output.")
    callee = callees[call_id]
    return PromptMessage(
        author=callee,
        recipient="assistant",
        channel="analysis" if is_builtin(callee) else "commentary",
        text=output_text(output),
    )
