"""What chat completions and completions of plain text are asked alike, as OpenAI and vLLM have it."""

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
    """These three are of vLLM's structural tags."""
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
    """What one choice of a completion is asked, in a response's words, and what only a completion knows."""

    choice: int | None
    """Its place among the choices of a chat completion."""
    include_reasoning: bool = True
    echo: bool = False
    return_token_ids: bool = False
    streams_token_ids: bool = False
    """The stream tells of tokens as they come."""
    prompt_logprobs: int | None = None
    add_special_tokens: bool = False
    """The tokenizer puts around the prompt what it puts around texts."""
    beams: int | None = None
    """The answer is one of the so many likeliest that a beam search finds."""
    beam_rank: int = 0
    """Which of them; 0 is the best."""
    length_penalty: float = 1.0
    """Of the beam search."""
    ranked: bool = False
    """How likely the whole answer was is told with its end."""


FINGERPRINT = f"holdfast-{VERSION}"
"""Of the software that answers, as OpenAI's `system_fingerprint`: a release may answer a seed otherwise."""


class CompletionUsage(msgspec.Struct, frozen=True):
    """While a completion runs, the details are not there."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    completion_tokens_details: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


def completion_usage(prompt: int, cached: int, output: int, reasoning: int) -> CompletionUsage:
    """The tokens of a completion that has ended, in OpenAI's shape; there is no audio and no prediction."""
    of_prompt = {"cached_tokens": cached, "audio_tokens": 0}
    of_output = {
        "reasoning_tokens": reasoning,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }
    return CompletionUsage(prompt, output, prompt + output, of_prompt, of_output)
