import threading
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol.ids import new_uuid
from server.protocol.responses import events as wire
from server.protocol.responses.events import Event, Kind, event_type, render
from server.protocol.responses.items import Message, OutputText
from server.store import log_append, log_read
from server.store.database import Connection, Database
from tests.support.builders import TENANT, examples

AWKWARD = ["", "\0", "a\0b", "\\u0000", "\\\\u0000\0", "u0000", "\u2028", '"', "😀", "\x7f", "\ufdd0", "[]"]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(AWKWARD)
spoken = st.lists(st.tuples(st.sampled_from(["text", "thought", "done", "item"]), texts), max_size=10)


_ROW = """
    insert into responses (tenant, id, status, background, stream, model, seed, request, metadata, size, kind,
        turn)
    values (%(tenant)s, %(id)s, 'in_progress', false, true, 'm', 1, '{}', '{}', 100, 'response', 1)
"""


def write(connection: Connection, response: UUID, said: list[tuple[str, str]]) -> list[Event]:
    """Appends events that say this, in as many commits' worth of rows as there are; gives them."""
    made: list[Event] = []
    for number, (kind, text) in enumerate(said):
        item = f"msg_{response.hex}o{number:x}"
        match kind:
            case "text":
                event = Event(number, Kind.OUTPUT_TEXT_DELTA, 300, 0, text)
            case "thought":
                event = Event(number, Kind.REASONING_TEXT_DELTA, 1, 2, text)
            case "done":
                event = wire.whole_event(wire.OutputTextDone(number, item, 0, 0, text))
            case _:
                message = Message(item, "completed", "assistant", [OutputText(text)])
                event = wire.whole_event(wire.OutputItemDone(number, 17, message))
        made.append(event)
    connection.exec_driver_sql(_ROW, {"id": response, "tenant": TENANT})
    half = len(made) // 2
    for part in (made[:half], made[half:]):
        log_append.append(connection, log_append.encode_rows(TENANT, response, 1, part, []))
    return made


@given(spoken, st.integers(0, 12))
@examples(30)
def test_events_are_read_as_they_were_written_before_and_after_compaction(
    database: Database, said: list[tuple[str, str]], first: int
) -> None:
    response = new_uuid()
    with database.begin() as connection:
        made = write(connection, response, said)
        hot = log_read.read(connection, TENANT, response, first)
        log_append.fold(connection, [(TENANT, response)])
        cold = log_read.read(connection, TENANT, response, first)
    assert hot == cold == made[first:]
    assert [render(response, event) for event in cold] == [render(response, event) for event in made[first:]]


def view(connection: Connection, response: UUID) -> list[dict[str, Any]]:
    rows = connection.exec_driver_sql(
        "select *, payload::text as payload_text from v_events"
        " where response_id = %s order by sequence_number",
        (f"resp_{response.hex}",),
    )
    return [dict(row) for row in rows.mappings()]


@given(spoken)
@examples(30)
def test_the_view_shows_every_event_as_it_was_sent(database: Database, said: list[tuple[str, str]]) -> None:
    response = new_uuid()
    with database.begin() as connection:
        made = write(connection, response, said)
        hot = view(connection, response)
        log_append.fold(connection, [(TENANT, response)])
        cold = view(connection, response)
    assert hot == cold
    assert len(hot) == len(made)
    for row, event in zip(hot, made, strict=True):
        sent = msgspec.json.decode(render(response, event))
        assert (row["tenant"], row["type"]) == (TENANT, event_type(event))
        assert (row["sequence_number"], row["output_index"]) == (event.sequence_number, sent["output_index"])
        assert row["item_id"] == (sent["item"]["id"] if "item" in sent else sent["item_id"])
        if event.kind is Kind.WHOLE:
            assert (row["delta"], row["payload_text"]) == (None, event.body)
        else:
            told = event.body if "\0" not in event.body else msgspec.json.encode(event.body).decode()
            assert (row["delta"], row["payload"]) == (told, None)


def test_an_event_with_a_nul_does_not_hide_the_others_from_the_view(database: Database) -> None:
    response, other = new_uuid(), new_uuid()
    with database.begin() as connection:
        write(connection, response, [("text", "a\0"), ("done", "a\0"), ("item", "a\0"), ("text", "b")])
        write(connection, other, [("text", "c"), ("done", "c")])
        log_append.fold(connection, [(TENANT, other)])
        counted = connection.exec_driver_sql("select count(type), count(item_id) from v_events").one()
    assert tuple(counted) == (6, 6)


def test_progress_gives_the_tokens_in_order_and_the_next_number(database: Database) -> None:
    response = new_uuid()
    first = [Event(n, Kind.OUTPUT_TEXT_DELTA, 0, 0, "a") for n in range(3)]
    second = [Event(3, Kind.REASONING_TEXT_DELTA, 0, 0, "b"), Event(4, Kind.OUTPUT_TEXT_DELTA, 0, 0, "c")]
    with database.begin() as connection:
        assert log_read.read_progress(connection, TENANT, response) == log_read.LogProgress([], 0, None)
        log_append.append(connection, log_append.encode_rows(TENANT, response, 1, second, [2**31 - 1, 0]))
        log_append.append(connection, log_append.encode_rows(TENANT, response, 1, first, [7, 8]))
        found = log_read.read_progress(connection, TENANT, response)
        assert (found.token_ids, found.next_seq) == ([7, 8, 2**31 - 1, 0], 5)
        assert found.first_token_at is not None
        assert log_read.read_progress(connection, "other", response) == log_read.LogProgress([], 0, None)


def test_a_tenant_reads_no_events_of_another(database: Database) -> None:
    response = new_uuid()
    with database.begin() as connection:
        write(connection, response, [("text", "a")])
        assert log_read.read(connection, "other", response, 0) == []
        log_append.fold(connection, [("other", response)])
        assert len(log_read.read(connection, TENANT, response, 0)) == 1
        log_append.fold(connection, [(TENANT, response)])
        assert log_read.read(connection, "other", response, 0) == []


def test_compaction_of_nothing_leaves_nothing(database: Database) -> None:
    response = new_uuid()
    with database.begin() as connection:
        log_append.fold(connection, [(TENANT, response)])
        assert log_read.read(connection, TENANT, response, 0) == []


def test_two_writers_of_the_same_number_cannot_both_commit(database: Database) -> None:
    response = new_uuid()
    event = [Event(0, Kind.OUTPUT_TEXT_DELTA, 0, 0, "a")]
    with database.begin() as connection:
        log_append.append(connection, log_append.encode_rows(TENANT, response, 1, event, []))
    with pytest.raises(Exception, match="pk_response_events_hot"), database.begin() as connection:
        log_append.append(connection, log_append.encode_rows(TENANT, response, 2, event, []))


def test_a_reader_misses_no_event_while_another_connection_compacts(database: Database) -> None:
    """Both selects of `read` take their own snapshot; the compaction commits at any moment between."""
    responses = [new_uuid() for _ in range(30)]
    with database.begin() as connection:
        for response in responses:
            write(connection, response, [("text", "a")] * 9)
    failures: list[object] = []
    started = threading.Barrier(2)

    def read_all() -> None:
        started.wait()
        for response in responses:
            seen = 0
            while seen < 3:
                with database.begin() as connection:
                    found = log_read.read(connection, TENANT, response, 0)
                    seen += connection.exec_driver_sql(
                        "select count(*) from response_streams where response_id = %s", (response,)
                    ).scalar_one()
                if [event.sequence_number for event in found] != list(range(9)):
                    failures.append((response, found))

    reader = threading.Thread(target=read_all)
    reader.start()
    started.wait()
    for response in responses:
        with database.begin() as connection:
            log_append.fold(connection, [(TENANT, response)])
    reader.join(60)
    assert not reader.is_alive()
    assert failures == []


def test_a_compaction_between_the_two_selects_of_a_read_hides_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = new_uuid()
    with database.begin() as connection:
        made = write(connection, response, [("text", "a")] * 5)

    class Between:
        """The first select sees nothing new; then the response gets two more events and ends."""

        def __init__(self, connection: Connection) -> None:
            self._connection = connection
            self._struck = False

        def execute(self, *arguments: Any) -> Any:
            found = self._connection.execute(*arguments)
            if not self._struck:
                self._struck = True
                more = [Event(n, Kind.OUTPUT_TEXT_DELTA, 300, 0, "b") for n in (5, 6)]
                with database.begin() as other:
                    log_append.append(other, log_append.encode_rows(TENANT, response, 1, more, []))
                    log_append.fold(other, [(TENANT, response)])
            return found

    with database.begin() as connection:
        between: Any = Between(connection)
        found = log_read.read(between, TENANT, response, len(made))
    assert [event.sequence_number for event in found] == [5, 6]
