"""Rows of items: `stored_item` makes one, whose pictures are stored beside it; `item_columns` are parameters.

Where a row has `for_model`, prompts are made from it: it has no long fields of unsupported items, and no data
that looks like a picture's but cannot be decoded.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from server.protocol.input_images import content_of, parse_content
from server.protocol.responses.items import (
    InputImage,
    Item,
    Message,
    OtherItem,
    encode_item,
    item_type,
    with_images,
)
from server.store import arrays
from server.store.content.images import NewImage

MIN_SHORTENED_BYTES = 4096
"""Smaller items have no copy without image data."""
MAX_FIELD = 64 * 1024
OMITTED_URL = "data:,"
_SCHEME = "data:"
_IMAGE_TYPE = re.compile(r"image/[a-z0-9/.+-]{0,58}")
_ITEM_SEPARATOR = "\x1e"
"""Stands between items: JSON cannot contain it but escaped."""
NEW_ITEMS = """
    unnest(
        cast(:ids as text[]), cast(:types as text[]), cast(:roles as text[]), cast(:statuses as text[]),
        cast(:names as text[]), cast(:call_ids as text[]), string_to_array(:payloads, chr(30)),
        string_to_array(:for_models, chr(30), ''), cast(:seconds as double precision[])
    ) with ordinality as i (id, type, role, status, name, call_id, payload, for_model, seconds, place)
    """
"""The items of `item_columns` as rows, the first at place 1."""
COLUMNS = "id, type, role, status, name, call_id, payload, size, for_model"
VALUES = "id, type, role, status, name, call_id, cast(payload as json), octet_length(payload), for_model"
"""SQL of a row's columns, and of their values from NEW_ITEMS."""
ImagesByUrl = dict[str, NewImage | None]
"""Pictures by data URL; None for one that is no picture's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewItem:
    """An item to insert; `payload` is its JSON, the other columns are for SQL users."""

    id: str
    type: str
    role: str | None
    status: str
    name: str | None = None
    call_id: str | None = None
    payload: str
    for_model: str | None = None
    """The JSON that prompts use, if it is shorter than the payload."""
    seconds: float | None = None
    """The duration of the call that the server made."""
    images: Sequence[NewImage] = ()
    """The pictures that the item names, which `insert_items_of` does not insert."""


def stored_item(item: Item, decoded: ImagesByUrl | None = None) -> NewItem:
    """The row of an item. `decoded` has the pictures of items before it, and gets this one's."""
    if isinstance(item, Message) and not any(isinstance(part, InputImage) for part in item.content):
        payload = encode_item(item).decode()
        return NewItem(id=item.id, type="message", role=item.role, status=item.status, payload=payload)
    images: list[NewImage] = []
    stored = with_images(item, lambda part: _stored_image(part, {} if decoded is None else decoded, images))
    encoded = encode_item(stored)
    shorter = _without_image_data(stored) if len(encoded) > MIN_SHORTENED_BYTES else stored
    return NewItem(
        id=item.id,
        type=item_type(item),
        role=item.role if isinstance(item, Message) else None,
        status=item.status,
        name=getattr(item, "name", None),
        call_id=getattr(item, "call_id", None),
        payload=encoded.decode(),
        for_model=None if shorter is stored else encode_item(shorter).decode(),
        images=tuple({image.digest: image for image in images}.values()),
    )


def stored_items_of(items: Sequence[Item]) -> list[NewItem]:
    """The rows of items; a picture that several of them have is decoded once."""
    decoded: ImagesByUrl = {}
    return [stored_item(item, decoded) for item in items]


def item_columns(new: Sequence[NewItem]) -> dict[str, object]:
    """Items as parameters of a statement; long columns are joined, as escaping array elements is slow."""
    return {
        "ids": arrays.literal([item.id for item in new]),
        "types": arrays.literal([item.type for item in new]),
        "roles": arrays.literal([item.role for item in new]),
        "statuses": arrays.literal([item.status for item in new]),
        "names": arrays.literal([item.name for item in new]),
        "call_ids": arrays.literal([item.call_id for item in new]),
        "payloads": _ITEM_SEPARATOR.join([item.payload for item in new]),
        "seconds": arrays.literal([item.seconds for item in new]),
        "for_models": _ITEM_SEPARATOR.join([item.for_model or "" for item in new]),
    }


def _stored_image(part: InputImage, decoded: ImagesByUrl, images: list[NewImage]) -> InputImage:
    """The part with its picture's digest, which is appended to `images`; the same part if it has no data."""
    if (digest := parse_content(part.content)) is not None:
        images.append(NewImage(digest, "", None))
        return part
    source = part.source
    if source is None:
        return part
    if source not in decoded:
        decoded[source] = decode_image(source)
    image = decoded[source]
    if image is None:
        return part if part.content is UNSET else msgspec.structs.replace(part, content=UNSET)
    images.append(image)
    url = None if part.content is UNSET else part.image_url
    return msgspec.structs.replace(part, image_url=url, content=content_of(image.digest))


def decode_image(url: str) -> NewImage | None:
    """The picture of a base64 data URL of an image type; None for any other URL."""
    if url[: len(_SCHEME)].lower() != _SCHEME:
        return None
    head, _, body = url.partition(",")
    media_type, *parameters = head[len(_SCHEME) :].lower().split(";")
    if "base64" not in parameters or not _IMAGE_TYPE.fullmatch(media_type):
        return None
    try:
        data = base64.b64decode(body.encode().translate(None, b" \t\r\n"), validate=True)
    except ValueError:  # binascii.Error and UnicodeEncodeError among them
        return None
    return NewImage(hashlib.sha256(data).digest(), media_type, data) if data else None


def _without_image_data(item: Item) -> Item:
    """The item without undecodable image data and long fields; the same object if it has none."""
    if isinstance(item, OtherItem):
        if not any(map(_is_long, item.fields.values())):
            return item
        short = {name: OMITTED_URL if _is_long(value) else value for name, value in item.fields.items()}
        return msgspec.structs.replace(item, fields=short)
    return with_images(item, _without_data)


def _is_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > MAX_FIELD


def _without_data(part: InputImage) -> InputImage:
    url = part.image_url or ""
    is_data = url[: len(_SCHEME)].lower() == _SCHEME and len(url) > len(OMITTED_URL)
    return msgspec.structs.replace(part, image_url=OMITTED_URL) if is_data or _is_long(url) else part
