from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol.responses import events as wire
from server.protocol.responses.events import Event, Kind, event_type, frame, render
from server.protocol.responses.items import (
    Logprob,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    ShellOutcome,
    ShellOutput,
    SummaryText,
    TopLogprob,
)
from server.protocol.responses.response import build_response
from server.store import log_append, log_read
from tests.support.builders import CREATED, RESPONSE, SDK_EVENT, TENANT, examples, make_echo

AWKWARD = ["", "\0", "\u2028\u2029", '"\\/', "\\u0000", "😀", "\x01\x1f\x7f", "</think>", "\r\n\n", "é"]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(AWKWARD)

RUNNING = build_response(RESPONSE, CREATED, make_echo(), "in_progress", [])
MESSAGE = Message(f"msg_{RESPONSE.hex}o1", "completed", "assistant", [OutputText("a")])
REASONING = Reasoning(f"rs_{RESPONSE.hex}o0", "completed", [], [ReasoningText("b")])


def make_whole(kind: type[Any], text: str = "a") -> Event:
    """One whole event of that class, its fields filled by their names."""
    filled: dict[str, object] = {
        "sequence_number": 5,
        "response": RUNNING,
        "output_index": 1,
        "content_index": 0,
        "summary_index": 0,
        "item_id": MESSAGE.id,
        "item": MESSAGE,
        "part": OutputText(text),
        "text": text,
        "name": text,
        "delta": text,
        "code": text,
        "arguments": text,
        "input": text,
        "side": "output",
        "token_ids": [1],
        "command_index": 0,
        "command": text,
        "output": [ShellOutput(text, text, ShellOutcome("exit", 0))],
    }
    fields = kind.__struct_fields__
    if kind is wire.ShellOutputDelta:
        filled["delta"] = {"stdout": text, "stderr": text}
    if "summary_index" in fields:
        filled["part"] = SummaryText(text)
    return wire.whole_event(kind(**{name: value for name, value in filled.items() if name in fields}))


WHOLE_EVENTS = [kind for kind in get_args(wire.StreamEvent) if issubclass(kind, wire.WholeEvent)]
WHOLE = [make_whole(kind) for kind in WHOLE_EVENTS]
LOGPROB = Logprob("a", [97], -0.5, [TopLogprob("b", [98], -1.5)])
BARE = frozenset({Kind.WHOLE, Kind.OUTPUT_TEXT_DELTA_WITH_LOGPROBS})
DELTAS = [
    *(Event(7, kind, 1, 0, "a") for kind in Kind if kind not in BARE),
    wire.text_delta(7, 1, "a", [LOGPROB]),
]


def unpacked(events: list[Event]) -> list[Event]:
    return [
        event
        for chunk in log_append.encode_rows(TENANT, RESPONSE, 1, events, [])
        for event in log_read.decode_row(
            chunk.first_seq, chunk.kind, chunk.output_index, chunk.content_index, chunk.body
        )
    ]


OURS = "holdfast:tokens"
"""Told to nobody who has not asked for it, under a name that is no one else's."""


@pytest.mark.parametrize(
    "event", [event for event in WHOLE + DELTAS if event_type(event) != OURS], ids=event_type
)
def test_every_event_is_one_of_openais(event: Event) -> None:
    read = SDK_EVENT.validate_json(render(RESPONSE, event))
    assert read.type == event_type(event)
    assert read.sequence_number == event.sequence_number
    assert set(read.model_extra or ()) <= {"name"}, "which OpenAI's document has, and the SDK not yet"


@pytest.mark.parametrize("kind", WHOLE_EVENTS)
def test_the_type_of_an_event_is_its_tag(kind: type[Any]) -> None:
    assert event_type(make_whole(kind)) == kind.__struct_config__.tag


def test_a_reasoning_part_and_item_are_openais_too() -> None:
    for event in (
        wire.ContentPartAdded(2, REASONING.id, 0, 0, ReasoningText("")),
        wire.OutputItemDone(3, 0, REASONING),
    ):
        SDK_EVENT.validate_json(render(RESPONSE, wire.whole_event(event)))


@given(texts, st.integers(0, 10**6), st.integers(0, 300), st.sampled_from(DELTAS))
@examples(100)
def test_a_rendered_delta_says_the_text_and_its_place(text: str, seq: int, index: int, sample: Event) -> None:
    event = Event(seq, sample.kind, index, 0, text)
    if sample.kind not in BARE:
        assert wire.delta_of(event) == (sample.kind, text, [])
    else:
        event = wire.text_delta(seq, index, text, [LOGPROB])
        assert wire.delta_of(event) == (Kind.OUTPUT_TEXT_DELTA, text, [LOGPROB])
    read = msgspec.json.decode(render(RESPONSE, event))
    prefix = wire.ITEM_PREFIX[sample.kind]
    assert (read["delta"], read["sequence_number"], read["output_index"]) == (text, seq, index)
    assert read["item_id"] == f"{prefix}_{RESPONSE.hex}o{index:x}"


@given(st.lists(st.tuples(texts, st.integers(0, 4)), max_size=12), st.integers(0, 1000))
@examples(200)
def test_events_unpacked_from_the_log_render_to_the_same_bytes(
    said: list[tuple[str, int]], first: int
) -> None:
    events: list[Event] = []
    for offset, (text, shape) in enumerate(said):
        number = first + offset
        match shape:
            case 0:
                events.append(wire.whole_event(wire.OutputTextDone(number, "i", 0, 0, text)))
            case 1 | 2:
                events.append(Event(number, Kind.OUTPUT_TEXT_DELTA, shape, 0, text))
            case 3:
                events.append(Event(number, Kind.REASONING_TEXT_DELTA, shape, 0, text))
            case _:
                events.append(Event(number, Kind.FUNCTION_CALL_ARGUMENTS_DELTA, shape, 0, text))
    again = unpacked(events)
    assert again == events
    assert [render(RESPONSE, event) for event in again] == [render(RESPONSE, event) for event in events]


def test_neighbouring_deltas_of_one_place_share_a_row_and_others_do_not() -> None:
    events = [
        Event(0, Kind.OUTPUT_TEXT_DELTA, 0, 0, "a"),
        Event(1, Kind.OUTPUT_TEXT_DELTA, 0, 0, "b"),
        Event(2, Kind.OUTPUT_TEXT_DELTA, 1, 0, "c"),
        Event(3, Kind.REASONING_TEXT_DELTA, 1, 0, "d"),
        make_whole(wire.OutputItemDone)._replace(sequence_number=4),
        make_whole(wire.OutputItemDone)._replace(sequence_number=5),
    ]
    assert [
        (chunk.first_seq, chunk.n) for chunk in log_append.encode_rows(TENANT, RESPONSE, 1, events, [])
    ] == [
        (0, 2),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 1),
    ]


def test_tokens_travel_on_the_first_row_and_only_there() -> None:
    events = [WHOLE[0], *DELTAS]
    chunks = log_append.encode_rows(TENANT, RESPONSE, 1, events, [1, 2**31 - 1])
    assert [chunk.token_ids for chunk in chunks] == [b"\1\0\0\0\xff\xff\xff\x7f", *[None] * len(DELTAS)]
    assert log_append.encode_rows(TENANT, RESPONSE, 1, events, [])[0].token_ids is None


@given(texts)
@examples(100)
def test_a_frame_has_one_id_line_one_event_line_and_one_data_line(text: str) -> None:
    for event in (Event(1, Kind.OUTPUT_TEXT_DELTA, 0, 0, text), make_whole(wire.OutputTextDone, text)):
        data = render(RESPONSE, event)
        made = frame(RESPONSE, event)
        number = str(event.sequence_number).encode()
        assert made == b"id: %b\nevent: %b\ndata: %b\n\n" % (number, event_type(event).encode(), data)
        assert made.count(b"\n") == 4
        assert b"\r" not in made
