"""Ids: UUIDv7 in the database, OpenAI's prefixed strings in the API, so no lookup table is needed. Items' are
derived from the response's and their index, so a run rebuilt after a crash generates the same ones.
"""

import os
import re
import time
from functools import partial
from typing import Literal
from uuid import UUID

_OUTPUT_ID = re.compile(r"[a-z]{2,8}_[0-9a-f]{32}o[0-9a-f]{1,8}(_[0-9a-f]{32})?")
_RESPONSE_ITEM = re.compile(r"[a-z]{2,8}_([0-9a-f]{32})[io][0-9a-f]{1,8}(_[0-9a-f]{32})?")
_TAGGED_ID = re.compile(r"(mcpr_[0-9a-f]{32}[ioc][0-9a-f]{1,8})_([0-9a-f]{32})")
MAX_REQUEST_ID = 128
MAX_ITEM_ID = 64
"""Characters of an item's id that a client sends; OpenAI's limit."""
_ITEM_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_ITEM_ID}}}")
ItemSource = Literal["i", "o", "c"]
"""The item's list: a response's input, its output, or one request that adds items to a conversation."""


def new_uuid() -> UUID:
    """A UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    randomness = int.from_bytes(os.urandom(10), "big")
    high = (milliseconds << 16) | 0x7000 | (randomness >> 68)
    low = 0x8000_0000_0000_0000 | (randomness & 0x3FFF_FFFF_FFFF_FFFF)
    return UUID(int=(high << 64) | low)


def min_uuid_at(milliseconds: int) -> UUID:
    """The lower bound of all UUIDv7 generated at or after that Unix time."""
    return UUID(int=max(milliseconds, 0) << 80)


def choice_id(first: UUID, index: int) -> UUID:
    """The UUID of a completion's choice from that of its first choice, and vice versa."""
    return UUID(int=first.int ^ index)


def unix_seconds(uuid: UUID) -> int:
    """The Unix time in seconds of a UUIDv7; 0 for any other version."""
    return (uuid.int >> 80) // 1000 if uuid.version == 7 else 0


def _write(uuid: UUID, prefix: str) -> str:
    return f"{prefix}{uuid.hex}"


response_id = partial(_write, prefix="resp_")
conversation_id = partial(_write, prefix="conv_")
webhook_endpoint_id = partial(_write, prefix="we_")
webhook_id = partial(_write, prefix="wh_")
"""The `webhook-id` of a delivery, the same in each of its attempts."""
event_id = partial(_write, prefix="evt_")
completion_id = partial(_write, prefix="chatcmpl-")
text_completion_id = partial(_write, prefix="cmpl-")


def _parse(expected: str, text: str, divider: str = "_") -> UUID | None:
    prefix, _, digits = text.partition(divider)
    if prefix != expected or len(digits) != 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    return UUID(hex=digits)


def parse_uuid(text: str) -> UUID | None:
    """The UUID that a text is; None for other text."""
    try:
        return UUID(text)
    except ValueError:
        return None


# The UUID of an id that this server could have made, else None.
parse_response_id = partial(_parse, "resp")
parse_conversation_id = partial(_parse, "conv")
parse_webhook_endpoint_id = partial(_parse, "we")
parse_webhook_id = partial(_parse, "wh")
parse_container_id = partial(_parse, "cntr")
parse_completion_id = partial(_parse, "chatcmpl", divider="-")


def item_id(prefix: str, response: UUID, side: ItemSource, index: int) -> str:
    """The id of the item at `index` of its list, with the prefix of its type (`ID_PREFIXES`)."""
    return f"{prefix}_{response.hex}{side}{index:x}"


def is_item_id(text: str, prefix: str = "") -> bool:
    """Whether an item that a client sends may have this id, which begins with its type's prefix."""
    return text.startswith(prefix) and _ITEM_ID.fullmatch(text) is not None


def response_of_item(text: str) -> UUID | None:
    """The response in whose lists the item with this id is; None for ids of another form."""
    match = _RESPONSE_ITEM.fullmatch(text)
    return UUID(hex=match[1]) if match else None


def split_id_tag(text: str) -> tuple[str, str]:
    """An approval request's id without its tag, and the tag; an empty tag for other ids."""
    match = _TAGGED_ID.fullmatch(text)
    return (match[1], match[2]) if match else (text, "")


def is_output_id(text: str) -> bool:
    return _OUTPUT_ID.fullmatch(text) is not None


def call_id(response: UUID, index: int) -> str:
    """The `call_id` of the output item at `index`, for models that generate none."""
    return f"call_{response.hex}{index:x}"


def new_request_id() -> str:
    return f"req_{new_uuid().hex}"


def is_request_id(text: str) -> bool:
    """Whether a client may use this `X-Request-Id`: visible ASCII of at most `MAX_REQUEST_ID` characters."""
    return 1 <= len(text) <= MAX_REQUEST_ID and text.isascii() and text.isprintable() and " " not in text


def request_id_of(header: str | None) -> str:
    """A valid `X-Request-Id` header, or else a new id."""
    return header if header is not None and is_request_id(header) else new_request_id()


def token_id_name(token_id: int) -> str:
    """The stand-in for a token's text, as in vLLM: distinct even for tokens whose texts are equal."""
    return f"token_id:{token_id}"
