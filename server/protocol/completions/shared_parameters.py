"""Parameters and usage common to chat completions and legacy completions, as in OpenAI's API and vLLM."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from server.protocol.responses.request import CreateResponse, SharedParameters
from server.version import VERSION

MAX_CHOICES = 16


class ChatStreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True):
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    structures: list[dict[str, Any]] | None = None
    """vLLM's structural tags, as the next two fields."""
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


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
    user: Annotated[str, Meta(max_length=512)] | None = None


class ChoiceRequest(CreateResponse, frozen=True, kw_only=True):
    """One choice of a completion as a response request, with the parameters that only completions have."""

    choice: int | None
    """Its index among the choices of a chat completion; None for legacy completions."""
    include_reasoning: bool = True
    echo: bool = False
    return_token_ids: bool = False
    streams_token_ids: bool = msgspec.field(default=False, name="tells_tokens")
    """The stream has a `holdfast:tokens` event with each group of token ids.

    Requests are stored with their responses, so earlier releases' name of the field stays.
    """
    prompt_logprobs: int | None = None
    add_special_tokens: bool = False
    """The tokenizer's own special tokens (BOS, EOS) are added around the prompt."""
    beams: int | None = None
    """The beam width; None without beam search."""
    beam_rank: int = 0
    """The choice's rank among the beams; 0 is the best."""
    length_penalty: float = 1.0
    """The beam search's exponent for length normalization."""
    ranked: bool = False
    """The Response has `cumulative_logprob`, by which `best_of` ranks choices."""


FINGERPRINT = f"holdfast-{VERSION}"
"""`system_fingerprint`: releases may differ in their output for the same seed."""


class CompletionUsage(msgspec.Struct, frozen=True):
    """OpenAI's `usage`; without details while the completion is in progress."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    completion_tokens_details: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


def completion_usage(prompt: int, cached: int, output: int, reasoning: int) -> CompletionUsage:
    """The usage of a completed completion; audio and prediction tokens are 0."""
    of_prompt = {"cached_tokens": cached, "audio_tokens": 0}
    of_output = {
        "reasoning_tokens": reasoning,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }
    return CompletionUsage(prompt, output, prompt + output, of_prompt, of_output)
