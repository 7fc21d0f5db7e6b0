"""The names of function calls in `response.function_call_arguments.done`, for streams stored without them."""

from collections.abc import Callable, Iterable, Iterator

from server.generation.item_starts import decode_added
from server.protocol.earlier_releases import with_name
from server.protocol.responses.events import Event, Kind, event_type
from server.protocol.responses.items import FunctionCall


def with_function_names(
    events: Iterable[Event], from_start: Callable[[], Iterable[Event]]
) -> Iterator[Event]:
    """The events, each end of a call's arguments with the call's name.

    `from_start` reads the response's stream from its beginning; it is called only for a stream that an
    earlier release stored, whose names are in the items that it added.
    """
    names: dict[int, str] | None = None
    for event in events:
        if _lacks_name(event):
            if names is None:
                names = dict(_names(from_start()))
            yield event._replace(body=with_name(event.body, names))
        else:
            yield event


def _lacks_name(event: Event) -> bool:
    """The arguments are a JSON string, in which a quote has a backslash: only a field matches."""
    if event.kind is not Kind.WHOLE or event_type(event) != "response.function_call_arguments.done":
        return False
    return '"name":' not in event.body


def _names(events: Iterable[Event]) -> Iterator[tuple[int, str]]:
    for event in events:
        if event.kind is Kind.WHOLE and event_type(event) == "response.output_item.added":
            added = decode_added(event.body)
            if isinstance(added.item, FunctionCall):
                yield added.output_index, added.item.name
