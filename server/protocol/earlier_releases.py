"""What earlier releases stored without a field that OpenAI's objects have, completed for its readers. Pure.

Stored bytes stay as they are: a field that was added since is filled in each time they are rendered, always
in the same way, so that a replay gives the same bytes every time.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

_TEXT_PART = '"type":"output_text"'
_LOGPROBS = '"logprobs":'
_END_WITHOUT_LOGPROBS = '"annotations":[]}'
"""How a part of text ended while it had no `logprobs`. Within a JSON string each quote has a backslash."""


def with_logprobs(payload: str) -> str:
    """An event's or item's JSON in which each part of output text has `logprobs`, an empty list at least."""
    parts = payload.count(_TEXT_PART)
    if not parts or (_END_WITHOUT_LOGPROBS not in payload and payload.count(_LOGPROBS) >= parts):
        return payload
    with suppress(msgspec.DecodeError):  # damaged JSON is for its reader to report
        value = msgspec.json.decode(payload)
        incomplete = [part for part in _text_parts(value) if "logprobs" not in part]
        for part in incomplete:
            part["logprobs"] = []
        if incomplete:
            return msgspec.json.encode(value).decode()
    return payload


def _text_parts(value: Any) -> Iterator[dict[str, Any]]:
    """The parts of output text of an item, or of all that an event tells."""
    if not isinstance(value, dict):
        return
    response = value.get("response")
    told = response.get("output") if isinstance(response, dict) else None
    items = [value, value.get("item"), *(told if isinstance(told, list) else ())]
    candidates = [value.get("part")]
    for item in items:
        if isinstance(item, dict):
            for name in ("content", "output"):
                candidates += item[name] if isinstance(item.get(name), list) else ()
    for part in candidates:
        if isinstance(part, dict) and part.get("type") == "output_text":
            yield part


def with_name(body: str, names: Mapping[int, str]) -> str:
    """The end of a function call's arguments with the function's name, if that of its place is known."""
    value = msgspec.json.decode(body)
    name = names.get(value["output_index"])
    if name is None:
        return body
    told: dict[str, Any] = {}
    for field, content in value.items():
        told[field] = content
        if field == "item_id":
            told["name"] = name
    return msgspec.json.encode(told).decode()
