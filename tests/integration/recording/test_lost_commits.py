"""The database loses commits that were acknowledged: in a crash, in a failover, behind a pooler.

A commit is lost by SQL here: its rows of the event log are deleted, or an end is undone.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psycopg
import pytest

from server.generation.run import Run
from server.protocol.responses.events import event_type
from server.recording.group_commit import CommitLimits
from server.store.timeout_connection import TimeoutConnection
from tests.integration.recording.claiming import taking
from tests.integration.recording.recorded import Bench, finished, terminate_recorder, tokens
from tests.integration.recording.test_recorder_faults import Once, before_exchange, check
from tests.support.builders import accept, say
from tests.support.eventually import eventually
from tests.support.invariants import find

WORDS = ["Hello", " ", "there", "!"]


def forget(url: str, commits: int) -> None:
    """Deletes the log rows of the last commits."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "delete from response_events_hot where xmin::text::bigint in ("
            " select xmin::text::bigint from response_events_hot where first_seq > 1"
            " group by 1 order by 1 desc limit %s)",
            [commits],
        )


@contextmanager
def end_is_forgotten(bench: Bench, run: Run) -> Iterator[None]:
    """The end that is committed in the block is undone after it, with the last commits before it."""
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        connection.execute("create table before_hot as select * from response_events_hot")
        connection.execute("create table before_responses as select * from responses")
        yield
        connection.execute("delete from usage_changes")
        for table in ("response_streams", "usage_ledger", "response_events_hot"):
            connection.execute(f"delete from {table} where response_id = %s", [run.facts.id])  # noqa: S608
        connection.execute("delete from items where side = 1")
        connection.execute("delete from responses where id = %s", [run.facts.id])
        connection.execute("insert into responses select * from before_responses")
        connection.execute("insert into response_events_hot select * from before_hot where first_seq < 5")


@pytest.mark.parametrize("connection", ["is cut", "goes on"])
@pytest.mark.parametrize("commits", [1, 2, 3])
@pytest.mark.parametrize("delivery", [3, 4])
def test_commits_that_postgres_forgot_are_made_again(
    bench: Bench, delivery: int, commits: int, connection: str
) -> None:
    """Where the connection goes on, a pooler hides the crash from the recorder."""
    runs = [bench.begin(), bench.begin()]
    for number, word in enumerate([*WORDS, None]):
        if number == delivery:
            if connection == "is cut":
                terminate_recorder(bench.database.url)
            forget(bench.database.url, commits)
        bench.feed(*(tokens(run, say(word)) if word else finished(run) for run in runs))
    for run in runs:
        check(bench, run, "Hello there!")


@pytest.mark.parametrize("bench", [CommitLimits(fresh_seconds=0.0)], indirect=True, ids=["probed"])
def test_commits_forgotten_while_no_run_had_news_are_made_again_although_the_connection_was_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeoutConnection, "responds", lambda _connection: False)
    run = bench.begin()
    bench.feed(tokens(run, say("Hello")))
    bench.feed(tokens(run, say(" there")))
    forget(bench.database.url, 1)
    bench.feed(tokens(run, say("!")), finished(run))
    check(bench, run, "Hello there!")


def test_a_commit_in_doubt_after_forgotten_ones_is_made_after_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash() -> None:
        terminate_recorder(bench.database.url)
        forget(bench.database.url, 2)

    fault = Once(crash)
    before_exchange(monkeypatch, 1, fault)
    runs = [bench.begin(), bench.begin()]
    for number, word in enumerate(WORDS):
        fault.armed = number == 3
        bench.feed(*(tokens(run, say(word)) for run in runs))
    assert fault.times == 1
    bench.feed(*(finished(run) for run in runs))
    for run in runs:
        check(bench, run, "Hello there!")


def test_what_waits_beside_the_others_is_stored_after_the_forgotten_commits_before_it(bench: Bench) -> None:
    run, other = bench.begin(), bench.begin()
    for word in WORDS[:3]:
        bench.feed(tokens(run, say(word)), tokens(other, say(word)))
    with psycopg.connect(bench.database.url) as holder:
        holder.execute("select from responses where id = %s for update", [run.facts.id])
        bench.recorder.deliver([tokens(run, say(WORDS[3])), finished(run)])
        eventually(lambda: bench.recorder.stats.isolated == 1)
        # No try is between its fence and its write then: Postgres forgets nothing within a transaction.
        holder.execute("select from replicas where id = %s for update", [bench.replica])
        forget(bench.database.url, 2)
    bench.recorder.deliver([tokens(other, say(WORDS[3])), finished(other)])
    check(bench, run, "Hello there!")
    check(bench, other, "Hello there!")


def test_an_end_that_postgres_forgot_is_made_again_before_others_go_on_with_the_response(
    bench: Bench,
) -> None:
    run = bench.begin()
    for word in WORDS:
        bench.feed(tokens(run, say(word)))
    with end_is_forgotten(bench, run):
        bench.feed(finished(run))
    assert bench.recorder.answers_for(run.facts.id)
    eventually(lambda: bench.counts()["usage_ledger"] == 1)
    check(bench, run, "Hello there!")


@pytest.mark.parametrize("bench", [CommitLimits(recent_bytes=0)], indirect=True, ids=["forgetful"])
def test_a_response_whose_forgotten_events_nobody_has_any_more_fails_and_says_why(bench: Bench) -> None:
    run, other = bench.begin(), bench.begin()
    for word in WORDS[:3]:
        bench.feed(tokens(run, say(word)))
    bench.feed(tokens(other, say("Hello")))
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        connection.execute(
            "delete from response_events_hot where response_id = %s and first_seq > 5", [run.facts.id]
        )
        connection.execute(
            "delete from response_events_hot where response_id = %s and first_seq > 1", [other.facts.id]
        )
    bench.recorder.deliver([tokens(run, say("!")), finished(run)])
    assert bench.recorder.answers_for(run.facts.id)
    eventually(lambda: bench.counts()["usage_ledger"] == 2)
    stored = bench.stored(run.facts.id)
    assert [event.sequence_number for event in stored] == list(range(len(stored)))
    last = msgspec.json.decode(stored[-1].body)["response"]
    assert (last["status"], last["error"]["code"]) == ("failed", "events_lost")
    assert run.facts.id in bench.cancelled


def test_a_log_with_a_gap_never_ends_as_completed_and_stays_as_it_is(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    run = bench.begin()
    for word in WORDS:
        bench.feed(tokens(run, say(word)))
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        gone = connection.execute(
            "delete from response_events_hot where first_seq = ("
            " select max(first_seq) from response_events_hot where kind = 1 and first_seq < ("
            "  select max(first_seq) from response_events_hot)) returning first_seq"
        ).fetchone()
    bench.recorder.deliver([finished(run)])
    eventually(lambda: bench.counts()["usage_ledger"] == 1)
    assert bench.recorder.wait_idle(10)
    stored = bench.stored(run.facts.id)
    assert gone is not None
    assert gone[0] not in [event.sequence_number for event in stored]
    assert msgspec.json.decode(stored[-1].body)["response"]["error"]["code"] == "events_lost"
    assert bench.counts()["response_streams"] == 0
    assert "cannot be stored: LogGap" in caplog.text
    assert any(f"events {gone[0]} to " in violation.sentence for violation in find(bench.database.url))


def test_a_deleted_response_is_no_lost_commit(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    run, ended = bench.begin(), bench.begin()
    bench.feed(tokens(run, say("Hello there")))
    bench.feed(tokens(ended, say("a")), finished(ended))
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        for table in ("response_streams", "usage_ledger"):
            connection.execute(f"delete from {table} where response_id = %s", [ended.facts.id])  # noqa: S608
        connection.execute("delete from responses where id = %s", [ended.facts.id])
    bench.feed(tokens(run, say("!")), finished(run))
    check(bench, run, "Hello there!")
    assert "lost" not in caplog.text


def test_a_right_that_is_missing_for_a_while_is_waited_for(database_url: str, bench: Bench) -> None:
    run = bench.begin()
    bench.feed(tokens(run, say("Hello")))
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("alter table response_events_hot rename column body to gone")
        bench.recorder.deliver([tokens(run, say(" there!"))])
        eventually(lambda: bench.recorder.trouble() is not None)
        assert "body" in str(bench.recorder.trouble())
        connection.execute("alter table response_events_hot rename column gone to body")
    bench.feed(finished(run))
    check(bench, run, "Hello there!")
    assert not bench.fenced


@pytest.mark.parametrize("ended", [False, True])
def test_a_claim_that_the_database_has_lost_is_no_second_run_of_the_response(
    database_url: str, ended: bool
) -> None:
    with taking(database_url) as at:
        run = accept(at.bench.database, at.bench.replica, background=True)
        at.claimer.claim_all()
        assert len(at.engine.requests) == 1
        if ended:
            with end_is_forgotten(at.bench, run):
                at.bench.feed(tokens(run, say("Hello")), finished(run))
        with at.bench.database.begin() as connection:
            connection.exec_driver_sql(
                "update responses set status = 'queued', replica_id = null, attempt = 0 where id = %s",
                (run.facts.id,),
            )
        at.claimer.claim_all()
        assert len(at.engine.requests) == 1
        if not ended:
            at.bench.feed(tokens(run, say("Hello")), finished(run))
        eventually(lambda: at.bench.counts()["usage_ledger"] == 1)
        stored = at.bench.stored(run.facts.id)
        assert [event.sequence_number for event in stored] == list(range(len(stored)))
        assert event_type(stored[-1]) == "response.completed"
