"""Query parameters and what else is no body: list pages, flags, Last-Event-ID, Content-Type, request ids."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from msgspec import Meta
from starlette.requests import HTTPConnection, Request

from server.errors import InvalidRequest, UnsupportedMediaType
from server.http.openapi import Parameter
from server.logs.context import CURRENT
from server.protocol.administration.requests import MAX_UNIX_SECONDS
from server.protocol.ids import is_request_id

V = TypeVar("V", bound=str)

MAX_PAGE_SIZE = 100
DEFAULT_PAGE_SIZE = 20
_METADATA = re.compile(r"metadata\[(?P<key>.*)\]", re.DOTALL)

PAGE = (
    Parameter("after", str, "The id of the object that the page comes after."),
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE)], f"{DEFAULT_PAGE_SIZE} if not given."),
    Parameter("order", Literal["asc", "desc"], "By age; if not given desc, asc of chats."),
)
"""What `page_request` reads."""
METADATA = Parameter("metadata", dict[str, str], "Pairs that it must have.", style="deepObject")
INCLUDE = Parameter("include[]", list[str], "Values that are not known change nothing.")
"""What `include_values` reads."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which part of a list is asked for."""

    after: str | None
    """The id of the object that the page comes after."""
    limit: int
    newest_first: bool


def page_request(request: Request, order: str = "desc") -> PageRequest:
    """`after`, `limit` and `order`, as all of OpenAI's lists have them. Raises InvalidRequest."""
    order = text(request, "order") or order
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc.", param="order")
    limit = whole_number(request, "limit", DEFAULT_PAGE_SIZE)
    if not 1 <= limit <= MAX_PAGE_SIZE:
        raise InvalidRequest(f"limit must be from 1 to {MAX_PAGE_SIZE}.", param="limit")
    return PageRequest(text(request, "after"), limit, order == "desc")


def text(request: Request, name: str) -> str | None:
    """A parameter's text; None if it is not there or empty. Raises InvalidRequest."""
    value = request.query_params.get(name)
    if value is not None and "\0" in value:
        raise InvalidRequest(f"{name} must not contain the NUL character.", param=name)
    return value or None


def flag(request: Request, name: str) -> bool:
    """Raises InvalidRequest for anything but true and false."""
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} must be true or false.", param=name)
    return value == "true"


def one_of(request: Request, name: str, values: Sequence[V]) -> V | None:
    """A parameter's text, if it is one of these; None if it is not there. Raises InvalidRequest."""
    given = text(request, name)
    found = [value for value in values if value == given]
    if given is not None and not found:
        raise InvalidRequest(f"{name} is one of {', '.join(values)}.", param=name)
    return found[0] if found else None


def unix_seconds(request: Request, name: str) -> int | None:
    """A time; None if it is not there. Raises InvalidRequest."""
    value = request.query_params.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 12 and int(value) <= MAX_UNIX_SECONDS):
        raise InvalidRequest(f"{name} is a time in Unix seconds.", param=name)
    return int(value)


def whole_number(request: Request, name: str, default: int) -> int:
    """Raises InvalidRequest for what is not a whole number of at least 0."""
    value = request.query_params.get(name)
    return default if value is None else _number(value, name, "a whole number of at least 0")


def last_event_id(request: Request) -> int:
    """The sequence number of the last event that an EventSource has seen; -1 without one.

    Raises InvalidRequest for what was never the id of an event.
    """
    value = request.headers.get("last-event-id")
    return _number(value, "Last-Event-ID", "the number of an event") if value else -1


def _number(value: str, name: str, expected: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise InvalidRequest(f"{name} must be {expected}.", param=name)
    return int(value)


def metadata(request: Request) -> dict[str, str]:
    """What `metadata[key]=value` parameters ask for. Raises InvalidRequest."""
    asked: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if found := _METADATA.fullmatch(name):
            if "\0" in name + value:
                raise InvalidRequest("metadata must not contain the NUL character.", param="metadata")
            asked[found["key"]] = value
    return asked


def include_values(request: Request) -> list[str]:
    """The values of `include`, in both of the forms in which clients write lists."""
    return request.query_params.getlist("include[]") + request.query_params.getlist("include")


def apply_body_request_id(request: HTTPConnection, given: str | None) -> None:
    """Gives the request, its log lines and its `x-request-id` the id in its body. Raises InvalidRequest."""
    if given is None:
        return
    if not is_request_id(given):
        raise InvalidRequest("A request_id is of visible characters of ASCII.", param="request_id")
    request.state.request_id = given
    if (context := CURRENT.get()) is not None:
        context.request_id = given


def require_json(headers: Mapping[str, str], body: bytes) -> None:
    """Raises UnsupportedMediaType for a body whose Content-Type is not JSON.

    Without a CORS preflight, a page of another site can only send the content types of HTML forms.
    """
    if not body:
        return
    essence = headers.get("content-type", "").partition(";")[0].strip().lower()
    kind, _, subtype = essence.partition("/")
    if kind != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise UnsupportedMediaType(essence)
