from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from server.dialects.base import Delta, ReasoningDelta, TextDelta
from server.runs.emitter import Emitter
from server.runs.states import Ending, EndStatus
from server.wire.events import Event, event_type, is_terminal, render
from server.wire.items import Message, Reasoning
from tests.support.builders import (
    CREATED,
    LATER,
    RESPONSE,
    SDK_EVENT,
    examples,
    make_echo,
    rendered,
)

STATUSES: tuple[EndStatus, ...] = get_args(EndStatus)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
deltas = st.lists(st.builds(TextDelta, texts) | st.builds(ReasoningDelta, texts), max_size=12)
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


def emit(said: Sequence[Delta], status: EndStatus, **changes: Any) -> tuple[list[Event], Emitter]:
    emitter = Emitter(RESPONSE, CREATED, make_echo())
    events = emitter.begin() + emitter.start()
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


class Protocol:
    """OpenAI's order, event by event: what must be open, and what each event must say of it."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self.stage = ""
        self.text = ""

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"].removeprefix("response.")
        if kind in ("created", "in_progress", "completed", "incomplete", "failed"):
            assert self.open is None
            return
        assert event["output_index"] == len(self.items)
        if kind == "output_item.added":
            assert self.open is None
            self.open, self.stage, self.text = event["item"], "added", ""
            assert self.open["status"] == "in_progress"
            assert self.open["content"] == []
            return
        assert self.open is not None
        self.take_part(kind, event, self.open)

    def take_part(self, kind: str, event: dict[str, Any], item: dict[str, Any]) -> None:
        family = "output_text" if item["type"] == "message" else "reasoning_text"
        if kind == "output_item.done":
            assert self.stage == "part done"
            assert event["item"]["id"] == item["id"]
            assert event["item"]["content"][0]["text"] == self.text
            self.items.append(event["item"])
            self.open = None
            return
        assert (event["item_id"], event["content_index"]) == (item["id"], 0)
        if kind == "content_part.added":
            assert (self.stage, event["part"]["type"], event["part"]["text"]) == ("added", family, "")
            self.stage = "text"
        elif kind == f"{family}.delta":
            assert self.stage == "text"
            self.text += event["delta"]
        elif kind == f"{family}.done":
            assert (self.stage, event["text"]) == ("text", self.text)
            self.stage = "text done"
        else:
            assert kind == "content_part.done"
            assert (self.stage, event["part"]["text"], event["part"]["type"]) == (
                "text done",
                self.text,
                family,
            )
            self.stage = "part done"


@given(deltas, statuses)
@examples(250)
def test_items_come_in_openais_order_and_say_what_their_deltas_said(
    said: list[Delta], status: EndStatus
) -> None:
    events, emitter = emit(said, status)
    protocol = Protocol()
    for event in rendered(RESPONSE, events):
        protocol.take(event)
    last = rendered(RESPONSE, events)[-1]["response"]
    assert last["output"] == protocol.items == msgspec.to_builtins(emitter.output)
    assert last["status"] == status
    for kind, wanted in (("message", TextDelta), ("reasoning", ReasoningDelta)):
        told = "".join(item["content"][0]["text"] for item in protocol.items if item["type"] == kind)
        assert told == "".join(delta.text for delta in said if isinstance(delta, wanted))


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
    emitter = Emitter(RESPONSE, CREATED, make_echo(metadata={"k": "v"}))
    emitter.begin()
    _, final = emitter.end(ending)
    told = msgspec.to_builtins(final)
    assert told["error"] == {"code": "server_error", "message": "Why."}
    assert told["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 15,
    }
    assert (told["completed_at"], told["incomplete_details"], told["metadata"]) == (None, None, {"k": "v"})


def test_only_a_completed_response_has_a_completion_time() -> None:
    for status in STATUSES:
        emitter = Emitter(RESPONSE, CREATED, make_echo())
        _, final = emitter.end(make_ending(status))
        assert final.completed_at == (int(LATER.timestamp()) if status == "completed" else None)
