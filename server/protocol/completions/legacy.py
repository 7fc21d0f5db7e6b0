"""Completions of plain text, OpenAI's legacy API: the request as OpenAI and vLLM have it, and the answer."""

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
"""Answers that one request may have, those to all of its prompts together."""
MAX_BEST_OF = 20
DEFAULT_TOKENS = 16

Prompts = str | Annotated[list[str | int | Annotated[list[int], Meta(min_length=1)]], Meta(min_length=1)]
"""A text, or the ids of its tokens, or a list of either."""


class TextRequest(CompletionParameters, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: Prompts
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_BEST_OF)] | None = None
    add_special_tokens: bool | None = None


class PlainRequest(ChoiceRequest, frozen=True, kw_only=True):
    """What one answer is asked: the model reads these tokens and nothing else."""

    token_ids: tuple[int, ...]


class LegacyLogprobs(msgspec.Struct, frozen=True):
    """One entry for each token in every list; offsets count characters of the choice's text."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


TextFinish = Literal["stop", "length"]


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, or in a stream a piece of one, which has its finish reason at its end."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: TextFinish | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    """vLLM's, beside a finish reason: the stop string or the id of the stop token that ended the text."""
    token_ids: list[int] | UnsetType | None = UNSET
    """These three are vLLM's; unless they were asked for, they are null, and absent in a stream."""
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: list[Any] | UnsetType | None = UNSET


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered, and each event of a stream, where usage is told if that was asked for."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    system_fingerprint: str = FINGERPRINT
