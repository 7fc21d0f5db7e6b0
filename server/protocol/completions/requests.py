"""Request bodies of Chat Completions, /v1/completions and /tokenize; a choice as a response request."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from server.protocol.responses.request import (
    MAX_TEMPLATE,
    MAX_TOOLS,
    CreateResponse,
    Effort,
    Metadata,
    SharedParameters,
)

MAX_CHOICES = 16
MAX_TEXTS = 128
"""Maximum choices of one request, of all its prompts together."""
MAX_BEST_OF = 20
DEFAULT_TOKENS = 16
_CONTENT: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}


def _message(role: dict[str, Any], **required: dict[str, Any]) -> dict[str, Any]:
    return {"properties": {"role": role, **required}, "required": ["role", *required]}


_MESSAGES = [
    _message({"enum": ["system", "developer", "user"]}, content=_CONTENT),
    _message({"const": "assistant"}),
    _message({"const": "tool"}, tool_call_id={"type": "string"}, content=_CONTENT),
]
ChatMessageParam = Annotated[dict[str, Any], Meta(extra_json_schema={"anyOf": _MESSAGES})]
Prompts = str | Annotated[list[str | int | Annotated[list[int], Meta(min_length=1)]], Meta(min_length=1)]
"""A text, token ids, or a list of either."""


class ChatStreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True):
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """A `json_object` with a schema, as llama.cpp reads it, is a `json_schema` of an object."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    structures: list[dict[str, Any]] | None = None
    """vLLM's structural tags, as the next two fields."""
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.type == "json_object" and self.schema:
            msgspec.structs.force_setattr(self, "type", "json_schema")
            of_object = JsonSchema(name="answer", schema={"type": "object", **self.schema})
            msgspec.structs.force_setattr(self, "json_schema", of_object)


class CompletionParameters(SharedParameters, frozen=True, kw_only=True):
    """Null means the default everywhere; unknown fields are ignored."""

    model: str
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    response_format: ResponseFormat | None = None
    echo: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Meta(ge=-10, le=10)] | None = None
    service_tier: Annotated[str, Meta(max_length=64)] | None = None
    """Checked and ignored: there is one tier."""
    user: Annotated[str, Meta(max_length=512)] | None = None


class PredictedText(msgspec.Struct, frozen=True):
    text: str
    type: Literal["text"]


class Prediction(msgspec.Struct, frozen=True):
    """OpenAI's predicted output: content that the answer may repeat."""

    content: str | list[PredictedText]
    type: Literal["content"]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


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
    prediction: Prediction | None = None
    modalities: list[str] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None


class UpdateCompletion(msgspec.Struct, frozen=True):
    """The body of POST /v1/chat/completions/{id}; null removes all metadata."""

    metadata: Metadata | None


class TextRequest(CompletionParameters, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: Prompts
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_BEST_OF)] | None = None
    add_special_tokens: bool | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /tokenize: a text, or chat messages with parameters of the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessageParam], Meta(min_length=1, max_length=4096)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True):
    """The body of POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class ChoiceRequest(CreateResponse, frozen=True, kw_only=True):
    """One choice of a completion as a response request, with the parameters that only completions have."""

    choice: int | None
    """Its index among the choices of a chat completion; None for legacy completions."""
    include_reasoning: bool = True
    echo: bool = False
    return_token_ids: bool = False
    streams_token_ids: bool = msgspec.field(default=False, name="tells_tokens")
    """Each group of token ids is a `holdfast:tokens` event of the stream. Stored as `tells_tokens`."""
    prompt_logprobs: int | None = None
    add_special_tokens: bool = False
    """The tokenizer's own special tokens (BOS, EOS) are added around the prompt."""
    beams: int | None = None
    """The beam width; None without beam search."""
    beam_rank: int = 0
    """The choice's rank among the beams; 0 is the best."""
    length_penalty: float = 1.0
    """The beam search's exponent for length normalization."""
    prediction: str = ""
    """The text that the answer may repeat; the Response says how many of its tokens did."""
    ranked: bool = False
    """The Response has `cumulative_logprob`, by which `best_of` ranks choices."""


class PlainRequest(ChoiceRequest, frozen=True, kw_only=True):
    """The request of one choice, whose prompt is these tokens."""

    token_ids: tuple[int, ...]
