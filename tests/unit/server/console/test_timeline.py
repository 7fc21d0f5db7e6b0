"""What the timeline draws of a log."""

from datetime import UTC, datetime

import msgspec

from server.console.timeline import (
    GAP_S,
    MAX_GAPS,
    MAX_LANES,
    MAX_MARKS,
    WIDTH,
    tick_paths,
    timeline,
)
from server.protocol.responses.events import Kind
from server.store.log_read import LogRow

CREATED = datetime(2026, 1, 1, tzinfo=UTC)


class Log:
    """Rows of a log, each so many seconds after the creation."""

    def __init__(self) -> None:
        self.rows: list[LogRow] = []

    @property
    def next_seq(self) -> int:
        return self.rows[-1].first_seq + self.rows[-1].n if self.rows else 0

    def whole(self, at: float, kind: str, attempt: int = 1, **fields: object) -> "Log":
        body = msgspec.json.encode({"type": kind, "sequence_number": self.next_seq, **fields})
        return self._add(at, Kind.WHOLE, 0, 1, body, attempt)

    def deltas(self, at: float, *texts: str, index: int = 0, attempt: int = 1) -> "Log":
        body = msgspec.json.encode(texts)
        return self._add(at, Kind.OUTPUT_TEXT_DELTA, index, len(texts), body, attempt)

    def item(self, at: float, index: int, end: bool = False, **item: object) -> "Log":
        kind = f"response.output_item.{'done' if end else 'added'}"
        return self.whole(at, kind, output_index=index, item=item)

    def _add(self, at: float, kind: Kind, index: int, n: int, body: bytes, attempt: int) -> "Log":
        time = CREATED.timestamp() + at
        self.rows.append(LogRow(self.next_seq, n, kind, index, 0, time, msgspec.Raw(body), attempt))
        return self


def test_without_events_it_is_empty() -> None:
    assert timeline([], CREATED).events == 0


def test_an_item_has_a_lane_from_its_begin_to_its_end() -> None:
    log = Log().whole(0, "response.created").item(1, 0, type="message").deltas(1.5, "a", "b", "c")
    log.item(2, 0, end=True, type="message").whole(4, "response.completed")
    (lane,) = (drawn := timeline(log.rows, CREATED)).lanes
    assert (lane.title, lane.begin, lane.end, lane.ended, lane.deltas) == ("message", 1, 2, True, 3)
    assert drawn.x(lane.begin) == drawn.x(lane.end - lane.begin) == WIDTH / 4
    assert (drawn.seconds, drawn.events) == (4, 7)


def test_an_item_that_has_not_ended_has_a_lane_to_the_last_event() -> None:
    log = Log().item(0, 0, type="message").item(0, 1, type="message").deltas(3, "a", index=1)
    assert [(lane.end, lane.ended) for lane in timeline(log.rows, CREATED).lanes] == [(3, False), (3, False)]


def test_marks_say_when_it_was_queued_begun_and_ended_and_when_its_first_token_came() -> None:
    log = Log().whole(0, "response.created").whole(0, "response.queued", 0)
    log.whole(1, "response.in_progress").deltas(2, "a").deltas(2.5, "b").whole(3, "response.incomplete")
    marks = [(mark.label, mark.at) for mark in timeline(log.rows, CREATED).marks]
    assert marks == [
        ("created", 0),
        ("queued", 0),
        ("started", 1),
        ("first token", 2),
        ("incomplete", 3),
    ]


def test_a_call_is_a_mark_with_its_name_unless_names_are_contents() -> None:
    log = Log().item(1, 0, type="function_call", name="weather")
    shown, hidden = (timeline(log.rows, CREATED, names=names) for names in (True, False))
    assert shown.marks[0].label == shown.lanes[0].title == "function_call weather"
    assert hidden.marks[0].label == hidden.lanes[0].title == "function_call"


def test_another_attempt_is_a_takeover_and_the_first_one_is_none() -> None:
    log = Log().whole(0, "response.queued", 0).deltas(1, "a", attempt=1).deltas(2, "b", attempt=2)
    log.deltas(3, "c", attempt=2)
    labels = [mark.label for mark in timeline(log.rows, CREATED).marks]
    assert labels == ["queued", "first token", "taken over by another replica, attempt 2"]


def test_pauses_of_more_than_a_second_are_gaps() -> None:
    log = Log().deltas(0, "a").deltas(GAP_S, "b").deltas(4, "c")
    (gap,) = timeline(log.rows, CREATED).gaps
    assert (gap.begin, gap.seconds) == (1, 3)


def test_times_before_the_creation_are_drawn_at_its_begin() -> None:
    log = Log().deltas(-5, "a").deltas(2, "b")
    assert [lane.begin for lane in timeline(log.rows, CREATED).lanes] == [0]


def test_ticks_of_one_unit_are_one_tick_in_a_darker_shade() -> None:
    paths = tick_paths({0.1: 1, 1.0: 2, 1.04: 6}, scale=10)
    assert paths == ["M1 0V1", "", "M10 0V1"]


def test_a_drawing_of_100_000_events_is_small() -> None:
    log = Log()
    for number in range(100_000 // 4):
        log.rows.append(
            LogRow(
                4 * number,
                4,
                Kind.OUTPUT_TEXT_DELTA,
                0,
                0,
                CREATED.timestamp() + number / 100,
                msgspec.Raw(b"[]"),
                1,
            )
        )
    drawn = timeline(log.rows, CREATED)
    assert (drawn.events, drawn.lanes[0].deltas) == (100_000, 100_000)
    assert sum(map(len, drawn.ticks(drawn.lanes[0]))) < 10 * WIDTH


def test_lanes_marks_and_gaps_are_bounded() -> None:
    log = Log()
    for number in range(1000):
        log.item(2 * number, number, type="mcp_call", name="tool")
    log.whole(2000, "response.completed")
    drawn = timeline(log.rows, CREATED)
    assert (len(drawn.lanes), drawn.more_lanes) == (MAX_LANES, 1000 - MAX_LANES)
    assert (len(drawn.gaps), len(drawn.marks)) == (MAX_GAPS, MAX_MARKS)
    assert drawn.marks[-1].label == "completed"
