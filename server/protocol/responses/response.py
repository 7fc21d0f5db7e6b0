"""The Response object. Every field that the SDKs or the Open Responses suite need is always present."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.protocol.openapi_types import OutputItem, ToolEcho
from server.protocol.responses.items import Item
from server.protocol.responses.request import PromptReference

Status = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0
    input_tokens_per_turn: list[int] | UnsetType = UNSET
    """These two are vLLM's: one number for each turn of the model; the server's calls are between turns. Told
    with vLLM's messages alone: clients take every detail of usage for a number."""
    cached_tokens_per_turn: list[int] | UnsetType = UNSET


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int
    tool_output_tokens: int | UnsetType = UNSET
    """vLLM's, as the two lists are: what the server's calls added to the prompts of the turns after them."""
    output_tokens_per_turn: list[int] | UnsetType = UNSET
    tool_output_tokens_per_turn: list[int] | UnsetType = UNSET


class Usage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class TurnUsage(NamedTuple):
    """The tokens of one turn of the model; `tool_output` is a part of `input`."""

    input: int
    cached: int
    output: int
    tool_output: int = 0


def make_usage(
    prompt: int, cached: int, output: int, reasoning: int, turns: Sequence[TurnUsage] | None = None
) -> Usage:
    """Token counts in OpenAI's shape, with vLLM's of tools; without `turns`, of one turn."""
    of_tools = sum(turn.tool_output for turn in turns or ())
    return Usage(
        prompt,
        InputTokensDetails(cached),
        output,
        OutputTokensDetails(reasoning, of_tools),
        prompt + output,
    )


def with_turn_usage(whole: Usage, turns: Sequence[TurnUsage]) -> Usage:
    """The same with vLLM's lists, of one number for each turn."""
    told = whole.input_tokens_details, whole.output_tokens_details
    turns = turns or [TurnUsage(whole.input_tokens, told[0].cached_tokens, whole.output_tokens)]
    of_input, of_cached, of_output, of_tools = (list(counts) for counts in zip(*turns, strict=True))
    return msgspec.structs.replace(
        whole,
        input_tokens_details=msgspec.structs.replace(
            told[0], input_tokens_per_turn=of_input, cached_tokens_per_turn=of_cached
        ),
        output_tokens_details=msgspec.structs.replace(
            told[1], output_tokens_per_turn=of_output, tool_output_tokens_per_turn=of_tools
        ),
    )


class ReasoningEcho(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class TextEcho(msgspec.Struct, frozen=True):
    format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "text"})
    verbosity: str | UnsetType = UNSET


class ConversationEcho(msgspec.Struct, frozen=True):
    id: str


class Echo(msgspec.Struct, frozen=True, kw_only=True):
    """What a response repeats of its request, defaults filled in. Stored once, as `responses.request`."""

    background: bool
    conversation: ConversationEcho | UnsetType = UNSET
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt: PromptReference | UnsetType = UNSET
    prompt_cache_key: str | None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: TextEcho
    tool_choice: Any
    tools: list[ToolEcho]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | None

    @property
    def has_row(self) -> bool:
        """The database has the response: one in the background without `store` for a while after its end."""
        return self.store or self.background


class RawMessage(msgspec.Struct, frozen=True, tag_field="type", tag="raw_message_tokens"):
    """What a model was given or gave, as tokens and as what they spell; vLLM's shape."""

    message: str
    tokens: list[int]


ModelMessage = Annotated[Any, Meta(extra_json_schema={"type": "object"})]
"""A `RawMessage`, or for gpt-oss a message of its format: `role`, `name`, `content`, `channel`, …"""


class PromptLogprob(msgspec.Struct, frozen=True):
    """How likely a token was at its place in the prompt; vLLM's shape."""

    logprob: float
    rank: int | None
    """1 is the likeliest; null for a token of the prompt that is not among the likeliest."""
    decoded_token: str


PromptLogprobs = dict[int, PromptLogprob]
"""By token id: the prompt's own token and the likeliest in its place."""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's Response, in the order in which it is written."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    background: bool
    completed_at: int | None
    conversation: ConversationEcho | UnsetType = UNSET
    error: ResponseError | None
    frequency_penalty: float
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    moderation: None = None
    output: list[OutputItem]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt: PromptReference | UnsetType = UNSET
    prompt_cache_key: str | None
    prompt_cache_retention: str | None = None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: TextEcho
    tool_choice: Any
    tools: list[ToolEcho]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: Usage | None
    user: str | None
    input_messages: list[ModelMessage] | UnsetType = UNSET
    """These two are there once it has ended, if they were asked for."""
    output_messages: list[ModelMessage] | UnsetType = UNSET
    prompt_logprobs: list[PromptLogprobs | None] | UnsetType = UNSET
    """The same; null for the prompt's first token."""
    stop_reason: str | int | UnsetType | None = UNSET
    """Of the choice of a completion: the stop string or the id of the stop token that ended it."""
    cumulative_logprob: float | UnsetType = UNSET
    """Of one that is compared with others: the sum over its tokens, the last one included."""


class Deleted(msgspec.Struct, frozen=True):
    """The answer to DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class CompactedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to POST /v1/responses/compact: a new input, to be sent as it is."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[Item]
    usage: Usage


class InputTokens(msgspec.Struct, frozen=True):
    """The answer to POST /v1/responses/input_tokens."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class Permission(msgspec.Struct, frozen=True):
    """What may be done with a model: the same for all that are served."""

    id: str
    created: int
    object: Literal["model_permission"] = "model_permission"
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class Model(msgspec.Struct, frozen=True):
    """An entry of GET /v1/models."""

    id: str
    created: int
    max_model_len: int
    """The most tokens of a prompt and its answer together; vLLM's, as are those below."""
    root: str
    """The model that it is, or that it is an adapter of."""
    parent: str | None = None
    """The model that an adapter is for."""
    permission: list[Permission] = []
    object: Literal["model"] = "model"
    owned_by: str = "holdfast"


class ModelList(msgspec.Struct, frozen=True):
    data: list[Model]
    object: Literal["list"] = "list"
