"""Pages of OpenAI's list endpoints."""

import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from server.protocol.completions.objects import StoredCompletion, StoredMessage
from server.protocol.conversation_objects import Conversation
from server.protocol.decode import decode_as
from server.protocol.responses.items import Item
from server.protocol.responses.response import Response

T = TypeVar("T")


class PageRequest(NamedTuple):
    """The part of a list that is asked for; by default the whole list, the oldest or smallest first."""

    after: Any = None
    """The id, or the values by which the list is sorted, of the object that the page comes after."""
    limit: int = 2**31 - 2
    newest_first: bool = False


ALL = PageRequest()
ALL_NEWEST_FIRST = PageRequest(newest_first=True)


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """`after=last_id` requests the next page; an empty page has null ids."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_type(name: str, kind: Any, objects: str) -> type[Page[Any]]:
    """The type of pages of this kind of objects, by its name and its objects' in the API's document."""
    own = {"__doc__": f"A page of {objects}."}
    options = {"frozen": True, "kw_only": True}
    return types.new_class(name, (Page[kind],), options, lambda body: body.update(own))


CompletionPage = page_type("CompletionPage", StoredCompletion, "stored completions")
MessagePage = page_type("MessagePage", StoredMessage, "a stored completion's messages")
ItemPage = page_type("ItemPage", Item, "items")
ResponsePage = page_type("ResponsePage", Response, "responses")
ConversationPage = page_type("ConversationPage", Conversation, "conversations")


class _IdField(msgspec.Struct):
    id: str


MAX_BYTES = 8 * 1024 * 1024
"""Size limit of a page; the object that exceeds it is the page's last one."""


def make_page(objects: Sequence[bytes], limit: int, *, more: bool | None = None) -> Page[msgspec.Raw]:
    """A page of at most `limit` objects in JSON; more follow by default if there is one beyond that."""
    data = [msgspec.Raw(payload) for payload in objects[:limit]]
    ends = [decode_as(data[index], _IdField).id for index in (0, -1)] if data else [None, None]
    has_more = len(objects) > limit if more is None else more
    return Page(data=data, first_id=ends[0], last_id=ends[1], has_more=has_more)


def within_page_bytes(objects: Iterable[bytes]) -> Iterator[bytes]:
    """The first objects, up to the one that exceeds `MAX_BYTES`."""
    total = 0
    for payload in objects:
        yield payload
        total += len(payload)
        if total >= MAX_BYTES:
            return
