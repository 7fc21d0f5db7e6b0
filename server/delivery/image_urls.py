"""Stored items as clients get them: each picture with its `image_url`, or with null in its place.

`content`, by which items name stored pictures, is removed from all of them.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import UNSET

from server.protocol.input_images import CONTENT_PREFIX, data_url, parse_content
from server.protocol.list_pages import MAX_BYTES
from server.protocol.responses.items import (
    ContentPart,
    InputImage,
    InputText,
    Item,
    decode_item,
    encode_item,
    images_of,
    with_images,
)
from server.store.content import images
from server.store.content.images import StoredImage
from server.store.content.stored_items import PayloadPage
from server.store.database import Connection

log = logging.getLogger("holdfast.read")

IMAGE_OMITTED = "[An image was here that is left out.]"
_NAMES_IMAGE = f'"content":"{CONTENT_PREFIX}'
_HAS_IMAGE = '"type":"input_image"'
"""In the JSON of every item with such a part; text cannot contain it, as its quotes are escaped."""
_URL_BYTES = 64
"""At least as many as a data URL has before its base64, for a usual media type."""


def name_images(payloads: Iterable[str]) -> bool:
    """Whether the JSON of stored items names pictures, which `with_image_urls` reads."""
    return any(_NAMES_IMAGE in payload for payload in payloads)


def with_image_urls(
    connection: Connection,
    tenant: str,
    payloads: Sequence[str],
    *,
    known: Mapping[bytes, StoredImage] | None = None,
    max_bytes: int | None = None,
) -> list[str]:
    """The JSON of stored items with their pictures' URLs.

    With `max_bytes`, only the leading items, of which the last is the one that reaches them. `known` are
    pictures that need not be read.
    """
    decoded = [_decode(payload) if _NAMES_IMAGE in payload else None for payload in payloads]
    needed = [_digests(item) for item in decoded]
    sizes = images.sizes(connection, tenant, set().union(*needed)) if any(needed) else {}
    total = 0
    for count, (payload, digests) in enumerate(zip(payloads, needed, strict=True)):
        if max_bytes is not None and total >= max_bytes:
            payloads, decoded, needed = payloads[:count], decoded[:count], needed[:count]
            break
        total += len(payload) + sum(
            times * (_URL_BYTES + _base64_bytes(sizes.get(digest, 0))) for digest, times in digests.items()
        )
    loaded = _load(connection, tenant, set().union(*needed), known or {})
    return [
        payload if item is None else encode_item(_with_urls(item, loaded)).decode()
        for payload, item in zip(payloads, decoded, strict=True)
    ]


def page_with_image_urls(
    connection: Connection, tenant: str, page: PayloadPage, max_bytes: int = MAX_BYTES
) -> PayloadPage:
    """The page with its pictures' URLs, which count among its bytes."""
    payloads = with_image_urls(connection, tenant, page.payloads, max_bytes=max_bytes)
    return PayloadPage(payloads, page.more or len(payloads) < len(page.payloads))


def without_image_urls(payloads: Sequence[str]) -> list[str]:
    """The JSON of stored items whose pictures have a null `image_url`."""
    return [_without_urls(payload) if _HAS_IMAGE in payload else payload for payload in payloads]


def items_with_image_urls(
    connection: Connection, tenant: str, items: Sequence[Item], max_bytes: int | None = None
) -> list[Item]:
    """Items with their pictures' URLs; beyond `max_bytes`, the last ones first, others become a text."""
    allowed = _newest_within(connection, tenant, items, max_bytes) if max_bytes is not None else None
    needed = {digest for item in items for digest in _digests(item)}
    loaded = _load(connection, tenant, needed if allowed is None else needed & allowed, {})
    return [_with_urls(item, loaded, allowed) for item in items]


def _newest_within(connection: Connection, tenant: str, items: Sequence[Item], max_bytes: int) -> set[bytes]:
    """The pictures of the newest items whose URLs, each as often as it is named, fit together."""
    named = Counter(digest for item in items for digest in _digests(item).elements())
    sizes = images.sizes(connection, tenant, named)
    allowed: set[bytes] = set()
    total = 0
    for item in reversed(items):
        for digest in _digests(item):
            if digest not in allowed:
                total += named[digest] * _base64_bytes(sizes.get(digest, 0))
                if total > max_bytes:
                    return allowed
                allowed.add(digest)
    return allowed


def _base64_bytes(size: int) -> int:
    return -(-size // 3) * 4


def _decode(payload: str) -> Item | None:
    """The item; None, logged, if it cannot be decoded, as a damaged one is given as it is."""
    try:
        return decode_item(payload)
    except msgspec.MsgspecError:
        log.exception("an item with pictures cannot be decoded")
        return None


def _digests(item: Item | None) -> Counter[bytes]:
    """The stored pictures whose data URLs the item needs, and how often."""
    parts = images_of(item) if item is not None else ()
    digests = [parse_content(part.content) for part in parts if part.image_url is None]
    return Counter(digest for digest in digests if digest is not None)


def _load(
    connection: Connection, tenant: str, digests: Collection[bytes], known: Mapping[bytes, StoredImage]
) -> dict[bytes, StoredImage]:
    pictures = {digest: known[digest] for digest in digests if digest in known}
    pictures |= images.load(connection, tenant, [digest for digest in digests if digest not in known])
    if len(pictures) < len(digests):
        log.error("%d pictures of stored items are not there", len(digests) - len(pictures))
    return pictures


def _with_urls(
    item: Item, loaded: Mapping[bytes, StoredImage], allowed: Collection[bytes] | None = None
) -> Item:
    def with_url(part: InputImage) -> ContentPart:
        digest = parse_content(part.content) if part.image_url is None else None
        if digest is None:
            return part if part.content is UNSET else msgspec.structs.replace(part, content=UNSET)
        if allowed is not None and digest not in allowed:
            return InputText(IMAGE_OMITTED)
        image = loaded.get(digest)
        url = data_url(image.media_type, image.data) if image else None
        return msgspec.structs.replace(part, image_url=url, content=UNSET)

    return with_images(item, with_url)


def _without_urls(payload: str) -> str:
    item = _decode(payload)
    if item is None:
        return payload
    removed = with_images(item, lambda part: msgspec.structs.replace(part, image_url=None, content=UNSET))
    return payload if removed is item else encode_item(removed).decode()
