"""Pages of frames, frames under Open Responses' names, and events of earlier releases completed. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from server.protocol.earlier_releases import with_logprobs, with_name
from server.protocol.responses.events import Event, Kind, decode_added, event_type
from server.protocol.responses.items import FunctionCall
from server.store.log_read import LoggedEvent

_EVENT = b"event: "
_OPENAI = b"response.reasoning_text."
_OPEN_RESPONSES = b"response.reasoning."


@dataclass(frozen=True, slots=True)
class FramePage:
    """Committed frames, and whether they are the last of an ended response."""

    frames: Sequence[bytes]
    ended: bool
    before: bytes | None = None
    """The frame of the event before them, if it is stored."""
    missing: int = 0
    """Sequence numbers among theirs of which no event is stored."""

    @property
    def length(self) -> int:
        """How far the sequence number goes on with them."""
        return len(self.frames) + self.missing


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


def completed_events(
    events: Iterable[LoggedEvent], from_start: Callable[[], Iterable[LoggedEvent]]
) -> Iterator[LoggedEvent]:
    """Stored events with what earlier releases left out: `logprobs` of texts, and the function's name in each
    `response.function_call_arguments.done`.

    `from_start` reads the response's stream from its beginning. It is called only for streams of earlier
    releases, where the names are in `response.output_item.added` alone.
    """
    names: dict[int, str] | None = None
    for logged in events:
        event, attempt = logged
        if event.kind is not Kind.WHOLE:
            yield logged
        elif _lacks_name(event):
            if names is None:
                names = dict(_names(from_start()))
            yield LoggedEvent(event._replace(body=with_name(event.body, names)), attempt)
        else:
            yield LoggedEvent(event._replace(body=with_logprobs(event.body)), attempt)


def _lacks_name(event: Event) -> bool:
    """Of a whole event. The arguments are a JSON string with escaped quotes, so only a field can match."""
    named = event_type(event) == "response.function_call_arguments.done"
    return named and '"name":' not in event.body


def _names(events: Iterable[LoggedEvent]) -> Iterator[tuple[int, str]]:
    for event, _ in events:
        if event.kind is Kind.WHOLE and event_type(event) == "response.output_item.added":
            added = decode_added(event.body)
            if isinstance(added.item, FunctionCall):
                yield added.output_index, added.item.name
