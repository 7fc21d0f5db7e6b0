"""Types of the Chat Completions API: OpenAI's and vLLM's request parameters, completions, chunks."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.protocol.completions.shared_parameters import FINGERPRINT, CompletionParameters, CompletionUsage
from server.protocol.openapi_types import ChatMessageParam
from server.protocol.responses.request import MAX_TEMPLATE, MAX_TOOLS, Effort, Metadata


class ChatRequest(CompletionParameters, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessageParam], Meta(min_length=1, max_length=4096)]
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    exclude_tools_when_tool_choice_none: bool | None = None
    chat_template: Annotated[str, Meta(max_length=MAX_TEMPLATE)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    continue_final_message: bool | None = None
    modalities: list[str] | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None


class UpdateCompletion(msgspec.Struct, frozen=True):
    """The body of POST /v1/chat/completions/{id}; null removes all metadata."""

    metadata: Metadata | None


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
