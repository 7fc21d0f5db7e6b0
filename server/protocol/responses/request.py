"""The parameters of POST /v1/responses with their bounds, and the messages of its WebSocket."""

from datetime import timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from engine.request import IDLE_PRIORITY
from server.protocol.error_object import ErrorDetail, invalid_value, missing_parameter
from server.protocol.ids import MAX_REQUEST_ID


def schema_ref(name: str) -> Meta:
    return Meta(extra_json_schema={"$ref": f"#/components/schemas/{name}"})


MAX_TOOLS = 128
MAX_TEMPLATE = 65_536

InputItemParam = Annotated[dict[str, Any], schema_ref("InputItemParam")]
InputContentParam = Annotated[dict[str, Any], schema_ref("InputContentParam")]
ToolParam = Annotated[dict[str, Any], schema_ref("ToolParam")]
ToolChoiceMode = Annotated[str, Meta(extra_json_schema={"enum": ["none", "auto", "required"]})]
ToolChoiceParam = Annotated[
    dict[str, Any], Meta(extra_json_schema={"properties": {"type": {"type": "string"}}, "required": ["type"]})
]

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
RequestId = Annotated[str, Meta(min_length=1, max_length=MAX_REQUEST_ID)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopTokens = Annotated[list[TokenId], Meta(max_length=128)]
AllowedTokens = Annotated[list[TokenId], Meta(min_length=1, max_length=16_384)]
BadWords = Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=128)]
LogprobTokens = Annotated[list[TokenId], Meta(min_length=1, max_length=128)]
PromptTokenLimit = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""vLLM's `truncate_prompt_tokens`; -1 keeps as many as leave room for the output."""
TruncationSide = Literal["left", "right"]
ThinkingTokens = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
GenerationConfigParam = dict[str, Any] | Annotated[str, Meta(max_length=65_536)]
"""transformers' generation config, as an object or as JSON text."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

Summary = Literal["auto", "concise", "detailed"]
ReasoningContext = Literal["auto", "current_turn", "all_turns"]
INCLUDABLE = (
    *("code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results"),
    *("message.input_image.image_url", "message.output_text.logprobs", "reasoning.encrypted_content"),
    *("web_search_call.action.sources", "web_search_call.results"),
)
"""OpenAI's values of `include`. Not a type, because requests are stored as they were sent."""
Kind = Literal["response", "chat", "completion"]
"""The API of a request: Responses, Chat Completions or the legacy completions."""
MAX_END_USER = 512
MAX_FORMAT_NAME = 64
_FORMAT_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
COMPACTION_TRIGGER = "compaction_trigger"
"""The type in `context_management` that records a trigger in the input."""


def end_user(user: str | None, safety_identifier: str | None) -> str | None:
    """The end user that a request names: `user`, else `safety_identifier`; Postgres text, so without NULs."""
    return (user or safety_identifier or "").replace("\0", "")[:MAX_END_USER] or None


def check_format_name(name: str | None, param: str) -> None:
    """Raises InvalidRequest unless OpenAI's API accepts it as a JSON schema's name."""
    if name is None:
        raise missing_parameter(param)
    if not 1 <= len(name) <= MAX_FORMAT_NAME or not _FORMAT_NAME.issuperset(name):
        raise invalid_value(
            f"The name of a format has 1 to {MAX_FORMAT_NAME} of the characters a-z, A-Z, 0-9, _ and -.",
            param,
        )


class ReasoningOptions(msgspec.Struct, frozen=True):
    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    """Deprecated name of `summary`."""
    context: ReasoningContext | None = None
    """Which turns' reasoning the model reads again."""
    mode: Literal["standard", "pro"] | None = None


class TextFormat(msgspec.Struct, frozen=True):
    """A `json_object` with a schema, as llama.cpp reads it, is a `json_schema` of an object."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None

    def __post_init__(self) -> None:
        if self.type == "json_object" and self.schema:
            msgspec.structs.force_setattr(self, "type", "json_schema")
            msgspec.structs.force_setattr(self, "name", self.name or "answer")
            msgspec.structs.force_setattr(self, "schema", {"type": "object", **self.schema})


class TextOptions(msgspec.Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ExpiresAfter(msgspec.Struct, frozen=True):
    """OpenAI's parameter of files, as an extension for responses."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=60, le=10 * 365 * 24 * 3600)]


class ConversationReference(msgspec.Struct, frozen=True):
    id: str


class PromptReference(msgspec.Struct, frozen=True):
    """A stored prompt and the values of its variables: strings or `input_text` parts."""

    id: str
    version: str | None = None
    variables: dict[str, Any] | None = None


class ContextManagement(msgspec.Struct, frozen=True):
    """An entry of `context_management`; OpenAI's only type is `compaction`."""

    type: str
    compact_threshold: Annotated[int, Meta(ge=1000)] | None = None


class PromptCacheOptions(msgspec.Struct, frozen=True):
    prewarm: bool | None = None
    """The prompt is prefilled and nothing is generated; the other fields change nothing here."""


COMPLETION_WINDOWS = {
    "2h": (IDLE_PRIORITY, timedelta(hours=2)),
    "8h": (IDLE_PRIORITY + 1, timedelta(hours=8)),
}
"""The priority of a background response by its completion window, and how long it may wait and run."""


class BackgroundOptions(msgspec.Struct, frozen=True):
    completion_window: Literal["soonest", "2h", "8h"] | None = None
    continuation_id: str | None = None
    """Accepted and ignored: background responses begin in the order in which they came."""


class ImageOptions(msgspec.Struct, frozen=True):
    context_compression: Literal["auto", "enabled", "disabled"] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_obfuscation: bool | None = None
    """Accepted and ignored: events are never padded."""


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's `structured_outputs`, and the deprecated `guided_*` names of its fields."""

    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None


Bias = Annotated[float, Meta(ge=-100, le=100)]


class SharedParameters(StructuredOutputs, frozen=True, kw_only=True):
    """Parameters of responses, chat completions and legacy completions; most are vLLM's."""

    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1024)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=32)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    seed: Seed | None = None
    stop_token_ids: StopTokens | None = None
    bad_words: BadWords | None = None
    allowed_token_ids: AllowedTokens | None = None
    logprob_token_ids: LogprobTokens | None = None
    return_tokens_as_token_ids: bool | None = None
    truncate_prompt_tokens: PromptTokenLimit | None = None
    truncation_side: TruncationSide | None = None
    thinking_token_budget: ThinkingTokens | None = None
    generation_config: GenerationConfigParam | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    """Accepted and ignored: special tokens are never part of the text."""
    priority: Annotated[int, Meta(ge=-(2**31), lt=IDLE_PRIORITY)] | None = None
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    request_id: RequestId | None = None


class CreateResponse(SharedParameters, frozen=True, kw_only=True):
    """OpenAI's parameters, then vLLM's, then the extension `expires_after`. Null means the default."""

    model: str
    input: str | Annotated[list[InputItemParam], Meta(max_length=4096)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    background_options: BackgroundOptions | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    metadata: Metadata | None = None
    context_management: Annotated[list[ContextManagement], Meta(min_length=1, max_length=16)] | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    tools: Annotated[list[ToolParam], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceMode | ToolChoiceParam | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    conversation: str | ConversationReference | None = None
    prompt: PromptReference | None = None
    safety_identifier: str | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    user: str | None = None
    include: Annotated[list[str], Meta(max_length=64)] | None = None
    service_tier: str | None = None
    image: ImageOptions | None = None
    chat_template: Annotated[str, Meta(max_length=MAX_TEMPLATE)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], Meta(max_length=256)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    enable_response_messages: bool | None = None
    include_reasoning: bool | None = None
    previous_input_messages: Annotated[list[dict[str, Any]], Meta(max_length=4096)] | None = None
    stream_options: StreamOptions | None = None
    expires_after: ExpiresAfter | None = None

    @property
    def completion_window(self) -> str | None:
        """The window of `COMPLETION_WINDOWS` within which the response may run; None if it runs at once."""
        window = self.background_options.completion_window if self.background_options else None
        return None if window == "soonest" else window

    @property
    def prewarms(self) -> bool:
        """Whether the prompt is prefilled without an answer."""
        return self.prompt_cache_options is not None and bool(self.prompt_cache_options.prewarm)


class CountInput(CreateResponse, frozen=True, kw_only=True):
    """The body of POST /v1/responses/input_tokens; the model is optional."""

    model: str | None = None  # type: ignore[assignment]  # set before it is read


class CreateMessage(CreateResponse, frozen=True, kw_only=True, tag_field="type", tag="response.create"):
    """The body of POST /v1/responses as a message."""

    generate: bool | None = None
    """False prefills the prompt without generating: a response for `previous_response_id`."""
    stream_id: Annotated[str, Meta(max_length=256)] | None = None
    """The client's id for this response's stream, repeated in every event."""


class SteerMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.steer"):
    """Additional input for a response in progress."""

    previous_response_id: str
    input: Any


ClientMessage = CreateMessage | SteerMessage


class SocketError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """An error of one message; the connection stays open."""

    status: int
    error: ErrorDetail
    stream_id: str | UnsetType = UNSET


class SteerDetail(msgspec.Struct, frozen=True):
    code: Literal["steering_not_supported"]
    message: str
    type: Literal["invalid_request_error"] = "invalid_request_error"


class Steer(msgspec.Struct, frozen=True):
    previous_response_id: str
    input: Any


class SteerFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.steer.failed"):
    """The refused input, returned to the client."""

    sequence_number: int = 0
    error: SteerDetail
    steer: Steer
