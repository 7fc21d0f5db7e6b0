"""One response that cannot be stored, or is not this replica's any more: the others do not notice."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID

import msgspec
import psycopg
import pytest

from server.delivery.hub import Abandonment
from server.generation.run import Run
from server.protocol.responses.events import Event, Kind
from server.recording import group_commit, write_updates
from server.recording.group_commit import CommitLimits
from server.recording.recorder_messages import ReleaseRuns
from server.recovery.heartbeat import Heartbeat
from server.store import log_append
from server.store.content import item_rows, responses
from server.store.content.item_rows import NewItem
from server.store.timeout_connection import REQUEST_TIMEOUTS
from tests.integration.recording.claiming import taking
from tests.integration.recording.recorded import Bench, finished, recording, tokens
from tests.integration.recording.test_recorder_faults import FarDatabase, check
from tests.support.builders import BREAK_PARSER, TENANT, accept, register, say
from tests.support.event_order import is_terminal
from tests.support.eventually import eventually

SURROGATE = (0xD800,)
"""A token that is read as half a character, which no encoding has."""


@contextmanager
def locked(bench: Bench, run: Run) -> Iterator[psycopg.Connection]:
    """Somebody else has the response's row locked."""
    with psycopg.connect(bench.database.url) as connection:
        connection.execute("select 1 from responses where id = %s for update", [run.facts.id])
        yield connection
        connection.rollback()


def text(bench: Bench, run: Run) -> str:
    return "".join(event.body for event in bench.stored(run.facts.id) if event.kind == 1)


def goes_on(bench: Bench, run: Run) -> None:
    """It is told of its tokens and its end."""
    for word in ("a", "b", "c"):
        bench.feed(tokens(run, say(word)))
    bench.recorder.deliver([finished(run)])
    assert b'"completed"' in bench.hub.final(run.facts.id)
    assert text(bench, run) == "abc"


def final(bench: Bench, run: Run) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(bench.hub.final(run.facts.id))
    return found


def status(bench: Bench, run: Run) -> tuple[str, UUID | None, int]:
    with bench.database.begin() as connection:
        row = responses.get(connection, TENANT, run.facts.id)
    assert row is not None
    return row.status, row.replica_id, row.deaths


def whole(stored: list[Event]) -> bool:
    """Numbered without a gap, with one last event."""
    numbers = [event.sequence_number for event in stored]
    ends = [is_terminal(event) for event in stored]
    return numbers == list(range(len(stored))) and ends == [False] * (len(stored) - 1) + [True]


def test_an_end_whose_row_is_locked_waits_alone_and_is_stored_when_it_is_free(bench: Bench) -> None:
    hit, *others = (bench.begin() for _ in range(3))
    bench.feed(*(tokens(run, say("Hello ")) for run in (hit, others[0])))
    with locked(bench, hit):
        bench.feed(tokens(hit, say("there!")), finished(hit), tokens(others[0], say("there!")))
        goes_on(bench, others[1])
        bench.recorder.deliver([finished(others[0])])
        assert b'"completed"' in bench.hub.final(others[0].facts.id)
        assert status(bench, hit)[0] == "in_progress"
        assert bench.recorder.produces(hit.facts.id)
        assert not bench.recorder.wait_idle(0)
    check(bench, hit, "Hello there!")
    assert bench.fenced == []


def test_what_comes_for_a_run_whose_tokens_cannot_be_stored_yet_is_stored_behind_them(bench: Bench) -> None:
    hit, other = bench.begin(), bench.begin()
    with psycopg.connect(bench.database.url) as connection:
        connection.execute(
            "insert into response_events_hot (tenant, response_id, first_seq, n, kind, output_index,"
            " content_index, attempt, body) values (%s, %s, 2, 1, 0, 0, 0, 1, '')",
            [TENANT, hit.facts.id],
        )
        bench.feed(tokens(hit, say("one ")), tokens(other, say("a")))
        for word in ("two ", "three "):
            bench.feed(tokens(hit, say(word)), tokens(other, say("b")))
        bench.feed(tokens(hit, say("four")), finished(hit), tokens(other, say("b")))
        bench.feed(finished(other))
        connection.rollback()
    check(bench, hit, "one two three four")
    check(bench, other, "abbb")


def slow_down(bench: Bench, run: Run) -> None:
    """The folding of the response's log takes 2.5 s from now on; the sequence `folds` counts it."""
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        connection.execute(
            "create sequence folds; create function slow() returns trigger language plpgsql as"
            f" $$ begin if new.response_id = '{run.facts.id}' then"
            " perform nextval('folds'); perform pg_sleep(2.5); end if; return new; end $$;"
            " create trigger slow before insert on response_streams for each row execute function slow()"
        )


def test_a_slow_statement_of_one_response_has_its_time(bench: Bench) -> None:
    hit, other = bench.begin(), bench.begin()
    bench.feed(tokens(hit, say("long")))
    slow_down(bench, hit)
    bench.recorder.deliver([finished(hit)])
    assert b'"completed"' in bench.hub.final(hit.facts.id)
    goes_on(bench, other)
    check(bench, hit, "long")


def test_an_end_that_is_too_slow_is_tried_once_with_the_longest_limit_and_released(
    database_url: str,
) -> None:
    """It is tried with the others, alone, and alone with the longest limit; to fail it would take as long."""
    with recording(database_url, limits=CommitLimits(last_statement_ms=700)) as bench:
        hit, other = bench.begin(), bench.begin()
        bench.feed(tokens(hit, say("long")))
        slow_down(bench, hit)
        bench.recorder.deliver([finished(hit)])
        eventually(lambda: bench.cancelled)
        goes_on(bench, other)
        assert status(bench, hit) == ("in_progress", None, 0)
        assert text(bench, hit) == "long"
    with psycopg.connect(database_url) as connection:
        assert connection.execute("select last_value from folds").fetchone() == (3,)


def test_a_locked_row_is_waited_for_longer_than_any_transaction_of_the_server_takes() -> None:
    waited = sum(map(group_commit.pause_after, range(1, group_commit.MAX_TRIES)))
    longest = REQUEST_TIMEOUTS["statement_timeout"], REQUEST_TIMEOUTS["idle_in_transaction_session_timeout"]
    assert waited > 1.5 * sum(float(limit.removesuffix("s")) for limit in longest)


def test_a_foreground_response_that_stays_locked_is_given_up_and_others_end_it_as_failed(
    database_url: str,
) -> None:
    with taking(database_url, commits=CommitLimits(tries=2)) as at:
        bench = at.bench
        hit, other = bench.begin(), bench.begin()
        bench.feed(tokens(hit, say("stored")))
        with locked(bench, hit):
            bench.recorder.deliver([finished(hit)])
            eventually(lambda: bench.cancelled)
            goes_on(bench, other)
        assert not bench.recorder.produces(hit.facts.id)
        assert status(bench, hit)[0] == "in_progress"
        heartbeat_of(bench).beat()
        at.claimer.claim_all()
        assert final(bench, hit)["error"]["code"] == "server_error"
        assert status(bench, hit)[0] == "failed"
        assert text(bench, hit) == "stored"
        assert whole(bench.stored(hit.facts.id))
        assert bench.hub.frames(hit.facts.id) == bench.frames(hit.facts.id)[2:]
        assert bench.cancelled == [hit.facts.id]
        assert bench.recorder.wait_idle(10)


def test_a_background_response_that_stays_locked_is_left_for_any_replica_to_claim(database_url: str) -> None:
    with recording(database_url, limits=CommitLimits(tries=1)) as bench:
        hit = in_background(bench)
        bench.feed(tokens(hit, say("stored")))
        with locked(bench, hit):
            bench.recorder.deliver([finished(hit)])
            eventually(lambda: bench.cancelled)
            eventually(lambda: not bench.recorder.produces(hit.facts.id))
        heartbeat_of(bench).beat()
        assert status(bench, hit) == ("in_progress", None, 0)
        assert text(bench, hit) == "stored"
        assert bench.recorder.wait_idle(10)


def heartbeat_of(bench: Bench) -> Heartbeat:
    unread = Abandonment(is_unread=lambda _response: False, cancel=lambda _response: None)
    at = (bench.database, bench.replica, bench.recorder, bench.hub, unread, bench.listener)
    return Heartbeat(*at, lease_seconds=10.0)


def in_background(bench: Bench) -> Run:
    """A claimed run for the background that the recorder has."""
    run = accept(bench.database, bench.replica, background=True)
    with bench.database.begin() as connection:
        connection.exec_driver_sql(
            "update responses set status = 'in_progress', replica_id = %s, attempt = 1 where id = %s",
            (bench.replica, run.facts.id),
        )
    bench.recorder.start_run(run)
    return run


def test_background_runs_are_handed_back_though_one_of_them_is_locked(bench: Bench) -> None:
    hit, other = in_background(bench), in_background(bench)
    bench.feed(tokens(hit, say("a")), tokens(other, say("b")))
    with locked(bench, hit):
        bench.recorder.deliver([ReleaseRuns()])
        eventually(lambda: not bench.recorder.produces(other.facts.id))
        assert status(bench, other) == ("in_progress", None, 0)
    eventually(lambda: not bench.recorder.produces(hit.facts.id))
    assert status(bench, hit) == ("in_progress", None, 0)


@pytest.mark.parametrize("ending", [False, True])
def test_text_that_cannot_be_stored_ends_its_own_response(bench: Bench, ending: bool) -> None:
    hit, other = bench.begin(), bench.begin()
    bench.feed(tokens(hit, say("stored")), tokens(other, say("a")))
    last = [finished(hit)] if ending else []
    bench.recorder.deliver([tokens(hit, SURROGATE), *last, tokens(other, say("b"))])
    assert final(bench, hit)["status"] == "failed"
    bench.feed(finished(other))
    assert text(bench, hit) == "stored"
    assert whole(bench.stored(hit.facts.id))
    assert bench.hub.frames(hit.facts.id) == bench.frames(hit.facts.id)[2:]
    check(bench, other, "ab")
    assert bench.cancelled == [hit.facts.id]
    assert bench.fenced == []


@pytest.mark.parametrize("ending", [False, True])
def test_text_that_cannot_be_told_ends_its_own_unstored_response(bench: Bench, ending: bool) -> None:
    hit, other = bench.begin(store=False), bench.begin()
    bench.feed(tokens(hit, say("told")))
    bench.recorder.deliver([tokens(hit, SURROGATE), *([finished(hit)] if ending else [])])
    assert final(bench, hit)["status"] == "failed"
    bench.feed(tokens(other, say("b")), finished(other))
    check(bench, other, "b")
    assert bench.counts()["usage_ledger"] == 2
    told = [msgspec.json.decode(frame.partition(b"data: ")[2]) for frame in bench.hub.frames(hit.facts.id)]
    numbers = [event["sequence_number"] for event in told]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_parser_that_raises_ends_its_own_unstored_response_which_is_metered(bench: Bench) -> None:
    run = bench.begin(store=False)
    bench.feed(tokens(run, say("told")))
    bench.recorder.deliver([tokens(run, [BREAK_PARSER])])
    assert final(bench, run)["status"] == "failed"
    assert bench.counts()["usage_ledger"] == 1
    assert bench.recorder.wait_idle(10)


def test_an_item_that_postgres_refuses_ends_its_own_response(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit, other = bench.begin(), bench.begin()
    bench.feed(tokens(hit, say("bad")), tokens(other, say("good")))
    stored_item = item_rows.stored_item

    def named(item: Any) -> NewItem:
        made = stored_item(item)
        bad = item.content[0].text == "bad" and item.status == "completed"
        return NewItem(**{**{name: getattr(made, name) for name in made.__slots__}, "name": "\0" * bad})

    monkeypatch.setattr(write_updates, "stored_item", named)
    bench.recorder.deliver([finished(hit), finished(other)])
    assert final(bench, hit)["status"] == "failed"
    assert final(bench, hit)["output"][0]["content"][0]["text"] == "bad"
    check(bench, other, "good")


def test_a_response_that_can_in_no_way_be_stored_is_handed_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit, other = bench.begin(), bench.begin()
    bench.feed(tokens(hit, say("stored")))
    pack = log_append.encode_rows

    def refuse(tenant: str, response: UUID, *rest: Any) -> list[log_append.NewLogRow]:
        if response == hit.facts.id:
            raise ValueError("a mistake of ours")
        return pack(tenant, response, *rest)

    monkeypatch.setattr(log_append, "encode_rows", refuse)
    bench.recorder.deliver([tokens(hit, say(" lost"))])
    goes_on(bench, other)
    eventually(lambda: not bench.recorder.produces(hit.facts.id))
    assert status(bench, hit) == ("in_progress", None, 0)
    assert text(bench, hit) == "stored"
    assert all(b"lost" not in frame for frame in bench.hub.frames(hit.facts.id))
    assert bench.fenced == []


@pytest.mark.parametrize("ends", [False, True])
def test_a_deleted_row_drops_its_own_run(bench: Bench, ends: bool) -> None:
    hit, other = bench.begin(), bench.begin()
    bench.feed(tokens(hit, say("a")), tokens(other, say("a")))
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        connection.execute("delete from responses where id = %s", [hit.facts.id])
    bench.feed(tokens(hit, say("b")), tokens(other, say("b")))
    if ends:
        bench.recorder.deliver([finished(hit), finished(other)])
    else:
        heartbeat_of(bench).beat()
    eventually(lambda: not bench.recorder.produces(hit.facts.id))
    if not ends:
        bench.recorder.deliver([finished(other)])
    check(bench, other, "ab")
    assert bench.stored(hit.facts.id) == []
    assert bench.cancelled == [hit.facts.id]
    assert bench.fenced == []


@pytest.mark.parametrize("goes", ["on", "to its end"])
def test_a_run_whose_row_another_replica_took_is_dropped_alone(bench: Bench, goes: str) -> None:
    """The other has added to the log already, or has not yet."""
    hit, other = bench.begin(), bench.begin()
    bench.feed(tokens(hit, say("a")), tokens(other, say("a")))
    taker = register(bench.database)
    with bench.database.begin() as connection:
        connection.exec_driver_sql(
            "update responses set replica_id = %s, attempt = 2 where id = %s", (taker, hit.facts.id)
        )
        after = log_append.next_seq(connection, TENANT, hit.facts.id)
        if goes == "on":
            added = [Event(after, Kind.OUTPUT_TEXT_DELTA, 0, 0, "theirs")]
            log_append.append(connection, log_append.encode_rows(TENANT, hit.facts.id, 2, added, [1]))
    last = [] if goes == "on" else [finished(hit)]
    bench.recorder.deliver([tokens(hit, say("ours")), *last, tokens(other, say("b"))])
    eventually(lambda: not bench.recorder.produces(hit.facts.id))
    bench.recorder.deliver([finished(other)])
    assert final(bench, other)["status"] == "completed"
    assert text(bench, other) == "ab"
    assert text(bench, hit) == ("atheirs" if goes == "on" else "a")
    assert status(bench, hit) == ("in_progress", taker, 0)
    assert all(b"ours" not in frame for frame in bench.hub.frames(hit.facts.id))
    assert bench.cancelled == [hit.facts.id]
    assert bench.fenced == []


def test_a_recorder_that_stops_leaves_what_is_locked_and_ends_in_good_order(bench: Bench) -> None:
    hit, other = bench.begin(), bench.begin()
    bench.feed(tokens(hit, say("a")), tokens(other, say("a")))
    with locked(bench, hit):
        bench.recorder.deliver([finished(hit), finished(other)])
        bench.recorder.stop(1.0)
    assert whole(bench.stored(other.facts.id))
    assert status(bench, hit)[0] == "in_progress"
    assert bench.fenced == []


def test_a_recorder_that_stops_stores_what_becomes_free_in_time(bench: Bench) -> None:
    run = bench.begin()
    bench.feed(tokens(run, say("a")))
    with locked(bench, run):
        bench.recorder.deliver([finished(run)])
        eventually(lambda: bench.recorder.stats.isolated)
    bench.recorder.stop(30.0)
    check(bench, run, "a")


def test_a_database_that_is_away_is_a_trouble_of_the_recorders(database_url: str) -> None:
    limits = CommitLimits(report_after_seconds=0.2)
    with recording(database_url, FarDatabase, limits=limits) as bench:
        database = cast("FarDatabase", bench.database)
        database.away = True
        assert bench.recorder.trouble() is None
        run = bench.begin()
        bench.recorder.deliver([tokens(run, say("a"))])
        eventually(lambda: bench.recorder.trouble() is not None)
        assert "nowhere" in str(bench.recorder.trouble())
        database.away = False
        bench.recorder.deliver([finished(run)])
        check(bench, run, "a")
        assert bench.recorder.trouble() is None
