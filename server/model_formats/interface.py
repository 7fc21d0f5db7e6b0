"""The interface of a model format: it writes a conversation as a prompt and parses output tokens into deltas.

Pure: no thread, no clock, no I/O after construction. Tokens come from the engine, deltas go to the emitter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from engine.request import StructuredOutput
from server.protocol.responses.items import Item
from server.protocol.responses.request import Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Something that the model may call, whoever carries the call out."""

    name: str
    description: str | None = None
    kind: Literal["function", "custom"] = "function"
    """A function takes a JSON object, a custom tool free text."""
    parameters: Mapping[str, Any] | None = None
    """A function's JSON schema; None takes any object."""
    strict: bool = False
    """The arguments must follow the schema, which is then enforced while they are generated."""
    syntax: Literal["text", "lark", "regex"] = "text"
    """Of a custom tool's input; `definition` is the grammar in it."""
    definition: str = ""
    namespace: str | None = None
    """The group that the tool was given in; two groups may have tools of one name."""
    builtin: bool = False
    """One that some models were trained on, who are not told of it as of the others."""
    hosted: bool = False
    """The server itself makes its calls; `namespace` is the label of the MCP server that has it."""
    prefixed: bool = True
    """A chat template writes its name with the namespace before it; see `toolbox.without_labels`."""

    @property
    def prompt_name(self) -> str:
        """The name by which models with a chat template know it."""
        return qualified_name(self.name, self.namespace if self.prefixed else None)


def qualified_name(name: str, namespace: str | None) -> str:
    """A tool's name with that of its namespace before it."""
    return f"{namespace}__{name}" if namespace else name


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether the model must, may or must not call, and what."""

    mode: Literal["none", "auto", "required"] = "auto"
    allowed: tuple[str, ...] | None = None
    """The only tools that may be called, by name; None allows all. The prompt shows all of them anyway."""
    parallel: bool = True
    """More than one call may come in one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """What the final answer must be."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    schema: Mapping[str, Any] | None = None
    name: str = ""
    description: str | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Everything that a prompt is written from."""

    items: Sequence[Item]
    instructions: str | None = None
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = ToolChoice()
    format: OutputFormat = OutputFormat()
    reasoning_effort: Effort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """More for the chat template, from the names that callers may set."""
    chat_template: str | None = None
    """The chat template that writes it, in place of the model's own."""
    documents: Sequence[Mapping[str, Any]] = ()
    continue_final_message: bool = False
    """The last item is an assistant's message that the model goes on with, in place of a new turn."""
    created_at: datetime | None = None
    """When the answer was asked for; a prompt may tell the date, and must be the same when written again.
    Without one it is the present."""
    add_generation_prompt: bool = True
    """The prompt ends where the model's turn begins; without, after the last item."""
    add_special_tokens: bool = False
    """The tokenizer puts around the prompt what it puts around texts, beside what the template writes."""
    max_tokens: int | None = None
    """Tokens that there is room for. A longer prompt may be refused before it is written whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the engine needs of a conversation, and what the parser must know to read the answer."""

    token_ids: tuple[int, ...]
    stop_ids: frozenset[int]
    opens_reasoning: bool = False
    """The prompt itself has opened the model's reasoning; the first token belongs to it."""
    grammar: StructuredOutput | None = None
    """What enforces the conversation's tool choice and format."""
    tools: Sequence[Tool] = ()
    """What may be called, so that a call is told from text that looks like one."""
    must_call: bool = False
    """Nothing but calls may come after the reasoning, so markup that the end cuts off is never text."""


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The tokens around a model's reasoning."""

    start: tuple[int, ...]
    end: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer."""

    text: str
    token_indices: tuple[int, ...] = field(default=(), compare=False)
    """The places in the engine request's output, from 0, of the tokens that begin in this text, rising.

    So each token's probability is told with the text that it gave. A token is in one delta at most; those of
    markup, of reasoning and of calls are in none. Neighbours are joined by joining both fields.
    """


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class MessageStart:
    """A message begins, even if no text comes. Without one, the first text begins a message."""

    phase: Literal["commentary", "final_answer"] | None = None


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; whatever was open is over. The tool's name is known from here on."""

    name: str
    call_id: str | None = None
    """The id that the model gave its call, where its format has one."""
    kind: Literal["function", "custom"] = "function"
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of the open call's arguments: JSON text of a function, the input of a custom tool."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The open call is complete. A call that never gets one was cut off."""


Delta = TextDelta | ReasoningDelta | MessageStart | CallStart | CallDelta | CallEnd


class OutputParser(Protocol):
    """Reads one engine request's tokens. Never raises, whatever the model says.

    Any split of the same tokens gives the same deltas, once neighbours of a kind are joined.
    """

    reasoning_tokens: int
    """How many of the tokens so far belonged to reasoning."""

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Deltas that have become certain; text that could still turn into markup is held back."""

    def close(self) -> list[Delta]:
        """What was held back, once no token will come any more."""


class PromptError(Exception):
    """The conversation cannot be written for this model; the sentence is for the caller."""

    def __init__(self, message: str, param: str = "input") -> None:
        super().__init__(message)
        self.param = param
        """The parameter of the request that is to blame."""


class PromptTooLong(Exception):
    """A text has more tokens than there is room for. How many was not counted."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"There is room for {limit} tokens.")
        self.limit = limit


class Messages(NamedTuple):
    """What tokens say in a format that keeps messages apart."""

    messages: list[dict[str, Any]]
    complete: int
    """How many of them have ended; the last may be open."""


@runtime_checkable
class MessageFormat(Protocol):
    """A model format whose tokens are messages to the model, too."""

    def messages(self, token_ids: Sequence[int]) -> Messages:
        """The messages in these tokens, which begin between two messages. Raises nothing."""


class ModelFormat(Protocol):
    @property
    def max_chars_per_token(self) -> int | None:
        """Characters of a prompt that one token stands for at most; None if there is no such number."""

    @property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """None where the model does not reason, or its reasoning ends with no token of its own."""

    def write(self, conversation: Conversation) -> Prompt:
        """The conversation as a prompt that ends where the model's answer begins.

        Raises PromptError when the model's template refuses the conversation, and PromptTooLong if the
        conversation has a limit.
        """

    def encode(self, text: str, *, special: bool, limit: int | None = None) -> tuple[int, ...]:
        """Text as it stands, the control tokens that are written in it included.

        `special` lets the tokenizer put before and after it what it puts around texts. Raises PromptError,
        and PromptTooLong for what has more than `limit` tokens and was not counted to its end.
        """

    def parser(self, prompt: Prompt) -> OutputParser:
        """A fresh parser for one engine request with that prompt."""
