"""The timeline of a response: a lane an output item, marks, pauses; what its drawing and its text say. Pure.

Deltas that fall on one unit of the drawing, which is `WIDTH` wide, are one tick, darker the more there are:
100,000 events are drawn as fast as 1,000.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from server.protocol.decode import decode_as
from server.protocol.responses.events import TERMINAL, Event, Kind, event_type
from server.store.log_read import LogRow

WIDTH: Final = 1000
MAX_LANES: Final = 100
MAX_GAPS: Final = 100
"""The longest ones are shown."""
MAX_MARKS: Final = 300
GAP_S: Final = 1.0
"""A pause between two events that is shown as one."""
_WHOLE: Final = int(Kind.WHOLE)
_SHADES: Final = (1, 3, 8)
"""A tick of at least so many deltas has a darker shade."""
_MARKS: Final = {
    "response.created": "created",
    "response.queued": "queued",
    "response.in_progress": "started",
    "response.completed": "completed",
    "response.failed": "failed",
    "response.incomplete": "incomplete",
}


class _Item(msgspec.Struct):
    type: str = ""
    name: str | None = None


class EventFields(msgspec.Struct):
    """The fields of an event stored as JSON that the timeline and the replay read."""

    output_index: int | None = None
    item: _Item | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, in seconds since the response was created."""

    label: str
    at: float
    number: int
    """The sequence number of its event."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A pause of more than `GAP_S`."""

    begin: float
    seconds: float


@dataclass(slots=True)
class Lane:
    """An output item from its begin to its end, or to the last event if it has not ended."""

    output_index: int
    title: str
    begin: float
    end: float
    ended: bool = False
    deltas: int = 0
    times: dict[float, int] = field(default_factory=dict)
    """How many deltas came at a time."""

    def add(self, at: float, count: int) -> None:
        self.times[at] = self.times.get(at, 0) + count
        self.deltas += count
        self.end = at


@dataclass(frozen=True, slots=True)
class Timeline:
    """All of it. Without events it is empty."""

    seconds: float = 0
    """Seconds from the creation to the last event."""
    scale: float = 0
    """Units of the drawing in a second."""
    events: int = 0
    lanes: Sequence[Lane] = ()
    more_lanes: int = 0
    """So many lanes are left out."""
    marks: Sequence[Mark] = ()
    gaps: Sequence[Gap] = ()

    def x(self, seconds: float) -> float:
        """So many seconds in units of the drawing."""
        return round(seconds * self.scale, 1)

    def ticks(self, lane: Lane) -> list[str]:
        """SVG path data, one a shade, the lightest first; in a drawing of the height 1."""
        return tick_paths(lane.times, self.scale)


@dataclass(slots=True)
class _Reading:
    """Lanes and counts from the part of the log that has been read."""

    created_at: float
    names: bool
    lanes: dict[int, Lane] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    last: float = 0
    attempt: int = 0
    has_token: bool = False
    events: int = 0

    def add(self, row: LogRow) -> None:
        at = row.at - self.created_at
        if at < self.last:  # clocks of two replicas, or of one that was set
            at = self.last
        elif at - self.last > GAP_S and self.events:
            self.gaps.append(Gap(self.last, at - self.last))
        if row.attempt != self.attempt:
            if self.attempt and row.attempt:
                label = f"taken over by another replica, attempt {row.attempt}"
                self.marks.append(Mark(label, at, row.first_seq))
            self.attempt = row.attempt
        self.last = at
        self.events += row.n
        if row.kind == _WHOLE:
            self._add_whole(row, at)
            return
        if not self.has_token:
            self.has_token = True
            self.marks.append(Mark("first token", at, row.first_seq))
        self._lane(row.output_index, "item", at).add(at, row.n)

    def _add_whole(self, row: LogRow, at: float) -> None:
        body = bytes(row.body).decode()
        kind = event_type(Event(row.first_seq, Kind.WHOLE, 0, 0, body))
        if kind in _MARKS:
            self.marks.append(Mark(_MARKS[kind], at, row.first_seq))
        if kind in TERMINAL or kind in _MARKS:
            return
        fields = decode_as(body, EventFields)
        if fields.output_index is None:
            return
        item = fields.item or _Item("item")
        title = f"{item.type} {item.name}" if item.name and self.names else item.type
        lane = self._lane(fields.output_index, title, at)
        lane.end = at
        if kind == "response.output_item.done":
            lane.ended = True
        elif kind == "response.output_item.added" and item.type.endswith("_call"):
            self.marks.append(Mark(title, at, row.first_seq))
        elif kind.endswith(".delta"):
            lane.add(at, 1)

    def _lane(self, output_index: int, title: str, at: float) -> Lane:
        return self.lanes.setdefault(output_index, Lane(output_index, title, at, at))


def timeline(rows: Iterable[LogRow], created_at: datetime, *, names: bool = True) -> Timeline:
    """The timeline of a log, with the names of tools if `names`. Raises msgspec.DecodeError."""
    reading = _Reading(created_at.timestamp(), names)
    for row in rows:
        reading.add(row)
    if not reading.events:
        return Timeline()
    seconds = reading.last
    lanes = [lane for _, lane in sorted(reading.lanes.items())]
    for lane in lanes:
        lane.end = lane.end if lane.ended else seconds
    marks = reading.marks  # the first ones, and the last one, which is the end
    marks = marks if len(marks) <= MAX_MARKS else [*marks[: MAX_MARKS - 1], marks[-1]]
    longest = sorted(reading.gaps, key=lambda gap: -gap.seconds)[:MAX_GAPS]
    return Timeline(
        seconds=seconds,
        scale=WIDTH / seconds if seconds else 0.0,
        events=reading.events,
        lanes=lanes[:MAX_LANES],
        more_lanes=max(0, len(lanes) - MAX_LANES),
        marks=marks,
        gaps=sorted(longest, key=lambda gap: gap.begin),
    )


def tick_paths(deltas: Mapping[float, int], scale: float) -> list[str]:
    """A path a shade with a tick for each unit that has deltas: `M12 0V1M13 0V1`."""
    units: dict[int, int] = {}
    for at, count in deltas.items():
        unit = int(at * scale + 0.5)
        units[unit] = units.get(unit, 0) + count
    paths = ["" for _ in _SHADES]
    for unit, count in sorted(units.items()):
        shade = max(index for index, least in enumerate(_SHADES) if count >= least)
        paths[shade] += f"M{unit} 0V1"
    return paths
