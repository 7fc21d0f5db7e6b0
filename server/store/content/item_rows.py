"""`stored_item`: the row of an item, with a shorter JSON without image data for prompts (`for_model`).

No model here reads images. Where a row has `for_model`, prompts are made from it.
"""

import msgspec

from server.protocol.responses.items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    InputImage,
    Item,
    Message,
    OtherItem,
    encode_item,
    item_type,
)
from server.store.content.stored_items import NewItem

MIN_SHORTENED_BYTES = 4096
"""Smaller items have no copy without image data."""
MAX_FIELD = 64 * 1024
OMITTED_URL = "data:,"


def stored_item(item: Item) -> NewItem:
    """The row of an item."""
    payload = encode_item(item)
    shorter = _without_image_data(item) if len(payload) > MIN_SHORTENED_BYTES else item
    return NewItem(
        id=item.id,
        type=item_type(item),
        role=getattr(item, "role", None),
        status=item.status,
        name=getattr(item, "name", None),
        call_id=getattr(item, "call_id", None),
        payload=payload.decode(),
        for_model=None if shorter is item else encode_item(shorter).decode(),
    )


def _without_image_data(item: Item) -> Item:
    """The item without image data and long fields; the same object if it has none."""
    match item:
        case Message(content=list(parts)) if any(map(_has_image_data, parts)):
            return msgspec.structs.replace(item, content=[_without_data(part) for part in parts])
        case FunctionCallOutput(output=list(parts)) | CustomToolCallOutput(output=list(parts)) if any(
            map(_has_image_data, parts)
        ):
            return msgspec.structs.replace(item, output=[_without_data(part) for part in parts])
        case OtherItem(fields=fields) if any(map(_is_long, fields.values())):
            short = {name: OMITTED_URL if _is_long(value) else value for name, value in fields.items()}
            return msgspec.structs.replace(item, fields=short)
    return item


def _is_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > MAX_FIELD


def _has_image_data(part: object) -> bool:
    return (
        isinstance(part, InputImage) and part.image_url is not None and len(part.image_url) > len(OMITTED_URL)
    )


def _without_data(part: object) -> object:
    if isinstance(part, InputImage) and _has_image_data(part):
        return msgspec.structs.replace(part, image_url=OMITTED_URL)
    return part
