"""Pages of events for the replay."""

from typing import Any

import msgspec
import pytest

from server.console.pages.response_events import MAX_BYTES, MAX_PAYLOAD_BYTES, event_page
from server.protocol.responses.events import Kind
from server.store.log_read import LogRow
from tests.unit.server.console.test_timeline import CREATED, Log


def page(log: Log, first: int = 0, limit: int = 100, *, contents: bool = True) -> list[dict[str, Any]]:
    found = event_page(log.rows, first, limit, created_at=CREATED, contents=contents)
    decoded: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(found))
    return decoded


LOG = Log().whole(0.5, "response.output_item.added", output_index=3, item={"type": "message"})
LOG.deltas(1.25, "a", "b", index=3, attempt=2)


def test_an_event_has_number_type_time_item_attempt_and_contents() -> None:
    added, first, second = page(LOG)
    assert added == {
        "sequence_number": 0,
        "type": "response.output_item.added",
        "ms": 500,
        "attempt": 1,
        "output_index": 3,
        "payload": msgspec.json.decode(LOG.rows[0].body),
    }
    assert first == {
        "sequence_number": 1,
        "type": "response.output_text.delta",
        "ms": 1250,
        "attempt": 2,
        "output_index": 3,
        "content_index": 0,
        "delta": "a",
    }
    assert second == {**first, "sequence_number": 2, "delta": "b"}


def test_without_contents_there_are_types_and_times() -> None:
    for event in page(LOG, contents=False):
        assert event.keys() == {"sequence_number", "type", "ms", "attempt", "output_index"}


@pytest.mark.parametrize(
    ("first", "limit", "numbers"), [(0, 2, [0, 1]), (2, 5, [2]), (3, 5, []), (1, 1, [1])]
)
def test_a_page_begins_and_ends_within_rows(first: int, limit: int, numbers: list[int]) -> None:
    assert [event["sequence_number"] for event in page(LOG, first, limit)] == numbers


def test_an_event_of_the_response_itself_has_no_item() -> None:
    (event,) = page(Log().whole(0, "response.completed", response={}))
    assert "output_index" not in event


def test_a_delta_with_logprobs_is_its_text() -> None:
    body = msgspec.Raw(msgspec.json.encode([msgspec.json.encode(["word", []]).decode()]))
    row = LogRow(0, 1, Kind.OUTPUT_TEXT_DELTA_WITH_LOGPROBS, 0, 0, CREATED.timestamp(), body, 1)
    (event,) = event_page([row], 0, 10, created_at=CREATED, contents=True)
    assert event["delta"] == "word"


def test_a_page_ends_after_a_megabyte_and_a_long_payload_is_its_size() -> None:
    log = Log()
    for _ in range(20):
        log.whole(0, "response.output_text.done", output_index=0, text="x" * MAX_PAYLOAD_BYTES)
    events = page(log)
    assert len(events) == MAX_BYTES // MAX_PAYLOAD_BYTES
    assert "payload" not in events[0]
    assert events[0]["bytes"] > MAX_PAYLOAD_BYTES
