from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import FinishReason
from server.maintenance.audit_event_log import SLACK
from server.maintenance.audit_responses import INVARIANTS, AuditLimits, check, check_stray
from server.protocol import ids
from server.protocol.responses.events import Event
from server.store.audit_snapshot import (
    AuditedResponse,
    PageTime,
    Replay,
    Stray,
)
from tests.support.audited import NOW, SERVED, broken, ended, log_of, logged, running, says
from tests.support.builders import CREATED, HALF, LATER, RESPONSE, TENANT, examples, say, think

OTHER = UUID("01890000-0000-7000-8000-0000000000cd")
BEFORE = CREATED - timedelta(minutes=1)
AFTER = NOW + timedelta(minutes=1)

PART_DONE = "response.content_part.done"
SILENT = '{"type":"message","id":"x","status":"completed","role":"assistant","content":[]}'

Wound = Callable[[AuditedResponse], AuditedResponse]


def with_event(kind: str, change: Callable[[dict[str, Any]], object]) -> Wound:
    """Changes the JSON of the first event of that type."""

    def wound(response: AuditedResponse) -> AuditedResponse:
        rows = log_of(response)
        change(next(row[6] for row in rows if row[2] == 0 and row[6]["type"] == kind))
        return logged(response, rows)

    return wound


def told(kind: str, **changes: Any) -> Wound:
    """Changes fields of the first event of that type."""
    return with_event(f"response.{kind}", lambda event: event.update(changes))


def carried(kind: str, **changes: Any) -> Wound:
    """Changes fields of the response that the first event of that type carries."""
    return with_event(f"response.{kind}", lambda event: event["response"].update(changes))


def end_without(name: str) -> Wound:
    """Takes a field from the response that the terminal event carries."""
    return with_event("response.completed", lambda event: event["response"].pop(name))


def replayed(change: Callable[[Sequence[Event]], Sequence[Event]]) -> Wound:
    """Changes what a reader from the start gets."""

    def wound(response: AuditedResponse) -> AuditedResponse:
        return replace(response, replays=[Replay(0, change(response.replays[0].events))])

    return wound


def with_rows(change: Callable[[list[list[Any]]], object]) -> Wound:
    """Changes the rows of the log."""

    def wound(response: AuditedResponse) -> AuditedResponse:
        rows = log_of(response)
        change(rows)
        return logged(response, rows)

    return wound


def number_anew(rows: list[list[Any]]) -> None:
    """Gives rows the numbers of their places, so that nothing but what they say is wrong."""
    number = 0
    for row in rows:
        row[0] = number
        if row[2] == 0:
            row[6]["sequence_number"] = number
        number += row[1]


def without_event(kind: str) -> Wound:
    def change(rows: list[list[Any]]) -> None:
        rows[:] = [row for row in rows if row[2] != 0 or row[6]["type"] != kind]
        number_anew(rows)

    return with_rows(change)


def with_event_twice(kind: str) -> Wound:
    def change(rows: list[list[Any]]) -> None:
        place = next(place for place, row in enumerate(rows) if row[2] == 0 and row[6]["type"] == kind)
        rows.insert(place, [*rows[place][:6], dict(rows[place][6]), 1])
        number_anew(rows)

    return with_rows(change)


def set_delta(rows: list[list[Any]]) -> None:
    next(row for row in rows if row[2] == 1)[6][0] = "J"


def with_item(index: int, **changes: Any) -> Wound:
    def wound(response: AuditedResponse) -> AuditedResponse:
        items = list(response.items)
        items[index] = replace(items[index], **changes)
        return replace(response, items=items)

    return wound


def with_folded(**changes: Any) -> Wound:
    def wound(response: AuditedResponse) -> AuditedResponse:
        assert response.folded is not None
        return replace(response, folded=replace(response.folded, **changes), replays=[])

    return wound


def with_metered(**changes: Any) -> Wound:
    def wound(response: AuditedResponse) -> AuditedResponse:
        assert response.ledger_entry is not None
        return replace(response, ledger_entry=replace(response.ledger_entry, **changes))

    return wound


def on_row(**changes: Any) -> Wound:
    return lambda response: says(response, **changes)


WOUNDS: list[tuple[str, str, Wound]] = [
    ("I2", "a row is missing", with_rows(lambda rows: rows.pop(3))),
    ("I2", "a row is there twice", with_rows(lambda rows: rows.insert(3, rows[3]))),
    ("I2", "the first row is missing", with_rows(lambda rows: rows.pop(0))),
    ("I2", "a row counts wrongly", with_rows(lambda rows: rows[4].__setitem__(1, 9))),
    ("I2", "an event has another's number", told("completed", sequence_number=1)),
    ("I2", "the stream counts wrongly", with_folded(last_seq=3)),
    ("I2", "the codec is unknown", with_folded(codec=9)),
    ("I2", "the stream is cut", with_folded(body="[[0,1,0,0,0,1.5,{")),
    ("I2", "an event is no object", with_rows(lambda rows: rows[5].__setitem__(6, 12))),
    ("I2", "the kind is unknown", with_rows(lambda rows: rows[4].__setitem__(2, 77))),
    ("I2", "the stream is gone", lambda response: replace(response, folded=None, replays=[])),
    ("I2", "the running log is left", lambda response: replace(response, hot=running().hot)),
    ("I3", "the end is missing", without_event("response.completed")),
    ("I3", "the end is there twice", with_event_twice("response.completed")),
    ("I3", "the beginning is missing", without_event("response.created")),
    ("I3", "the beginning is another's", carried("created", id="resp_1")),
    ("I3", "the end says otherwise", carried("completed", status="failed")),
    ("I3", "the end lacks output", end_without("output")),
    ("I3", "the end repeats another request", carried("completed", user="x")),
    ("I3", "the row says otherwise", on_row(status="incomplete", incomplete_reason="max_output_tokens")),
    ("I3", "another time of its end", on_row(finished_at=LATER + timedelta(seconds=2))),
    ("I3", "an item is gone", lambda response: replace(response, items=response.items[:-1])),
    ("I4", "the start is lost", replayed(lambda events: events[1:])),
    ("I4", "the end is lost", replayed(lambda events: events[:-1])),
    ("I6", "a delta is other", with_rows(set_delta)),
    ("I6", "an item is never added", without_event("response.output_item.added")),
    ("I6", "an item is added twice", with_event_twice("response.output_item.added")),
    ("I6", "an item is never done", without_event("response.output_item.done")),
    ("I6", "an item is done twice", with_event_twice("response.output_item.done")),
    ("I6", "text done twice says otherwise", told("output_text.done", text="x")),
    ("I6", "part done says otherwise", with_event(PART_DONE, lambda event: event["part"].update(text="x"))),
    ("I6", "an index is skipped", told("output_item.added", output_index=1)),
    ("I6", "an event names another item", told("output_text.done", item_id="msg_1")),
    ("I6", "usage is told otherwise", on_row(output_tokens=99)),
    ("I6", "the ledger counts otherwise", with_metered(input_tokens=99)),
    ("I6", "the ledger has another end", with_metered(status="failed")),
    ("I6", "the item says otherwise", with_item(-1, payload=SILENT)),
    ("I6", "the item cannot be read", with_item(0, payload='{"type":"message"}')),
    ("I6", "the item's status is other", with_item(0, status="incomplete")),
    ("I7", "the ledger has no line", lambda response: replace(response, ledger_entry=None)),
    ("I7", "the ledger says it is not stored", with_metered(stored=False)),
    ("I7", "the ledger has another key", with_metered(key_id="k2")),
    ("I9", "it follows a stranger", on_row(previous_id=OTHER)),
    ("I9", "an item is another's", with_item(0, id=ids.item_id("msg", OTHER, "i", 0))),
    ("I9", "an item is of another place", with_item(0, idx=1)),
    ("I11", "it has no end", on_row(finished_at=None)),
    ("I11", "it is not counted", on_row(reasoning_tokens=None)),
    ("I11", "it never began", on_row(started_at=None)),
    ("I11", "it completed with an error", on_row(error_code="server_error")),
    ("I11", "it completed incompletely", on_row(incomplete_reason="max_output_tokens")),
    ("I12", "it died more often than it was begun", on_row(deaths=2)),
    ("I14", "it began before it was there", on_row(started_at=BEFORE)),
    ("I14", "it began after its end", on_row(first_token_at=NOW)),
    ("I14", "it ended before it was there", on_row(finished_at=BEFORE)),
    ("I14", "its events are older than itself", with_rows(lambda rows: rows[0].__setitem__(5, 1.0))),
    ("I14", "an event is older than the one before", with_rows(lambda rows: rows[4].__setitem__(5, 1.0))),
    ("I14", "an event is in the future", with_rows(lambda rows: rows[-1].__setitem__(5, AFTER.timestamp()))),
    ("I16", "it is deleted and nothing needs it", on_row(deleted_at=LATER)),
    ("I16", "it is deleted and its stream is kept", on_row(deleted_at=LATER, has_next=True)),
    ("I17", "a picture is kept for no item", lambda response: replace(response, image_uses={("msg_1", b"")})),
]  # fmt: skip

RUNNING_WOUNDS: list[tuple[str, str, Wound]] = [
    ("I2", "a row is missing", lambda response: replace(response, hot=[response.hot[0], *response.hot[2:]])),
    ("I2", "it has no event", lambda response: replace(response, hot=[])),
    ("I2", "it is folded", lambda response: replace(response, folded=ended().folded)),
    ("I3", "its log has an end", lambda response: replace(response, folded=ended().folded)),
    ("I7", "it is metered", lambda response: replace(response, ledger_entry=ended().ledger_entry)),
    ("I11", "it has an end", on_row(finished_at=LATER)),
    ("I11", "it has usage", on_row(output_tokens=1)),
    ("I11", "it has an error", on_row(error_code="server_error")),
    ("I11", "it is queued, but began", on_row(status="queued")),
    ("I11", "it never began", on_row(started_at=None)),
    ("I11", "it has output items", lambda response: replace(response, items=ended().items)),
    ("I12", "an attempt before the last goes on", lambda response: replace(
        response, hot=[response.hot[0], response.hot[1]._replace(attempt=0)])),
    ("I12", "an attempt that its row does not know", lambda response: replace(
        response, hot=[row._replace(attempt=2) for row in response.hot])),
    ("I14", "it was made in the future", on_row(created_at=AFTER)),
]  # fmt: skip


def test_nothing_is_wrong_with_what_a_run_leaves() -> None:
    assert check(ended(), SERVED, AuditLimits()) == []
    assert check(running(), SERVED, AuditLimits()) == []


def test_an_input_item_may_have_the_id_that_it_was_sent_with() -> None:
    def sent_as(id_: str) -> AuditedResponse:
        item = running().items[0]
        return with_item(0, id=id_, payload=item.payload.replace(item.id, id_))(running())

    assert broken(sent_as("msg_68af1")) == broken(sent_as(ids.item_id("msg", OTHER, "o", 1))) == set()
    for wrong in (ids.item_id("msg", RESPONSE, "i", 1), ids.item_id("msg", RESPONSE, "o", 0), "rs_68af1"):
        assert broken(sent_as(wrong)) == {"I9"}


@pytest.mark.parametrize(
    ("invariant", "wound"),
    [(name, wound) for name, _, wound in WOUNDS],
    ids=[f"{name}: {told}" for name, told, _ in WOUNDS],
)
def test_a_damaged_response_is_found(invariant: str, wound: Wound) -> None:
    assert invariant in broken(wound(ended()))


@pytest.mark.parametrize(
    ("invariant", "wound"),
    [(name, wound) for name, _, wound in RUNNING_WOUNDS],
    ids=[f"{name}: {told}" for name, told, _ in RUNNING_WOUNDS],
)
def test_a_damaged_running_response_is_found(invariant: str, wound: Wound) -> None:
    assert invariant in broken(wound(running()))


def test_every_invariant_of_one_response_has_a_wound_that_breaks_it() -> None:
    wounded = {name for name, *_ in (*WOUNDS, *RUNNING_WOUNDS)}
    assert wounded | {"I1", "I8"} == set(INVARIANTS)


spoken = st.lists(st.lists(st.sampled_from([*say('ab"\n\0é'), *think("xy"), HALF]), max_size=6), max_size=6)


@given(spoken, st.sampled_from(["stop", "length", "cancelled", None]))
@examples(100)
def test_whatever_a_model_says_and_however_it_ends_nothing_is_wrong(
    given_tokens: list[list[int]], reason: FinishReason | None
) -> None:
    assert check(ended(*given_tokens or [[]], reason=reason), SERVED, AuditLimits()) == []
    assert check(running(*given_tokens or [[]]), SERVED, AuditLimits()) == []


@given(spoken, st.data())
@examples(100)
def test_a_lost_or_doubled_row_of_any_log_is_found(
    given_tokens: list[list[int]], data: st.DataObject
) -> None:
    response = ended(*given_tokens or [[]])
    rows = log_of(response)
    place = data.draw(st.integers(0, len(rows) - 1))
    wounded = data.draw(
        st.sampled_from([rows[:place] + rows[place + 1 :], [*rows[:place], rows[place], *rows[place:]]])
    )
    assert broken(logged(response, wounded)) & {"I2", "I3"}


@given(spoken.filter(any), st.data())
@examples(100)
def test_a_changed_delta_of_any_log_is_found(given_tokens: list[list[int]], data: st.DataObject) -> None:
    response = ended(*given_tokens)
    rows = log_of(response)
    deltas = [row for row in rows if row[2] != 0]
    if deltas:
        row = data.draw(st.sampled_from(deltas))
        row[6][data.draw(st.integers(0, len(row[6]) - 1))] += "!"
        assert "I6" in broken(logged(response, rows))


def later(seconds: float) -> PageTime:
    """That long after everything that happened to the response, a server was there all the time."""
    return PageTime(NOW + timedelta(seconds=seconds), CREATED)


@pytest.mark.parametrize("state", ["alive", "dead", "stopped", None])
def test_a_response_whose_replica_is_silent_is_forgotten_after_the_grace(state: str | None) -> None:
    left = says(running(), replica_state=state, heartbeat_at=NOW if state else None)
    assert broken(left, later(10)) == set()
    assert broken(left, later(31)) == {"I1"}


def test_a_response_of_a_living_replica_may_take_for_ever() -> None:
    moment = later(1e6)
    assert broken(says(running(), heartbeat_at=moment.now - timedelta(seconds=20)), moment) == set()


def test_nothing_is_forgotten_while_no_server_lives_nor_just_after_one_came() -> None:
    left = says(running(), replica_state="dead")
    now = later(1e6).now
    assert broken(left, PageTime(now, None)) == set()
    assert broken(left, PageTime(now, now - timedelta(seconds=29))) == set()
    assert broken(left, PageTime(now, now - timedelta(seconds=31))) == {"I1"}


def test_a_queued_response_may_wait_for_ever() -> None:
    waiting = says(running(), status="queued", replica_id=None, started_at=None, queued_at=CREATED)
    assert broken(waiting, later(1e6)) == set()


def test_a_response_that_was_handed_back_may_wait_for_an_hour_from_its_last_event() -> None:
    handed_back = says(running(), replica_id=None)
    assert broken(handed_back, later(3500)) == set()
    assert broken(handed_back, later(3700)) == {"I1"}
    assert broken(handed_back, later(3700), AuditLimits(waiting_seconds=4000)) == set()


def test_a_background_response_without_its_request_cannot_be_begun_again() -> None:
    lost = says(running(), background=True, asked=None)
    assert broken(lost) == {"I1"}


def test_a_next_turn_is_after_the_end_of_the_one_before() -> None:
    request = ended().stored.request.replace(
        '"previous_response_id":null', f'"previous_response_id":"resp_{OTHER.hex}"'
    )
    turn = says(running(), previous_id=OTHER, request=request)
    assert broken(says(turn, previous_exists=True, previous_finished_at=BEFORE)) == set()
    assert broken(says(turn, previous_exists=True, previous_finished_at=None)) == {"I9"}
    assert broken(says(turn, previous_exists=True, previous_finished_at=NOW)) == {"I9"}
    assert broken(says(turn, previous_exists=False, previous_finished_at=None)) == {"I9"}
    assert broken(says(turn, previous_id=None)) == {"I9"}


def test_a_deleted_response_may_stay_for_a_later_one_without_its_stream() -> None:
    kept = says(replace(ended(), folded=None, replays=[]), deleted_at=LATER, has_next=True)
    assert broken(kept) == set()
    assert broken(says(running(), deleted_at=LATER)) == set()


def test_a_deleted_response_that_nothing_needs_may_wait_for_its_purge_once_it_has_expired() -> None:
    left = says(replace(ended(), folded=None, replays=[]), deleted_at=LATER)
    assert broken(says(left, expires_at=NOW)) == set()
    assert broken(says(left, expires_at=AFTER)) == {"I16"}
    assert "I16" in broken(says(ended(), deleted_at=LATER, expires_at=NOW))


def test_clocks_may_differ_by_less_than_the_slack() -> None:
    assert broken(says(ended(), started_at=CREATED - SLACK / 2)) == set()


def test_a_response_without_what_a_later_release_repeats_is_right() -> None:
    assert broken(end_without("user")(ended())) == set()


def test_a_failed_response_needs_an_error_and_an_incomplete_one_a_reason() -> None:
    assert "I11" in broken(says(ended(reason=None), error_code=None))
    assert "I11" in broken(says(ended(reason="length"), incomplete_reason=None))


def test_what_is_kept_for_no_response_is_told() -> None:
    found = check_stray(Stray("items", TENANT, RESPONSE, 3))
    assert (found.invariant, found.response_id) == ("I16", RESPONSE)
    assert "items has 3" in found.sentence


def test_keys_that_lead_to_one_response_or_to_none_are_told() -> None:
    strays = [Stray("shared keys", TENANT, RESPONSE, 2), Stray("lost keys", TENANT, OTHER, 1)]
    found = [check_stray(stray) for stray in strays]
    assert [(violation.invariant, violation.response_id) for violation in found] == [
        ("I8", RESPONSE),
        ("I7", OTHER),
    ]
