"""Query parameters and what else is no body: list pages, flags, Last-Event-ID, Content-Type, request ids."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, TypeVar

from msgspec import Meta, Struct
from starlette.requests import HTTPConnection, Request

from server.admission.request_validation import check_include
from server.errors import InvalidRequest, UnsupportedMediaType, bad_cursor
from server.http.operation import Parameter
from server.logs.context import CURRENT
from server.protocol.administration.requests import MAX_UNIX_SECONDS
from server.protocol.decode import decode
from server.protocol.ids import is_request_id
from server.protocol.list_pages import PageRequest
from server.protocol.responses.events import EventId, parse_event_id

V = TypeVar("V", bound=str)
S = TypeVar("S", bound=Struct)
T = TypeVar("T")

MAX_PAGE_SIZE = 100
DEFAULT_PAGE_SIZE = 20
_STARTING_AFTER, _LAST_EVENT_ID = "starting_after", "Last-Event-ID"
_METADATA = re.compile(r"metadata\[(?P<key>.*)\]", re.DOTALL)

PAGE = (
    Parameter("after", str, "A cursor for pagination: the id of the object that the page comes after."),
    Parameter(
        "limit",
        Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE)],
        f"The number of objects to return; {DEFAULT_PAGE_SIZE} by default.",
    ),
    Parameter("order", Literal["asc", "desc"], "Sort order by age; desc by default, asc of chats."),
)
MODEL = Parameter("model", str, "Filter by model.")
TENANT = Parameter("tenant", str, "Filter by tenant.")
METADATA = Parameter("metadata", dict[str, str], "Metadata to filter by.", style="deepObject")
INCLUDE = Parameter("include[]", list[str], "Additional fields to include; unknown values are refused.")


def page_request(
    request: Request, order: str = "desc", parse: Callable[[str], object] = str, kind: str = ""
) -> PageRequest:
    """`after`, read by `parse`, `limit` and `order`, as OpenAI's lists have them. Raises InvalidRequest."""
    order = one_of(request, "order", ("asc", "desc")) or order
    limit = whole_number(request, "limit", DEFAULT_PAGE_SIZE)
    if not 1 <= limit <= MAX_PAGE_SIZE:
        raise InvalidRequest(f"limit must be from 1 to {MAX_PAGE_SIZE}.", param="limit")
    return PageRequest(cursor(text(request, "after"), parse, kind), limit, order == "desc")


def cursor(after: str | None, parse: Callable[[str], T | None], kind: str) -> T | None:
    """The id in the `after` of a page. Raises InvalidRequest if it is none of this `kind`."""
    parsed = parse(after) if after else None
    if after and parsed is None:
        raise bad_cursor(after, kind)
    return parsed


def text(request: Request, name: str) -> str | None:
    """A parameter's text; None if it is not there or empty. Raises InvalidRequest."""
    value = request.query_params.get(name)
    if value is not None and "\0" in value:
        raise InvalidRequest(f"{name} must not contain the NUL character.", param=name)
    return value or None


def flag(request: Request, name: str) -> bool:
    """A parameter that is true or false; false if it is not there. Raises InvalidRequest."""
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} must be true or false.", param=name)
    return value == "true"


def one_of(request: Request, name: str, values: Sequence[V]) -> V | None:
    """A parameter's text, if it is one of these; None if it is not there. Raises InvalidRequest."""
    argument = text(request, name)
    matches = [value for value in values if value == argument]
    if argument is not None and not matches:
        raise InvalidRequest(f"{name} must be one of {', '.join(values)}.", param=name)
    return matches[0] if matches else None


def unix_seconds(request: Request, name: str) -> int | None:
    """A time; None if it is not there. Raises InvalidRequest."""
    value = request.query_params.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 12 and int(value) <= MAX_UNIX_SECONDS):
        raise InvalidRequest(f"{name} is a time in Unix seconds.", param=name)
    return int(value)


def whole_number(request: Request, name: str, default: int) -> int:
    """A number of at least 0; `default` if it is not there. Raises InvalidRequest."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise InvalidRequest(f"{name} must be a whole number of at least 0.", param=name)
    return int(value)


class ResumeAfter(NamedTuple):
    """The last event that a client has of a stream, None if it has none, and the parameter that names it."""

    event: EventId | None
    param: str

    @property
    def position(self) -> int:
        """The number of the first event to send."""
        return 0 if self.event is None else self.event.number + 1

    @property
    def is_event_source(self) -> bool:
        """The client is an EventSource that connects again, which a 204 stops."""
        return self.event is not None and self.param == _LAST_EVENT_ID


def resume_after(request: Request) -> ResumeAfter:
    """`starting_after` or Last-Event-ID, whichever is later: an EventSource connects again to the same
    address.

    Raises InvalidRequest for what was never the id of an event.
    """
    after = _event_id(request.query_params.get(_STARTING_AFTER), _STARTING_AFTER)
    last = _event_id(request.headers.get("last-event-id") or None, _LAST_EVENT_ID)
    if last is not None and (after is None or last.number >= after.number):
        return ResumeAfter(last, _LAST_EVENT_ID)
    return ResumeAfter(after, _STARTING_AFTER)


def _event_id(value: str | None, name: str) -> EventId | None:
    if value is None:
        return None
    event = parse_event_id(value)
    if event is None:
        raise InvalidRequest(f"{name} must be the number or the id of an event.", param=name)
    return event


def metadata(request: Request) -> dict[str, str]:
    """Return the filter of `metadata[key]=value` parameters. Raises InvalidRequest."""
    filters: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if match := _METADATA.fullmatch(name):
            if "\0" in name + value:
                raise InvalidRequest("metadata must not contain the NUL character.", param="metadata")
            filters[match["key"]] = value
    return filters


def include_values(request: Request) -> list[str]:
    """The values of `include`, in both of the forms in which clients write lists. Raises InvalidRequest."""
    values = request.query_params.getlist("include[]") + request.query_params.getlist("include")
    check_include(values)
    return values


def read_optional(body: bytes, kind: type[S]) -> S:
    """The request in the body, or one with nothing but defaults. Raises InvalidRequest."""
    return decode(body, kind) if body else kind()


def apply_body_request_id(request: HTTPConnection, request_id: str | None) -> None:
    """Gives the request, its log lines and its `x-request-id` the id in its body. Raises InvalidRequest."""
    if request_id is None:
        return
    if not is_request_id(request_id):
        raise InvalidRequest("A request_id is of visible characters of ASCII.", param="request_id")
    request.state.request_id = request_id
    if (context := CURRENT.get()) is not None:
        context.request_id = request_id


def require_json(headers: Mapping[str, str], body: bytes) -> None:
    """Raises UnsupportedMediaType for no JSON: without a CORS preflight other sites send forms only."""
    if not body:
        return
    essence = headers.get("content-type", "").partition(";")[0].strip().lower()
    kind, _, subtype = essence.partition("/")
    if kind != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise UnsupportedMediaType(essence)
