"""The Response object, how a live or stored one is built, what its run, row and entry in the ledger share;
usage, status values and their transitions; the list of models.

    queued ──▶ in_progress ──▶ completed
       │            ├────────▶ incomplete   (the token limit was reached)
       │            ├────────▶ failed       (engine error, or the replica died)
       ├────────────┴────────▶ cancelled
       └─────────────────────▶ failed

Fields that SDKs or the Open Responses suite need are always set. Pure: knows neither database nor clock.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, get_args
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.protocol.codex_catalog import CodexModel
from server.protocol.decode import decode_as
from server.protocol.ids import response_id
from server.protocol.responses.items import Item
from server.protocol.responses.request import Kind, PromptReference, schema_ref

Status = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]

EndStatus = Literal["completed", "failed", "incomplete", "cancelled"]
CancelReason = Literal[
    "client_request", "client_disconnect", "deleted", "key_ended", "erased", "operator", "window_ended"
]
"""Its client asked or left; its key ended; its tenant or user was erased; an operator asked for it; its
completion window ended."""
TERMINAL_STATUSES: frozenset[Status] = frozenset(get_args(EndStatus))


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0
    input_tokens_per_turn: list[int] | UnsetType = UNSET
    """vLLM's, as the next field: one number a turn, with `enable_response_messages`, as clients expect
    numbers."""
    cached_tokens_per_turn: list[int] | UnsetType = UNSET


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int
    tool_output_tokens: int | UnsetType = UNSET
    """vLLM's, as the two lists: tokens of hosted tools' outputs in the prompts of later turns."""
    output_tokens_per_turn: list[int] | UnsetType = UNSET
    tool_output_tokens_per_turn: list[int] | UnsetType = UNSET


class Usage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class TurnUsage(NamedTuple):
    """Counts of one model turn: tokens, of which `tool_output` is included in `input`, and dropped items."""

    input: int
    cached: int
    output: int
    tool_output: int = 0
    dropped: int = 0
    """How many of the oldest items its prompt left out, by `truncation`."""


def make_usage(
    prompt: int, cached: int, output: int, reasoning: int, turns: Sequence[TurnUsage] = ()
) -> Usage:
    """Token counts as OpenAI's `usage` object, with vLLM's count of tool outputs."""
    of_tools = sum(turn.tool_output for turn in turns)
    return Usage(
        prompt, InputTokensDetails(cached), output, OutputTokensDetails(reasoning, of_tools), prompt + output
    )


def with_turn_usage(whole: Usage, turns: Sequence[TurnUsage]) -> Usage:
    """The usage with vLLM's lists of counts per turn."""
    input_details, output_details = whole.input_tokens_details, whole.output_tokens_details
    turns = turns or [TurnUsage(whole.input_tokens, input_details.cached_tokens, whole.output_tokens)]
    of_input, of_cached, of_output, of_tools, _ = (list(counts) for counts in zip(*turns, strict=True))
    return msgspec.structs.replace(
        whole,
        input_tokens_details=msgspec.structs.replace(
            input_details, input_tokens_per_turn=of_input, cached_tokens_per_turn=of_cached
        ),
        output_tokens_details=msgspec.structs.replace(
            output_details, output_tokens_per_turn=of_output, tool_output_tokens_per_turn=of_tools
        ),
    )


OutputItem = Annotated[Any, schema_ref("Item")]
"""An `Item`, or an item's JSON from the store as `msgspec.Raw`."""
ToolEcho = Annotated[dict[str, Any], schema_ref("Tool")]
"""A tool in a response, made by `tools.echo`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a response: the columns of its row that are set then."""

    status: EndStatus
    first_token_at: datetime | None
    finished_at: datetime
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    queue_seconds: float | None = None
    """Time that its turns waited in the engine, as far as this replica has measured it."""
    prefill_seconds: float | None = None
    """Time from its turns' first steps to their first tokens, likewise."""
    turns: Sequence[TurnUsage] = ()
    error_code: str | None = None
    error_message: str | None = None
    incomplete_reason: str | None = None
    cancel_reason: CancelReason | None = None
    """None as well where a release that knew no reasons was asked to cancel."""


def columns_of(ending: Ending) -> dict[str, Any]:
    """The column values of a response's row at its end, with `turns` as JSON."""
    columns = {name: getattr(ending, name) for name in Ending.__dataclass_fields__}
    return {**columns, "turns": json.dumps([turn._asdict() for turn in ending.turns])}


def read_turns(column: str | None) -> Sequence[TurnUsage]:
    """The turns in that column; empty before the end of the response."""
    return [TurnUsage(**turn) for turn in json.loads(column or "[]")]


class ReasoningEcho(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None
    context: str | UnsetType = UNSET
    """In effect, as `mode` is."""
    mode: str | UnsetType = UNSET


class TextEcho(msgspec.Struct, frozen=True):
    format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "text"})
    verbosity: str | UnsetType = UNSET


class ConversationEcho(msgspec.Struct, frozen=True):
    id: str


class Echo(msgspec.Struct, frozen=True, kw_only=True):
    """The request parameters in a Response, with defaults. Stored once, in `responses.request`."""

    background: bool
    """It is stored, with `store: false` until some time after its end."""
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
    ignored_tools: list[str] | UnsetType = UNSET
    """Types of the request's tools that are not served here, and that the model does not have."""
    dropped_items: int | UnsetType = UNSET
    """How many of the oldest items the prompt of the first turn left out, by `truncation`."""


class RawMessage(msgspec.Struct, frozen=True, tag_field="type", tag="raw_message_tokens"):
    """Input or output of the model as token ids and text; vLLM's `ResponseRawMessageAndToken`."""

    message: str
    tokens: list[int]


ModelMessage = Annotated[Any, Meta(extra_json_schema={"type": "object"})]
"""A `RawMessage`, or for gpt-oss a harmony message: `role`, `name`, `content`, `channel`, …"""


class PromptLogprob(msgspec.Struct, frozen=True):
    """The log probability of a prompt token; vLLM's `Logprob`."""

    logprob: float
    rank: int | None
    """1 for the most likely token; null for a prompt token that is not among the most likely ones."""
    decoded_token: str


PromptLogprobs = dict[int, PromptLogprob]
"""By token id: the prompt's token and the most likely alternatives at its position."""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's Response; fields are sent in this order."""

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
    ignored_tools: list[str] | UnsetType = UNSET
    """Types of the request's tools that are not served here, and that the model does not have."""
    dropped_items: int | UnsetType = UNSET
    """How many of the oldest items the prompts left out, by `truncation`: the most of any turn, and until the
    end that of the first."""
    cancel_reason: CancelReason | UnsetType = UNSET
    """Why it was cancelled; only a cancelled response has it."""
    input_messages: list[ModelMessage] | UnsetType = UNSET
    """With `output_messages`: present after the end, with `enable_response_messages`."""
    output_messages: list[ModelMessage] | UnsetType = UNSET
    prompt_logprobs: list[PromptLogprobs | None] | UnsetType = UNSET
    """Present after the end, if requested; null for the prompt's first token."""
    stop_reason: str | int | UnsetType | None = UNSET
    """Choices of completions have it: the stop string or stop token id that ended the output."""
    cumulative_logprob: float | UnsetType = UNSET
    """Choices ranked by `best_of` have it: the sum of the logprobs of all output tokens."""
    accepted_prediction_tokens: int | UnsetType = UNSET
    """Choices of chats with a `prediction` have it: tokens of it that the output has, and others."""
    rejected_prediction_tokens: int | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFacts:
    """The fields that a response's run, row and ledger entry share, unchanged from its acceptance on. Each
    field is a column.
    """

    tenant: str
    id: UUID
    created_at: datetime
    model: str
    background: bool
    kind: Kind = "response"
    """The API whose request it is."""
    key_id: str | None = None
    end_user: str | None = None
    request_id: str | None = None
    """Id of the HTTP request that created the response."""
    trace_parent: str | None = None
    """`traceparent` of the span of that request; None if it is not traced."""
    user_agent: str | None = None

    def facts(self) -> dict[str, Any]:
        """The shared fields by name, without those that a subclass adds."""
        return {name: getattr(self, name) for name in FACTS}


FACTS = tuple(ResponseFacts.__dataclass_fields__)


def build_response(
    response: UUID,
    created_at: datetime,
    echo: Echo,
    status: Status,
    output: Sequence[Item] | Sequence[msgspec.Raw],
    ending: Ending | None = None,
) -> Response:
    """The response as clients get it. Pass `ending` for one that has ended."""
    completed = ending is not None and ending.status == "completed"
    dropped = max((turn.dropped for turn in ending.turns), default=0) if ending else 0
    return Response(
        **{**msgspec.structs.asdict(echo), "dropped_items": dropped or echo.dropped_items},
        id=response_id(response),
        created_at=int(created_at.timestamp()),
        status=status,
        completed_at=int(ending.finished_at.timestamp()) if ending and completed else None,
        error=ResponseError(ending.error_code, ending.error_message or "")
        if ending and ending.error_code is not None
        else None,
        incomplete_details=IncompleteDetails(ending.incomplete_reason)
        if ending and ending.incomplete_reason
        else None,
        output=list(output),
        usage=_usage(ending),
        cancel_reason=(ending.cancel_reason if ending else None) or UNSET,
    )


def _usage(ending: Ending | None) -> Usage | None:
    if ending is None:
        return None
    counts = (ending.input_tokens, ending.cached_tokens, ending.output_tokens, ending.reasoning_tokens)
    return make_usage(*counts, ending.turns)


class _LastResponse(msgspec.Struct):
    usage: Usage | None = None
    input_messages: list[Any] | UnsetType = UNSET
    output_messages: list[Any] | UnsetType = UNSET
    prompt_logprobs: list[PromptLogprobs | None] | UnsetType = UNSET
    stop_reason: str | int | UnsetType | None = UNSET
    cumulative_logprob: float | UnsetType = UNSET
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class _LastEvent(msgspec.Struct):
    response: _LastResponse


ONLY_IN_LAST_EVENT = frozenset(_LastResponse.__struct_fields__) - {"usage"}


def wants_token_dump(request: str | None) -> bool:
    """Whether a stored request has `enable_response_messages`; one in a text would have escaped quotes."""
    return request is not None and '"enable_response_messages":true' in request


def may_have_stop_reason(request: str | None) -> bool:
    """Whether a stored request has stop strings or tokens, or a prediction, of which its last event tells."""
    return request is not None and any(
        f'"{name}":' in request for name in ("stop", "stop_token_ids", "prediction")
    )


def restore_token_dump(response: Response, last_event: str) -> Response:
    """An ended response with the fields that only its last event has."""
    last = decode_as(last_event, _LastEvent).response
    return msgspec.structs.replace(response, **msgspec.structs.asdict(last))


class Deleted(msgspec.Struct, frozen=True):
    """The body of DELETE /v1/responses/{id}'s response."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class CompactedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result of POST /v1/responses/compact; `output` is the `input` of the next request."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[Item]
    usage: Usage


class InputTokens(msgspec.Struct, frozen=True):
    """The result of POST /v1/responses/input_tokens."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class Permission(msgspec.Struct, frozen=True):
    """vLLM's `permission` of a model; equal for all models."""

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
    """Maximum tokens of prompt and output together; vLLM's, as the following fields."""
    root: str
    """The base model's name, for an adapter as for the model itself."""
    parent: str | None = None
    """The base model of an adapter; null for a base model."""
    permission: list[Permission] = []
    object: Literal["model"] = "model"
    owned_by: str = "holdfast"


class ModelList(msgspec.Struct, frozen=True):
    data: list[Model]
    object: Literal["list"] = "list"
    models: list[CodexModel] | UnsetType = UNSET
    """The models as Codex reads them, where a request has its `client_version`."""
