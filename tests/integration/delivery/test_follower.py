from collections.abc import Iterator

import msgspec
import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from server.delivery import follower
from server.delivery.hub import Published
from server.delivery.stored_responses import read_update
from server.generation.run import Run
from server.http.asgi.answers import DONE
from server.protocol.ids import new_uuid
from server.recording.recorder_messages import StartRun
from server.store import log_read
from server.store.content import deletion
from server.store.database import Connection
from server.store.log_read import SubscriptionUpdate
from tests.integration.delivery.following import Elsewhere, elsewhere
from tests.integration.recording.recorded import Bench, finished, recording, tokens
from tests.support.builders import TENANT, say
from tests.support.eventually import eventually


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    """The replica that runs everything."""
    with recording(database_url) as made:
        yield made


@pytest.fixture
def other(bench: Bench, database_url: str) -> Iterator[Elsewhere]:
    """Another replica, which reads no log but for a new reader."""
    with elsewhere(database_url, pause=lambda _seconds, _quiet: 3600.0, idle_seconds=3600.0) as made:
        yield made


@pytest.fixture
def polling(bench: Bench, database_url: str) -> Iterator[Elsewhere]:
    """Another replica."""
    with elsewhere(database_url) as made:
        yield made


def everything(bench: Bench, run: Run, position: int = 0) -> bytes:
    return b"".join(bench.frames(run.facts.id)[position:]) + DONE


def speak(bench: Bench, run: Run, *words: str) -> None:
    for word in words:
        bench.feed(tokens(run, say(word)))


def test_a_stream_that_runs_elsewhere_is_followed(bench: Bench, polling: Elsewhere) -> None:
    run = bench.begin()
    readings = [polling.stream(run.facts.id, position) for position in (0, 1, 5, 8)]
    speak(bench, run, "Hello ", "you ", "there")
    bench.feed(finished(run))
    for reading, position in zip(readings, (0, 1, 5, 8), strict=True):
        assert reading.whole.result(30) == everything(bench, run, position)


def test_a_reader_that_comes_wakes_the_follower_at_once(bench: Bench, other: Elsewhere) -> None:
    run = bench.begin()
    reading = other.stream(run.facts.id)
    eventually(lambda: reading.channel.next_seq == 2)


def test_the_final_response_is_the_one_that_was_told_where_it_ran(bench: Bench, polling: Elsewhere) -> None:
    run = bench.begin()
    final = polling.final(run.facts.id)
    bench.feed(tokens(run, say("all")), finished(run))
    assert final.result(30) == bench.hub.final(run.facts.id)
    assert msgspec.json.decode(final.result())["status"] == "completed"


def test_one_that_ended_before_its_reader_came_is_told_whole(bench: Bench, other: Elsewhere) -> None:
    run = bench.begin()
    bench.feed(tokens(run, say("all")), finished(run))
    reading = other.stream(run.facts.id)
    assert reading.whole.result(30) == everything(bench, run)


def test_many_streams_are_followed_and_none_gets_anothers_events(bench: Bench, polling: Elsewhere) -> None:
    runs = [bench.begin() for _ in range(20)]
    readings = [polling.stream(run.facts.id) for run in runs]
    for number, run in enumerate(runs):
        bench.feed(*(tokens(every, say(f"{number} ")) for every in runs[number:]))
        bench.feed(finished(run))
    for run, reading in zip(runs, readings, strict=True):
        assert reading.whole.result(30) == everything(bench, run)


def test_more_than_a_channel_keeps_reaches_a_reader_whole(
    bench: Bench, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.delivery.stored_responses.PAGE_EVENTS", 7)
    with elsewhere(database_url, tail_frames=3) as polling:
        run = bench.begin()
        reading = polling.stream(run.facts.id)
        speak(bench, run, "a" * 40, "b" * 40)
        bench.feed(tokens(run, say("c" * 40)), finished(run))
        assert reading.whole.result(30) == everything(bench, run)


def test_a_deleted_response_ends_its_readers(bench: Bench, polling: Elsewhere) -> None:
    run = bench.begin()
    reading = polling.stream(run.facts.id)
    eventually(lambda: reading.channel.next_seq == 2 and reading.client.pieces)
    with bench.database.begin() as connection:
        assert deletion.delete(connection, TENANT, run.facts.id)
    assert reading.whole.result(30).endswith(DONE)
    assert reading.channel.gone
    bench.feed(finished(run))


def test_a_stream_that_postgres_cannot_read_ends_and_the_others_go_on(
    bench: Bench, polling: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged, sound = bench.begin(), bench.begin()
    readings = [polling.stream(run.facts.id) for run in (damaged, sound)]
    eventually(lambda: all(reading.channel.next_seq == 2 for reading in readings))

    def read(connection: Connection, update: SubscriptionUpdate) -> Published:
        if update.subscription.response_id == damaged.facts.id:
            connection.exec_driver_sql("select 1 / 0")  # as for a page that the disk has lost
        return read_update(connection, update)

    monkeypatch.setattr(follower, "read_update", read)
    bench.feed(finished(damaged))
    speak(bench, sound, "on ")
    assert readings[0].whole.result(30).endswith(DONE)
    assert readings[0].channel.gone
    eventually(lambda: readings[1].text == "on ")
    bench.feed(finished(sound))
    assert readings[1].whole.result(30) == everything(bench, sound)


def test_another_tenants_response_looks_like_none(bench: Bench, polling: Elsewhere) -> None:
    run = bench.begin(tenant="rival")
    assert polling.stream(run.facts.id).whole.result(30) == DONE
    assert polling.stream(new_uuid()).whole.result(30) == DONE
    bench.feed(finished(run))


def test_one_that_runs_here_is_left_to_its_recorder(bench: Bench, polling: Elsewhere) -> None:
    here, there = bench.begin(), bench.begin()
    polling.here.add(here.facts.id)
    readings = [polling.stream(run.facts.id) for run in (here, there)]
    eventually(lambda: readings[1].channel.next_seq == 2)
    assert readings[0].channel.next_seq is None
    polling.here.clear()
    eventually(lambda: readings[0].channel.next_seq == 2)
    bench.feed(finished(here), finished(there))
    for run, reading in zip((here, there), readings, strict=True):
        assert reading.whole.result(30) == everything(bench, run)


def test_a_response_that_nobody_runs_is_waited_for(bench: Bench, polling: Elsewhere) -> None:
    run = bench.accept()
    with bench.database.begin() as connection:
        connection.exec_driver_sql("update responses set status = 'queued', replica_id = null")
    reading = polling.stream(run.facts.id)
    eventually(lambda: reading.channel.next_seq == 2)
    assert not reading.whole.done()
    with bench.database.begin() as connection:
        connection.exec_driver_sql(
            "update responses set status = 'in_progress', replica_id = %s", (bench.replica,)
        )
    bench.feed(StartRun(run), tokens(run, say("late")), finished(run))
    assert reading.whole.result(30) == everything(bench, run)


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("read", None, psycopg.OperationalError("nobody is there")),
        RuntimeError("A mistake of ours."),
    ],
    ids=["the database is away", "a mistake of ours"],
)
def test_events_are_not_lost_when_a_read_fails(
    bench: Bench, polling: Elsewhere, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    run = bench.begin()
    reading = polling.stream(run.facts.id)
    eventually(lambda: reading.channel.next_seq == 2)
    tries: list[bool] = []

    def fail(*_arguments: object) -> None:
        tries.append(True)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(log_read, "read_updates", fail)
        speak(bench, run, "untold ")
        eventually(lambda: tries)
    eventually(lambda: reading.text == "untold ")
    bench.feed(finished(run))
    assert reading.whole.result(30) == everything(bench, run)
