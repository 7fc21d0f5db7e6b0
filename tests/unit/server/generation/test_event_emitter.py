from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from server.generation.event_emitter import EventEmitter
from server.model_formats.model_format import CallDelta, CallStart, Delta, ReasoningDelta, TextDelta
from server.protocol.responses.events import Event, event_type, first_events, render
from server.protocol.responses.items import Message, Reasoning
from server.protocol.responses.response import Ending, EndStatus
from tests.support.builders import (
    CREATED,
    LATER,
    RESPONSE,
    SDK_EVENT,
    examples,
    make_echo,
    make_facts,
    rendered,
)
from tests.support.event_order import EventOrder, deltas, is_terminal

STATUSES: tuple[EndStatus, ...] = get_args(EndStatus)
statuses = st.sampled_from(STATUSES)


def make_ending(status: EndStatus, **changes: Any) -> Ending:
    fields: dict[str, Any] = {
        "first_token_at": None,
        "finished_at": LATER,
        "input_tokens": 3,
        "cached_tokens": 1,
        "output_tokens": 2,
        "reasoning_tokens": 0,
    }
    return Ending(status=status, **{**fields, **changes})


def emit(said: Sequence[Delta], status: EndStatus, **changes: Any) -> tuple[list[Event], EventEmitter]:
    emitter = EventEmitter(RESPONSE, CREATED, make_echo())
    events = first_events(make_facts(), make_echo())
    for delta in said:
        events += emitter.delta(delta)
    last, _ = emitter.end(make_ending(status, **changes))
    return events + last, emitter


def types(events: list[Event]) -> list[str]:
    return [event_type(event).removeprefix("response.") for event in events]


@given(deltas, statuses)
@examples(150)
def test_events_are_numbered_without_a_gap_and_one_terminal_event_is_last(
    said: list[Delta], status: EndStatus
) -> None:
    events, _ = emit(said, status)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [msgspec.json.decode(render(RESPONSE, e))["sequence_number"] for e in events] == list(
        range(len(events))
    )
    assert types(events)[:2] == ["created", "in_progress"]
    assert [is_terminal(event) for event in events] == [False] * (len(events) - 1) + [True]


def texts_in(kind: str, items: Sequence[dict[str, Any]]) -> str:
    """All that the items of one type say."""
    return "".join(part["text"] for item in items if item["type"] == kind for part in item["content"])


@given(deltas, statuses)
@examples(300)
def test_items_come_in_openais_order_and_say_what_their_deltas_said(
    said: list[Delta], status: EndStatus
) -> None:
    events, emitter = emit(said, status)
    order = EventOrder()
    order.take_all(rendered(RESPONSE, events))
    assert order.items == msgspec.to_builtins(emitter.output)
    assert texts_in("message", order.items) == "".join(d.text for d in said if isinstance(d, TextDelta))
    assert texts_in("reasoning", order.items) == "".join(
        d.text for d in said if isinstance(d, ReasoningDelta)
    )
    calls = "".join(item.get("arguments", item.get("input", "")) for item in order.items)
    assert calls == "".join(d.text for d in said if isinstance(d, CallDelta))
    assert [item["name"] for item in order.items if "name" in item] == [
        start.name for start in said if isinstance(start, CallStart)
    ]


@given(deltas, st.integers(0, 12), st.sampled_from(["failed", "cancelled"]))
@examples(200)
def test_stream_that_another_emitter_ends_after_any_commit_is_in_order(
    said: list[Delta], commits: int, status: EndStatus
) -> None:
    first, second = EventEmitter(RESPONSE, CREATED, make_echo()), EventEmitter(RESPONSE, CREATED, make_echo())
    before = first_events(make_facts(), make_echo())
    for delta in said[:commits]:
        before += first.delta(delta)
    second.restore(before)
    second.numbers.next_seq = len(before)
    last, _ = second.end(make_ending(status))
    EventOrder().take_all(rendered(RESPONSE, [*before, *last]))


@given(deltas, statuses)
@examples(60)
def test_every_event_is_accepted_by_openais_types_and_helper(said: list[Delta], status: EndStatus) -> None:
    events, _ = emit(said, status, error_code="server_error" if status == "failed" else None)
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    heard = ""
    for event in events:
        read: ResponseStreamEvent = SDK_EVENT.validate_json(render(RESPONSE, event))
        for told in state.handle_event(read):
            if told.type == "response.output_text.delta":
                heard += told.delta
    assert heard == "".join(delta.text for delta in said if isinstance(delta, TextDelta))
    if status == "completed":
        completed = state._completed_response
        assert completed is not None
        assert completed.output_text == heard


@given(deltas, statuses)
@examples(80)
def test_the_same_deltas_give_the_same_bytes(said: list[Delta], status: EndStatus) -> None:
    first, _ = emit(said, status)
    second, _ = emit(said, status)
    assert [render(RESPONSE, event) for event in first] == [render(RESPONSE, event) for event in second]


def test_an_answer_is_told_in_openais_order() -> None:
    events, _ = emit([ReasoningDelta("r"), TextDelta("a"), TextDelta("b")], "completed")
    assert types(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


@pytest.mark.parametrize("said", [[], [ReasoningDelta("only thought")]])
def test_a_completed_response_without_text_has_an_empty_message(said: list[Delta]) -> None:
    _, emitter = emit(said, "completed")
    last = emitter.output[-1]
    assert isinstance(last, Message)
    assert [part.text for part in last.content] == [""]  # type: ignore[union-attr]
    assert len(emitter.output) == len(said) + 1


@pytest.mark.parametrize("status", ["failed", "incomplete", "cancelled"])
def test_a_response_that_was_broken_off_gets_no_message_of_ours(status: EndStatus) -> None:
    assert emit([], status)[1].output == []
    assert [type(item) for item in emit([ReasoningDelta("r")], status)[1].output] == [Reasoning]


@pytest.mark.parametrize(
    ("status", "last", "item"),
    [
        ("completed", "completed", "completed"),
        ("incomplete", "incomplete", "incomplete"),
        ("failed", "failed", "incomplete"),
        ("cancelled", "incomplete", "incomplete"),
    ],
)
def test_an_ending_names_its_event_and_leaves_the_open_item_as_it_is(
    status: EndStatus, last: str, item: str
) -> None:
    events, emitter = emit([ReasoningDelta("r"), TextDelta("a")], status)
    assert types(events)[-1] == last
    assert [made.status for made in emitter.output] == ["completed", item]


def test_the_final_response_says_how_it_ended() -> None:
    ending = make_ending(
        "failed",
        input_tokens=10,
        cached_tokens=4,
        output_tokens=5,
        reasoning_tokens=2,
        error_code="server_error",
        error_message="Why.",
    )
    emitter = EventEmitter(RESPONSE, CREATED, make_echo(metadata={"k": "v"}))
    _, final = emitter.end(ending)
    told = msgspec.to_builtins(final)
    assert told["error"] == {"code": "server_error", "message": "Why."}
    assert told["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {
            "cached_tokens": 4,
            "cache_write_tokens": 0,
        },
        "output_tokens": 5,
        "output_tokens_details": {
            "reasoning_tokens": 2,
            "tool_output_tokens": 0,
        },
        "total_tokens": 15,
    }
    assert (told["completed_at"], told["incomplete_details"], told["metadata"]) == (None, None, {"k": "v"})


def test_only_a_completed_response_has_a_completion_time() -> None:
    for status in STATUSES:
        emitter = EventEmitter(RESPONSE, CREATED, make_echo())
        _, final = emitter.end(make_ending(status))
        assert final.completed_at == (int(LATER.timestamp()) if status == "completed" else None)
