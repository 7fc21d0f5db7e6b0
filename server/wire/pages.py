"""A page of a list, in the shape that OpenAI's lists have."""

from typing import Literal

import msgspec


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """`last_id` is what `after` takes for the next page; an empty page has neither id."""

    object: Literal["list"] = "list"
    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


class _Listed(msgspec.Struct):
    id: str


def page(found: list[bytes], limit: int) -> Page:
    """The page of at most `limit` objects, given as JSON, of which `found` has one more if there are more."""
    data = [msgspec.Raw(payload) for payload in found[:limit]]
    ends = [msgspec.json.decode(data[place], type=_Listed).id for place in (0, -1)] if data else [None, None]
    return Page(data=data, first_id=ends[0], last_id=ends[1], has_more=len(found) > limit)
