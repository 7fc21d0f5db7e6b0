"""A page of a list, in the shape that OpenAI's lists have."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, Literal, TypeVar

import msgspec

from server.protocol.completions.chat import StoredCompletion, StoredMessage
from server.protocol.earlier_releases import with_logprobs
from server.protocol.responses.items import Item
from server.protocol.responses.response import Response
from server.protocol.typed import decode_as

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """`last_id` is what `after` takes for the next page; an empty page has neither id."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CompletionPage(Page[StoredCompletion], frozen=True, kw_only=True):
    """What a page of stored completions says."""


class MessagePage(Page[StoredMessage], frozen=True, kw_only=True):
    """What a page of a stored completion's messages says."""


class ItemPage(Page[Item], frozen=True, kw_only=True):
    """What a page of items says."""


class ResponsePage(Page[Response], frozen=True, kw_only=True):
    """What a page of responses says."""


class _IdField(msgspec.Struct):
    id: str


MAX_BYTES = 8 * 1024 * 1024
"""Of a page; the object with which it has more is its last one, and the rest is on the next page."""


def make_page(found: Sequence[bytes], limit: int, *, more: bool | None = None) -> Page[msgspec.Raw]:
    """The page of at most `limit` objects, given as JSON.

    `more` says whether others follow them; by default `found` has one beyond the limit if there are.
    """
    data = [msgspec.Raw(with_logprobs(payload.decode()).encode()) for payload in found[:limit]]
    ends = [decode_as(data[place], _IdField).id for place in (0, -1)] if data else [None, None]
    has_more = len(found) > limit if more is None else more
    return Page(data=data, first_id=ends[0], last_id=ends[1], has_more=has_more)


def within_page_bytes(found: Iterable[bytes]) -> Iterator[bytes]:
    """The first objects, up to the one with which they have more than a page's bytes."""
    total = 0
    for payload in found:
        yield payload
        total += len(payload)
        if total >= MAX_BYTES:
            return
