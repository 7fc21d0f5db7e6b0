"""The interface of a model format: it writes a conversation as a prompt and parses output tokens into deltas.

Pure: no thread, no clock, no I/O after construction. Tokens come from the engine, deltas go to the emitter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, groupby
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from engine.request import PromptImage, StructuredOutput
from server.protocol.responses.items import Item
from server.protocol.responses.request import Effort, ReasoningContext, TextFormat
from server.protocol.responses.tools import ToolChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTool:
    """A tool that the model may call, executed by the client or by the server."""

    name: str
    description: str | None = None
    kind: Literal["function", "custom"] = "function"
    """The arguments of a function are a JSON object, those of a custom tool free text."""
    parameters: Mapping[str, Any] | None = None
    """A function's JSON schema; None allows any object."""
    strict: bool = False
    """Whether the output grammar enforces the schema."""
    syntax: Literal["text", "lark", "regex"] = "text"
    """Syntax of a custom tool's grammar `definition`; `text` for none."""
    definition: str = ""
    namespace: str | None = None
    """The request's namespace of the tool; names are unique within a namespace."""
    builtin: bool = False
    """A tool that gpt-oss was trained on, described in its system message."""
    hosted: bool = False
    """A tool that the server executes; `namespace` is its MCP server's label."""
    deferred: bool = False
    """Not in a prompt unless a search has loaded it."""
    listed: bool = True
    """Whether the list of tools at the prompt's beginning has it; else the result of a search does."""
    prefixed: bool = True
    """Whether `prompt_name` has the namespace as a prefix; see `tool_names.without_labels`."""

    @property
    def prompt_name(self) -> str:
        """The tool's name in a chat template's prompt."""
        return qualified_name(self.name, self.namespace if self.prefixed else None)


def qualified_name(name: str, namespace: str | None) -> str:
    return f"{namespace}__{name}" if namespace else name


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptConversation:
    items: Sequence[Item]
    instructions: str | None = None
    tools: Sequence[PromptTool] = ()
    tool_choice: ToolChoice = ToolChoice()
    format: TextFormat = TextFormat("text")
    reasoning_effort: Effort | None = None
    reasoning_context: ReasoningContext | None = None
    """Which turns' reasoning the prompt has; None and "auto" are the model's own way."""
    verbosity: Literal["low", "medium", "high"] | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Extra variables of the chat template, from `chat_template_format.CHAT_TEMPLATE_KWARGS`."""
    chat_template: str | None = None
    """A Jinja chat template that replaces the model's own."""
    documents: Sequence[Mapping[str, Any]] = ()
    continue_final_message: bool = False
    """The prompt ends within the last item, an assistant message, which the model continues."""
    created_at: datetime | None = None
    """The time for dates in the prompt, so that a rebuilt prompt has the same tokens; None for now."""
    add_generation_prompt: bool = True
    """Whether the prompt ends with the beginning of the assistant's turn, or after the last item."""
    add_special_tokens: bool = False
    """Whether the tokenizer's own special tokens (BOS, EOS) are added around the rendered template."""
    max_tokens: int | None = None
    """Maximum length of the prompt in tokens; a longer one may be refused before it is encoded completely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """An encoded conversation: the engine's input and the output parser's parameters."""

    token_ids: tuple[int, ...]
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...] = ()
    """Texts that end the output, beside those of the request."""
    images: tuple[PromptImage, ...] = ()
    opens_reasoning: bool = False
    """The prompt ends with the start of the reasoning, so the first output token is reasoning."""
    continues_reasoning: bool = False
    """The prompt ends in the midst of the reasoning, whose next white space counts."""
    grammar: StructuredOutput | None = None
    tools: Sequence[PromptTool] = ()
    """The callable tools, by which the parser distinguishes calls from text that looks like one."""
    must_call: bool = False
    """Only calls may follow the reasoning, so truncated call markup is not emitted as text."""
    dropped_items: int = 0
    """Items of the conversation that did not fit, with `truncation: "auto"`."""


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    start: tuple[int, ...]
    end: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str
    token_indices: tuple[int, ...] = field(default=(), compare=False)
    """Ascending indices into the engine request's output of the tokens that begin in this text, for their
    logprobs. A token is in at most one delta; those of markup, reasoning and calls in none.
    """


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class MessageStart:
    """A message begins, possibly an empty one. Without this delta the first text begins a message."""

    phase: Literal["commentary", "final_answer"] | None = None


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; the item before it is complete."""

    name: str
    call_id: str | None = None
    """The call's id from the output, if the format has one."""
    kind: Literal["function", "custom"] = "function"
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of the current call's arguments: JSON text of a function, the input of a custom tool."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The current call is complete. A call without this delta was truncated."""


_WithText = TextDelta | ReasoningDelta | CallDelta
Delta = TextDelta | ReasoningDelta | MessageStart | CallStart | CallDelta | CallEnd


class OutputParser(Protocol):
    """Parses the tokens of one engine request and raises nothing. However the tokens are split into `feed`
    calls, the deltas are the same after `merge_deltas`.
    """

    reasoning_tokens: int

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """The deltas of these tokens; text that may be the beginning of markup stays buffered."""

    def close(self) -> list[Delta]:
        """The deltas of the buffered text, after the last token."""


class PromptError(Exception):
    """The conversation cannot be written for this model; the message is sent to the client."""

    def __init__(self, message: str, param: str = "input") -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(Exception):
    """A text has more than `limit` tokens; their exact number is not counted."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"There is room for {limit} tokens.")
        self.limit = limit


class Messages(NamedTuple):
    """Messages decoded from tokens, for vLLM's `input_messages` and `output_messages`."""

    messages: list[dict[str, Any]]
    complete: int
    """The number of complete messages; the last one may be incomplete."""


@runtime_checkable
class MessageFormat(Protocol):
    """A model format whose tokens decode to separate messages (harmony)."""

    def messages(self, token_ids: Sequence[int]) -> Messages:
        """The messages in these tokens, which begin at a message boundary. Raises nothing."""


class ModelFormat(Protocol):
    """A model family's chat template, tool-call parser and reasoning parser. Thread-safe."""

    @property
    def max_chars_per_token(self) -> int | None:
        """Upper bound of the characters that one prompt token stands for; None if unbounded."""

    @property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """None for models that do not reason or whose reasoning does not end with a single token."""

    @property
    def reasoning_context(self) -> Literal["current_turn", "all_turns"]:
        """The turns whose reasoning a prompt has where the conversation does not say."""

    def write(self, conversation: PromptConversation) -> Prompt:
        """The prompt. Raises PromptError if the model's template refuses it, and PromptTooLong."""

    def encode(self, text: str, *, special: bool, limit: int | None = None) -> tuple[int, ...]:
        """The tokens of a text, also of control tokens; `special` adds BOS and EOS. Raises as `write`."""

    def parser(self, prompt: Prompt) -> OutputParser:
        """A new parser for the output of one engine request with that prompt."""


def merge_deltas(deltas: Sequence[Delta]) -> list[Delta]:
    """The deltas, with each run of text, reasoning or call deltas merged into one, in linear time."""
    if len(deltas) < 2:
        return list(deltas)
    merged: list[Delta] = []
    for kind, same in groupby(deltas, type):
        run = list(same)
        text = "".join([delta.text for delta in run if isinstance(delta, _WithText)])
        if len(run) < 2 or kind in (MessageStart, CallStart, CallEnd):
            merged += run
        elif kind is TextDelta:
            indices = [delta.token_indices for delta in run if isinstance(delta, TextDelta)]
            merged.append(TextDelta(text, tuple(chain.from_iterable(indices))))
        else:
            merged.append(ReasoningDelta(text) if kind is ReasoningDelta else CallDelta(text))
    return merged
