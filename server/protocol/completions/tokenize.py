"""Types of vLLM's /tokenize and /detokenize."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from server.protocol.openapi_types import ChatMessageParam
from server.protocol.responses.request import MAX_TOOLS


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


class Tokenized(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | None = None
    """The tokens' strings in the vocabulary, with `return_token_strs`."""


class DetokenizeRequest(msgspec.Struct, frozen=True):
    """The body of POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str
