import json
import zlib

import pytest

from server.protocol.responses.events import (
    Event,
    EventId,
    Kind,
    error_frame,
    frame,
    frame_id,
    parse_event_id,
    render,
    same_event,
    split_frame,
)
from tests.support.builders import RESPONSE

WORD = Event(57, Kind.OUTPUT_TEXT_DELTA, 0, 0, "word")


def test_id_of_a_stored_event_has_its_number_the_attempt_and_the_crc_of_its_json() -> None:
    digest = zlib.crc32(render(RESPONSE, WORD))
    assert frame(RESPONSE, WORD, 2).startswith(b"id: 57-2.%08x\n" % digest)
    assert frame_id(frame(RESPONSE, WORD, 2)) == EventId(57, f"2.{digest:08x}")


def test_id_of_an_event_without_a_known_attempt_is_its_number() -> None:
    assert frame_id(frame(RESPONSE, WORD)) == EventId(57, None)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("0", EventId(0)),
        ("999999999", EventId(999_999_999)),
        ("57-2.9f3c07aa", EventId(57, "2.9f3c07aa")),
        ("57-0.00000000", EventId(57, "0.00000000")),
    ],
)
def test_number_or_id_is_read(text: str, event: EventId) -> None:
    assert parse_event_id(text) == event


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1.5",
        "1" * 10,
        "57-",
        "57-2",
        "57-2.9f3c07a",
        "57-2.9F3C07AA",
        "57-2.9f3c07aa\n",
        " 5",
        "٣",
        "5-٣.00000000",
    ],
)
def test_what_was_never_an_id_is_none(text: str) -> None:
    assert parse_event_id(text) is None


def test_events_are_the_same_unless_number_attempt_or_content_differ() -> None:
    one = frame(RESPONSE, WORD, 2)
    assert same_event(one, frame(RESPONSE, WORD, 2))
    assert not same_event(one, frame(RESPONSE, WORD, 3))
    assert not same_event(one, frame(RESPONSE, WORD._replace(body="words"), 2))
    assert not same_event(one, frame(RESPONSE, WORD._replace(sequence_number=58), 2))


def test_event_without_a_mark_may_be_any_of_its_number() -> None:
    plain = frame(RESPONSE, WORD)
    assert same_event(plain, frame(RESPONSE, WORD._replace(body="words"), 2))
    assert not same_event(plain, frame(RESPONSE, WORD._replace(sequence_number=58), 2))


def test_error_event_has_no_id_and_ends_like_openai_s() -> None:
    made = error_frame(7, "stream_forked", "Read it again.")
    assert frame_id(made) is None
    kind, data = split_frame(made)
    assert kind == b"error"
    assert json.loads(data) == {
        "type": "error",
        "sequence_number": 7,
        "code": "stream_forked",
        "message": "Read it again.",
        "param": None,
    }
