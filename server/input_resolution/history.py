"""Limits on the stored history that requests read, and the form in which items are stored for prompts.

Sizes are read from the database before contents. An item with image data, which no model here reads, has a
second, shorter JSON in its row (`for_model`), and prompts are made from that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from server.errors import InvalidRequest
from server.limits.concurrency import SharedLimit
from server.limits.tools_and_grammars import OVER_THE_LIMIT
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
from server.store.content.stored_items import HistorySize, NewItem

MAX_BYTES = 16 * 1024 * 1024
"""Of the stored items that one request reads: its history and its item references, as JSON for the model."""
MAX_ITEMS = 50_000
MAX_TOTAL_BYTES = 128 * 1024 * 1024
"""Of all requests in preparation in this process; decoded items take about four times the memory."""
MAX_TENANT_BYTES = 48 * 1024 * 1024
MIN_SHORTENED_BYTES = 4096
"""Smaller items have no copy without image data."""
MAX_FIELD = 64 * 1024
OMITTED_URL = "data:,"

Reserve = Callable[[HistorySize], None]
"""Called with the size of items before they are read. Raises ApiError beyond a limit."""


class HistoryReads:
    """Counts the bytes of history that requests in preparation have read. Thread-safe."""

    def __init__(self) -> None:
        self._bytes = SharedLimit(
            "bytes of history in requests", total=MAX_TOTAL_BYTES, per_tenant=MAX_TENANT_BYTES
        )

    @contextmanager
    def for_request(self, tenant: str) -> Iterator["RequestReads"]:
        """The counter of one request; its bytes are released when the block ends."""
        reads = RequestReads(self._bytes, tenant)
        try:
            yield reads
        finally:
            reads.start_over()


class RequestReads:
    """The bytes of history that one request has read."""

    def __init__(self, limit: SharedLimit, tenant: str) -> None:
        self._limit = limit
        self._tenant = tenant
        self._count = 0

    def start_over(self) -> None:
        """Release the bytes counted so far, before a transaction is repeated."""
        self._limit.release(self._tenant, self._count)
        self._count = 0

    def reserve(self, size: HistorySize) -> None:
        """Count a read. Raises InvalidRequest at the request's limit, TooManyRequests or Overloaded at the
        limits of its tenant and of the process.
        """
        check_history_size(self._count + size.bytes, size.items)
        self._limit.acquire(self._tenant, size.bytes)
        self._count += size.bytes


def check_history_size(size: int, items: int = 0) -> None:
    """Raises InvalidRequest for more bytes or items than one request may read."""
    if size > MAX_BYTES or items > MAX_ITEMS:
        raise InvalidRequest(
            f"{OVER_THE_LIMIT}: what this request goes on from or refers to is more than the "
            f"{MAX_BYTES} bytes or {MAX_ITEMS} items that are read for one response: begin anew, or compact "
            "the conversation.",
            param="input",
            code="context_length_exceeded",
        )


def unbounded(_size: HistorySize) -> None:
    """A `Reserve` without limits, for a response that was accepted before."""


def model_payload(item: Item, payload: bytes) -> str | None:
    """The item's JSON without image data and long fields; None if that is `payload` itself."""
    if len(payload) <= MIN_SHORTENED_BYTES:
        return None
    shorter = _without_image_data(item)
    return None if shorter is item else encode_item(shorter).decode()


def _without_image_data(item: Item) -> Item:
    match item:
        case Message(content=list(parts)) if any(map(_has_image_data, parts)):
            return msgspec.structs.replace(item, content=[_without_data(part) for part in parts])
        case FunctionCallOutput(output=list(parts)) | CustomToolCallOutput(output=list(parts)) if any(
            map(_has_image_data, parts)
        ):
            return msgspec.structs.replace(item, output=[_without_data(part) for part in parts])
        case OtherItem(fields=fields) if any(map(_is_long, fields.values())):
            kept = {name: OMITTED_URL if _is_long(value) else value for name, value in fields.items()}
            return msgspec.structs.replace(item, fields=kept)
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


def stored_item(item: Item) -> NewItem:
    """The row of an item."""
    payload = encode_item(item)
    return NewItem(
        id=item.id,
        type=item_type(item),
        role=getattr(item, "role", None),
        status=item.status,
        name=getattr(item, "name", None),
        call_id=getattr(item, "call_id", None),
        payload=payload.decode(),
        for_model=model_payload(item, payload),
    )
