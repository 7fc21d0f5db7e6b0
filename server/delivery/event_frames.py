"""Server-sent-event frames: an event as bytes, with OpenAI's or with Open Responses' event names. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from server.protocol.responses.events import Event, render_all


def frame(response: UUID, event: Event) -> bytes:
    """`id:`, `event:` and `data:` lines and the blank line, with LF.

    The id is the sequence number, which a browser's EventSource sends as Last-Event-ID when it reconnects.
    It comes first, so that clients that split at `data: ` find nothing after the JSON.
    """
    (one,) = frames(response, [event])
    return one


def frames(response: UUID, events: Iterable[Event]) -> tuple[bytes, ...]:
    """`frame` of each event."""
    events = list(events)
    return tuple(
        b"id: %d\nevent: %b\ndata: %b\n\n" % (event.sequence_number, kind.encode(), body)
        for event, (kind, body) in zip(events, render_all(response, events), strict=True)
    )


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


_EVENT = b"event: "
_OPENAI = b"response.reasoning_text."
_OPEN_RESPONSES = b"response.reasoning."


@dataclass(frozen=True, slots=True)
class FramePage:
    """Committed frames, and whether they are the last of an ended response."""

    frames: Sequence[bytes]
    ended: bool
