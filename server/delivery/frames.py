"""Server-sent-event frames: an event as bytes, under OpenAI's or Open Responses' name. Pure.

Events of streams that earlier releases stored get the function names that they lack.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from server.generation.event_log import decode_added
from server.protocol.earlier_releases import with_name
from server.protocol.responses.events import Event, Kind, event_type, render
from server.protocol.responses.items import FunctionCall

_EVENT = b"event: "
_OPENAI = b"response.reasoning_text."
_OPEN_RESPONSES = b"response.reasoning."


@dataclass(frozen=True, slots=True)
class FramePage:
    """Committed frames, and whether they are the last of an ended response."""

    frames: Sequence[bytes]
    ended: bool


def frame(response: UUID, event: Event) -> bytes:
    """`id:`, `event:` and `data:` lines and the blank line, with LF.

    The id is the sequence number, which a browser's EventSource sends as Last-Event-ID when it reconnects.
    It comes first, so that clients that split at `data: ` find nothing after the JSON.
    """
    kind = event_type(event).encode()
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.sequence_number, kind, render(response, event))


def split_frame(frame: bytes) -> tuple[bytes, bytes]:
    """The type and the JSON of a frame: the inverse of `frame`."""
    _, head, data, *_ = frame.split(b"\n", 3)
    return head.removeprefix(_EVENT), data.removeprefix(b"data: ")


def frames(response: UUID, events: Iterable[Event]) -> tuple[bytes, ...]:
    """`frame` of each event."""
    return tuple([frame(response, event) for event in events])


class OpenResponsesNames:
    """Renames events as in the Open Responses specification.

    Its names are OpenAI's except for two: `response.reasoning_text.delta` and `.done` are
    `response.reasoning.delta` and `.done`. The `id:` line is left out, as the specification has it. Nothing
    else of a frame changes.
    """

    def rewrite(self, _index: int, frames: Sequence[bytes]) -> list[bytes]:
        return [to_open_responses(one) for one in frames]

    def end(self) -> list[bytes]:
        return []


def to_open_responses(frame: bytes) -> bytes:
    """The renamed frame without its `id:` line. The type is the first field of its JSON."""
    frame = frame[frame.index(_EVENT) :]
    if not frame.startswith(_EVENT + _OPENAI):
        return frame
    return frame.replace(_OPENAI, _OPEN_RESPONSES, 2)


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
