"""Adds function names to `response.function_call_arguments.done` of streams stored by earlier releases."""

from collections.abc import Callable, Iterable, Iterator

from server.generation.event_log import decode_added
from server.protocol.earlier_releases import with_name
from server.protocol.responses.events import Event, Kind, event_type
from server.protocol.responses.items import FunctionCall


def with_function_names(
    events: Iterable[Event], from_start: Callable[[], Iterable[Event]]
) -> Iterator[Event]:
    """The events, with the function's name in each `response.function_call_arguments.done`.

    `from_start` reads the response's stream from its beginning. It is called only for streams of earlier
    releases, where the names are in `response.output_item.added` alone.
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
    """The arguments are a JSON string with escaped quotes, so only a field can match."""
    if event.kind is not Kind.WHOLE or event_type(event) != "response.function_call_arguments.done":
        return False
    return '"name":' not in event.body


def _names(events: Iterable[Event]) -> Iterator[tuple[int, str]]:
    for event in events:
        if event.kind is Kind.WHOLE and event_type(event) == "response.output_item.added":
            added = decode_added(event.body)
            if isinstance(added.item, FunctionCall):
                yield added.output_index, added.item.name
