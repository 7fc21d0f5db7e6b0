"""Adds fields of OpenAI's objects that earlier releases did not store. Pure.

Stored bytes are not changed: the field is added whenever they are rendered, deterministically, so that every
replay returns the same bytes.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

_TEXT_PART = '"type":"output_text"'
_LOGPROBS = '"logprobs":'
_END_WITHOUT_LOGPROBS = '"annotations":[]}'
"""The end of an output text part without `logprobs`. Inside JSON strings quotes are escaped, so only JSON
syntax matches."""


def with_logprobs(payload: str) -> str:
    """The JSON of an event or item, with `logprobs: []` added to output text parts that have none."""
    parts = payload.count(_TEXT_PART)
    if not parts or (_END_WITHOUT_LOGPROBS not in payload and payload.count(_LOGPROBS) >= parts):
        return payload
    with suppress(msgspec.DecodeError):  # damaged JSON is reported where it is decoded
        value = msgspec.json.decode(payload)
        incomplete = [part for part in _text_parts(value) if "logprobs" not in part]
        for part in incomplete:
            part["logprobs"] = []
        if incomplete:
            return msgspec.json.encode(value).decode()
    return payload


def _text_parts(value: Any) -> Iterator[dict[str, Any]]:
    """The output text parts of an item, or of an event's part, item or response."""
    if not isinstance(value, dict):
        return
    response = value.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    items = [value, value.get("item"), *(output if isinstance(output, list) else ())]
    candidates = [value.get("part")]
    for item in items:
        if isinstance(item, dict):
            for name in ("content", "output"):
                candidates += item[name] if isinstance(item.get(name), list) else ()
    for part in candidates:
        if isinstance(part, dict) and part.get("type") == "output_text":
            yield part


def with_name(body: str, names: Mapping[int, str]) -> str:
    """The JSON of a `function_call_arguments.done` event with `name` added; `names` is by output index."""
    value = msgspec.json.decode(body)
    name = names.get(value["output_index"])
    if name is None:
        return body
    completed: dict[str, Any] = {}
    for field, content in value.items():
        completed[field] = content
        if field == "item_id":
            completed["name"] = name
    return msgspec.json.encode(completed).decode()
