"""Pages of frames, and frames under Open Responses' names. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

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
        return len(self.frames) + self.missing


class OpenResponsesNames:
    """Renames events as in the Open Responses specification, whose names are OpenAI's but for
    `response.reasoning.delta` and `.done`; it has no `id:` line. Nothing else of a frame changes.
    """

    def rewrite(self, _index: int, frames: Sequence[bytes]) -> list[bytes]:
        return [to_open_responses(frame) for frame in frames]

    def end(self) -> list[bytes]:
        return []


def to_open_responses(frame: bytes) -> bytes:
    """The renamed frame without its `id:` line. The type is the first field of its JSON."""
    frame = frame[frame.index(_EVENT) :]
    if not frame.startswith(_EVENT + _OPENAI):
        return frame
    return frame.replace(_OPENAI, _OPEN_RESPONSES, 2)
