"""Answers of Chat Completions, /v1/completions and /tokenize: choices, chunks, logprobs, token usage."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from server.version import VERSION

FINGERPRINT = f"holdfast-{VERSION}"
"""`system_fingerprint`: releases may differ in their output for the same seed."""


class CompletionUsage(msgspec.Struct, frozen=True):
    """OpenAI's `usage`; without details while the completion is in progress."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | UnsetType = UNSET
    completion_tokens_details: dict[str, int] | UnsetType = UNSET


class CalledFunction(msgspec.Struct, frozen=True):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CalledTool(msgspec.Struct, frozen=True):
    """A custom tool's name and input."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call, or in a chunk a part of the call at `index`."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: CalledFunction | UnsetType = UNSET
    custom: CalledTool | UnsetType = UNSET


class TokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[dict[str, Any]]


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenLogprob]
    refusal: None = None


FinishReason = Literal["stop", "length", "tool_calls"]


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | None
    refusal: None = None
    annotations: list[dict[str, Any]] = []
    audio: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | None = None
    """vLLM's name of `reasoning_content`."""
    tool_calls: list[ToolCall] | UnsetType = UNSET
    """Absent if empty, because OpenAI's type is not nullable."""


class Choice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    """vLLM's: the stop string or stop token id that ended the output."""
    logprobs: ChoiceLogprobs | None = None
    token_ids: list[int] | None = None
    """vLLM's, null unless requested."""


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage
    service_tier: Literal["default"] = "default"
    system_fingerprint: str = FINGERPRINT
    metadata: dict[str, str] | UnsetType = UNSET
    prompt_token_ids: list[int] | None = None
    """vLLM's, as the next field; null unless requested."""
    prompt_logprobs: list[Any] | None = None


class StoredCompletion(ChatCompletion, frozen=True, kw_only=True):
    """A stored completion with its request parameters; its messages have an endpoint of their own."""

    input_user: str | None
    seed: int
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    tools: list[dict[str, Any]] | None
    tool_choice: Any
    response_format: dict[str, Any] | None


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An input message of a stored completion."""

    id: str
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None
    name: None = None
    content_parts: list[dict[str, Any]] | None = None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


class DeletedCompletion(msgspec.Struct, frozen=True):
    """The result of DELETE /v1/chat/completions/{id}."""

    id: str
    object: Literal["chat.completion.deleted"] = "chat.completion.deleted"
    deleted: bool = True


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: ChoiceLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET
    """The token ids since the choice's last chunk."""
    stop_reason: str | int | UnsetType | None = UNSET
    """vLLM's, together with a finish reason."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed completion. `usage` is present only with `stream_options.include_usage`."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    service_tier: Literal["default"] = "default"
    system_fingerprint: str = FINGERPRINT
    prompt_token_ids: list[int] | UnsetType = UNSET


class LegacyLogprobs(msgspec.Struct, frozen=True):
    """One entry per token in each list; offsets are in characters of the choice's text."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


TextFinish = Literal["stop", "length"]


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice, or in a stream a part of it; the last part has the finish reason."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: TextFinish | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    """vLLM's, together with a finish reason: the stop string or stop token id that ended the text."""
    token_ids: list[int] | UnsetType | None = UNSET
    """vLLM's, as the next two; unless requested they are null, and absent in a stream."""
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: list[Any] | UnsetType | None = UNSET


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A completion, or one event of a stream, which has `usage` only if requested."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    system_fingerprint: str = FINGERPRINT


class Tokenized(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | None = None
    """The tokens' strings in the vocabulary, with `return_token_strs`."""


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str
