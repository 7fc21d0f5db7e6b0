"""Ids of stream events, by which a client that resumes a stream notices that it has forked. Pure.

The id of an event of a stored response is its sequence number and a mark of its content: the attempt that
wrote it and the CRC-32 of its JSON, as in `57-2.9f3c07aa`. After a loss of commits, numbers are used again:

- By another attempt, in most cases. Then the marks differ for certain, also where two events are alike and
  only those before them are not.
- By an attempt of the same number, where the claim was lost, too. Then the marks of two events that differ
  are equal once in four billion times.

The log has the attempt, and the event the rest. A digest of all events up to one would need no attempt, but
the whole log for every reader that begins in its middle.

The id of an event of a response that is not stored is the plain number.
"""

import re
from typing import NamedTuple

EVENT_ID = r"^[0-9]{1,9}-[0-9]{1,9}\.[0-9a-f]{8}$"
_ID = re.compile(r"(?P<number>[0-9]{1,9})(?:-(?P<mark>[0-9]{1,9}\.[0-9a-f]{8}))?")
_LINE = b"id: "


class EventId(NamedTuple):
    """The number and the mark of an event; without a mark the content is not known."""

    number: int
    mark: str | None = None

    def may_be(self, other: "EventId") -> bool:
        """Whether both can be of the same event: the numbers are equal, and the marks where both have one."""
        return self.number == other.number and (None in (self.mark, other.mark) or self.mark == other.mark)


def parse_event_id(text: str) -> EventId | None:
    """None for what was never the id of an event."""
    found = _ID.fullmatch(text)
    return None if found is None else EventId(int(found["number"]), found["mark"])


def frame_id(frame: bytes) -> EventId | None:
    """The id of a frame; None if it has no `id:` line."""
    line = frame.partition(b"\n")[0]
    return parse_event_id(line.removeprefix(_LINE).decode()) if line.startswith(_LINE) else None


def same_event(frame: bytes, other: bytes) -> bool:
    """Whether two frames are of one event, as far as their ids tell."""
    if frame == other:
        return True
    first, second = frame_id(frame), frame_id(other)
    return first is not None and second is not None and first.may_be(second)
