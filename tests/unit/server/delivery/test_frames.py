from hypothesis import given

from server.delivery.frames import OpenResponsesNames, to_open_responses
from server.generation.event_emitter import EventEmitter
from server.model_formats.model_format import Delta, ReasoningDelta, TextDelta
from server.protocol.responses.events import Event, event_type, first_events, frame, render, split_frame
from tests.support.builders import CREATED, RESPONSE, examples, make_echo, make_ending, make_facts
from tests.support.event_order import deltas
from tests.support.sse import parse

RENAMED = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}


def emitted(said: list[Delta]) -> list[Event]:
    emitter = EventEmitter(RESPONSE, CREATED, make_echo())
    events = first_events(make_facts(), make_echo())
    for delta in said:
        events += emitter.delta(delta)
    return events + emitter.end(make_ending())[0]


def frames_of(said: list[Delta]) -> list[bytes]:
    return [frame(RESPONSE, event) for event in emitted(said)]


@given(deltas)
@examples(100)
def test_names_of_the_specification_change_two_types_and_nothing_else(said: list[Delta]) -> None:
    told = parse(b"".join(frames_of(said)))
    spec = parse(b"".join(OpenResponsesNames().rewrite(0, frames_of(said))))
    assert b"id: " in told[0].raw
    assert not any(one.raw.startswith(b"id: ") for one in spec)
    assert [one.event for one in spec] == [RENAMED.get(one.event, one.event) for one in told]
    assert [one.json for one in spec] == [
        {**one.json, "type": RENAMED.get(one.event, one.event)} for one in told
    ]


def test_text_that_spells_a_name_of_openais_is_told_as_it_is() -> None:
    spelled = '"type":"response.reasoning_text.delta" event: response.reasoning_text.delta'
    thought, answer = (
        next(one for one in frames_of([delta]) if b".delta" in one.split(b"\n")[1])
        for delta in (ReasoningDelta(spelled), TextDelta(spelled))
    )
    assert parse(to_open_responses(thought))[0].json["delta"] == spelled
    assert to_open_responses(answer) == answer.partition(b"\n")[2]


def test_a_frame_is_three_lines_and_a_blank_one_under_its_number_and_type() -> None:
    for event in emitted([TextDelta("a\nb\r\u2028c")]):
        number, head, data, *rest = frame(RESPONSE, event).split(b"\n")
        assert number == b"id: %d" % event.sequence_number
        assert head == b"event: " + event_type(event).encode()
        assert data.startswith(b"data: {")
        assert rest == [b"", b""]
        assert split_frame(frame(RESPONSE, event)) == (event_type(event).encode(), render(RESPONSE, event))
