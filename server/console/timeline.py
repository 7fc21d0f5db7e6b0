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


class _Fields(msgspec.Struct):
    """The fields of an event, stored as JSON, that the timeline reads."""

    output_index: int | None = None
    item: _Item | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment. `at` is in seconds since the response was created, `x` in units of the drawing."""

    label: str
    at: float
    x: float
    number: int
    """The sequence number of its event."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A pause of more than `GAP_S`."""

    begin: float
    seconds: float
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Lane:
    """An output item from its begin to its end, or to the last event if it has not ended."""

    output_index: int
    title: str
    begin: float
    end: float
    ended: bool
    deltas: int
    x: float
    width: float
    ticks: Sequence[str]
    """SVG path data, one a shade, the lightest first; in a drawing of the height 1."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """All of it. Without events it is empty."""

    seconds: float = 0
    """Seconds from the creation to the last event."""
    events: int = 0
    lanes: Sequence[Lane] = ()
    more_lanes: int = 0
    """So many lanes are left out."""
    marks: Sequence[Mark] = ()
    gaps: Sequence[Gap] = ()
    axis: Sequence[Mark] = ()


@dataclass(slots=True)
class _OpenLane:
    title: str
    begin: float
    end: float
    ended: bool = False
    deltas: dict[float, int] = field(default_factory=dict)
    """How many came at a time."""


@dataclass(slots=True)
class _Reading:
    """Lanes and counts from the part of the log that has been read."""

    created_at: float
    names: bool
    lanes: dict[int, _OpenLane] = field(default_factory=dict)
    marks: list[tuple[str, float, int]] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    last: float = 0
    attempt: int = 0
    has_token: bool = False
    events: int = 0

    def add(self, row: LogRow) -> None:
        at = row.at - self.created_at
        if at < self.last:  # clocks of two replicas, or of one that was set
            at = self.last
        elif at - self.last > GAP_S and self.events:
            self.gaps.append((self.last, at))
        if row.attempt != self.attempt:
            if self.attempt and row.attempt:
                label = f"taken over by another replica, attempt {row.attempt}"
                self.marks.append((label, at, row.first_seq))
            self.attempt = row.attempt
        self.last = at
        self.events += row.n
        if row.kind == _WHOLE:
            self._add_whole(row, at)
            return
        if not self.has_token:
            self.has_token = True
            self.marks.append(("first token", at, row.first_seq))
        lane = self.lanes.get(row.output_index) or self._lane(row.output_index, "item", at)
        lane.deltas[at] = lane.deltas.get(at, 0) + row.n
        lane.end = at

    def _add_whole(self, row: LogRow, at: float) -> None:
        body = bytes(row.body).decode()
        kind = event_type(Event(row.first_seq, Kind.WHOLE, 0, 0, body))
        if kind in _MARKS:
            self.marks.append((_MARKS[kind], at, row.first_seq))
        if kind in TERMINAL or kind in _MARKS:
            return
        fields = decode_as(body, _Fields)
        if fields.output_index is None:
            return
        item = fields.item or _Item("item")
        title = f"{item.type} {item.name}" if item.name and self.names else item.type
        lane = self._lane(fields.output_index, title, at)
        lane.end = at
        if kind == "response.output_item.done":
            lane.ended = True
        elif kind == "response.output_item.added" and item.type.endswith("_call"):
            self.marks.append((title, at, row.first_seq))
        elif kind.endswith(".delta"):
            lane.deltas[at] = lane.deltas.get(at, 0) + 1

    def _lane(self, output_index: int, title: str, at: float) -> _OpenLane:
        return self.lanes.setdefault(output_index, _OpenLane(title, at, at))


def timeline(rows: Iterable[LogRow], created_at: datetime, *, names: bool = True) -> Timeline:
    """The timeline of a log, with the names of tools if `names`. Raises msgspec.DecodeError."""
    reading = _Reading(created_at.timestamp(), names)
    for row in rows:
        reading.add(row)
    if not reading.events:
        return Timeline()
    seconds = reading.last
    scale = WIDTH / seconds if seconds else 0.0
    open_lanes = sorted(reading.lanes.items())
    marks = reading.marks  # the first ones, and the last one, which is the end
    marks = marks if len(marks) <= MAX_MARKS else [*marks[: MAX_MARKS - 1], marks[-1]]
    longest = sorted(reading.gaps, key=lambda gap: gap[0] - gap[1])[:MAX_GAPS]
    return Timeline(
        seconds=seconds,
        events=reading.events,
        lanes=[_drawn(index, lane, seconds, scale) for index, lane in open_lanes[:MAX_LANES]],
        more_lanes=max(0, len(open_lanes) - MAX_LANES),
        marks=[Mark(label, at, round(at * scale, 1), number) for label, at, number in marks],
        gaps=[
            Gap(begin, end - begin, round(begin * scale, 1), round((end - begin) * scale, 1))
            for begin, end in sorted(longest)
        ],
        axis=[Mark("", seconds * part / 4, WIDTH * part / 4, 0) for part in range(5)],
    )


def _drawn(output_index: int, lane: _OpenLane, seconds: float, scale: float) -> Lane:
    end = lane.end if lane.ended else seconds
    return Lane(
        output_index=output_index,
        title=lane.title,
        begin=lane.begin,
        end=end,
        ended=lane.ended,
        deltas=sum(lane.deltas.values()),
        x=round(lane.begin * scale, 1),
        width=max(1.0, round((end - lane.begin) * scale, 1)),
        ticks=tick_paths(lane.deltas, scale),
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
