"""Pictures in calls to vLLM: `content_parts` beside token ids, and the question which tokens it makes of one.

From vLLM 0.32: with `content_parts` the prompt has one token for each picture, which vLLM's own processor
replaces with as many as the picture takes. `/v1/chat/completions/render` answers with a chat's tokens and the
place of each picture in them, and computes nothing.
"""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.remote.engine_protocol import CallFault, HttpRequest, ImageFile
from engine.request import PromptImage, one_line

RENDER = "/v1/chat/completions/render"
_URLS = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"RIFF": "image/webp",
    b"GIF8": "image/gif",
}


class _Placeholder(msgspec.Struct):
    offset: int
    length: int


class _Features(msgspec.Struct):
    mm_placeholders: dict[str, list[_Placeholder]]


class _Rendered(msgspec.Struct):
    token_ids: list[int]
    features: _Features


_RENDERED = msgspec.json.Decoder(_Rendered)


def image_request(image: ImageFile, model: str) -> HttpRequest:
    """A chat whose only message is the picture."""
    url = {"url": _data_url(image.data)}
    part = {"type": "image_url", "image_url": url, "uuid": _cache_id(image.digest, image.cache_salt)}
    body = {"model": model, "messages": [{"role": "user", "content": [part]}], "mm_payload": "none"}
    return HttpRequest("POST", RENDER, msgspec.json.encode(body))


def read_image_tokens(body: bytes) -> tuple[int, ...]:
    """The tokens of the chat's picture. Raises `CallFault`."""
    try:
        rendered = _RENDERED.decode(body)
        (placeholder,) = rendered.features.mm_placeholders["image"]
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        message = f"its answer to {RENDER} is not understood: {one_line(repr(error))}"
        raise CallFault("failed", message) from error
    start = max(0, placeholder.offset)
    return tuple(rendered.token_ids[start : start + max(0, placeholder.length)])


def with_images(tokens: Sequence[int], images: Sequence[PromptImage], cache_salt: str) -> dict[str, Any]:
    """The fields of a call for a prompt with pictures: each has one token, and a part with its file."""
    short: list[int] = []
    end = 0
    for image in images:
        short += tokens[end : image.start + 1]
        end = image.end
    parts = [
        {"type": "image_url", "url": _data_url(image.data), "uuid": _cache_id(image.digest, cache_salt)}
        for image in images
    ]
    return {"token_ids": [*short, *tokens[end:]], "content_parts": parts}


def _data_url(data: bytes) -> str:
    media_type = next((name for start, name in _URLS.items() if data.startswith(start)), "image/png")
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _cache_id(digest: bytes, cache_salt: str) -> str:
    """The id by which vLLM caches the picture. Requests of different salts share nothing of it."""
    return hashlib.sha256(cache_salt.encode() + b"\0" + digest).hexdigest()
