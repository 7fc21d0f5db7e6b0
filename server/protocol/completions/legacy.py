"""Types of the legacy /v1/completions: OpenAI's and vLLM's request parameters, and completions."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.protocol.completions.shared_parameters import (
    FINGERPRINT,
    ChoiceRequest,
    CompletionParameters,
    CompletionUsage,
)

MAX_TEXTS = 128
"""Maximum choices of one request, of all its prompts together."""
MAX_BEST_OF = 20
DEFAULT_TOKENS = 16

Prompts = str | Annotated[list[str | int | Annotated[list[int], Meta(min_length=1)]], Meta(min_length=1)]
"""A text, token ids, or a list of either."""


class TextRequest(CompletionParameters, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: Prompts
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_BEST_OF)] | None = None
    add_special_tokens: bool | None = None


class PlainRequest(ChoiceRequest, frozen=True, kw_only=True):
    """The request of one choice, whose prompt is these tokens."""

    token_ids: tuple[int, ...]


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
