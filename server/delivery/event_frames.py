"""One event as server-sent-event bytes, under either of its names. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from server.protocol.responses.events import Event, event_type, render


def frame(response: UUID, event: Event) -> bytes:
    """`id:`, `event:` and `data:` lines and the blank line, in one piece; LF only.

    The id is the event's sequence number, which a browser's EventSource sends as Last-Event-ID when it
    connects again. It comes first, so that clients that split at `data: ` find nothing behind the JSON.
    """
    kind = event_type(event).encode()
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.sequence_number, kind, render(response, event))


def frames(response: UUID, events: Iterable[Event]) -> tuple[bytes, ...]:
    return tuple(frame(response, event) for event in events)


class OpenResponsesNames:
    """Tells a response's events by the names that the Open Responses specification has for them.

    They are OpenAI's but for two: `response.reasoning_text.delta` and `.done` are `response.reasoning.delta`
    and `.done`. The `id:` line is left out, as the specification has it. Nothing else of a frame changes.
    """

    def rewrite(self, _index: int, frames: Sequence[bytes]) -> list[bytes]:
        return [renamed(one) for one in frames]

    def end(self) -> list[bytes]:
        return []


def renamed(given: bytes) -> bytes:
    """A frame under the specification's name; the type is the first field of its JSON."""
    given = given[given.index(_EVENT) :]
    if not given.startswith(_EVENT + _OPENAIS):
        return given
    return given.replace(_OPENAIS, _SPECIFIED, 2)


_EVENT = b"event: "
_OPENAIS = b"response.reasoning_text."
_SPECIFIED = b"response.reasoning."


@dataclass(frozen=True, slots=True)
class FramePage:
    """Committed frames, and whether the response has ended and these are its last."""

    frames: Sequence[bytes]
    ended: bool
