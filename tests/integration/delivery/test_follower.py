from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from uuid import UUID

import msgspec
import pytest

from server.delivery import follower
from server.delivery.hub import Published
from server.delivery.stored_responses import read_update
from server.generation.run import Run
from server.http.asgi.answers import DONE
from server.protocol.ids import new_uuid
from server.recording.messages import StartRun
from server.store import log_read
from server.store.cluster import watches
from server.store.cluster.notifications import Notifier
from server.store.content import deletion
from server.store.database import Connection, Database
from server.store.log_read import Subscription, SubscriptionUpdate
from tests.integration.delivery.following import Elsewhere, elsewhere, listens, sessions
from tests.integration.recording.recorded import Bench, finished, recording, tokens
from tests.support.builders import TENANT, say
from tests.support.eventually import eventually


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    """The replica that runs everything."""
    with recording(database_url) as made:
        yield made


class HeardAtOnce(Notifier):
    """Another replica's, whose announcements reach the running one without the database."""

    def __init__(self, database: Database, running: Notifier) -> None:
        super().__init__(database, new_uuid())
        self._running = running

    def watch(self, responses: Iterable[UUID]) -> None:
        self._running.add_watches(self.replica, responses, lambda _response: False)


@pytest.fixture
def notifier(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notifier]:
    """The running replica's."""
    monkeypatch.setattr(watches, "KEEP_SECONDS", 3600.0)  # nobody renews while nobody polls
    made = Notifier(bench.database, bench.replica)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def in_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at the log but for a reason."""
    monkeypatch.setattr(follower, "MIN_POLL_SECONDS", 3600.0)
    monkeypatch.setattr(follower, "IDLE_SECONDS", 3600.0)


@pytest.fixture
def other(bench: Bench, in_an_hour: None, notifier: Notifier, database_url: str) -> Iterator[Elsewhere]:
    """Another replica, which only hints can wake."""
    with elsewhere(database_url, notifier=HeardAtOnce(bench.database, notifier)) as made:
        eventually(lambda: listens(database_url))
        yield made


@pytest.fixture
def polling(bench: Bench, database_url: str) -> Iterator[Elsewhere]:
    """Another replica, which no hint reaches."""
    with elsewhere(database_url) as made:
        yield made


def everything(bench: Bench, run: Run, position: int = 0) -> bytes:
    return b"".join(bench.frames(run.facts.id)[position:]) + DONE


def speak(bench: Bench, run: Run, *words: str) -> None:
    for word in words:
        bench.feed(tokens(run, say(word)))


def test_a_stream_is_followed_on_hints_alone(bench: Bench, notifier: Notifier, other: Elsewhere) -> None:
    run = bench.begin()
    speak(bench, run, "before ")
    reading = other.stream(run.facts.id)
    eventually(lambda: reading.text == "before " and reading.channel.next_seq is not None)
    for number in range(1, 4):
        speak(bench, run, "word ")
        assert reading.text == "before " + "word " * (number - 1)
        notifier.notify_events(bench.hinted[-1:])
        eventually(lambda number=number: reading.text == "before " + "word " * number)  # type: ignore[misc]
    bench.feed(finished(run))
    notifier.notify_events([run.facts.id])
    assert reading.whole.result(30) == everything(bench, run)


def test_an_announcement_brings_what_was_committed_before_it_was_heard_and_hints_from_then_on(
    bench: Bench, notifier: Notifier, in_an_hour: None, database_url: str
) -> None:
    run = bench.begin()
    theirs = Notifier(bench.database, new_uuid())
    with (
        elsewhere(database_url, notifier=notifier) as running,
        elsewhere(database_url, notifier=theirs) as other,
    ):
        running.listener.here.add(run.facts.id)
        reading = other.stream(run.facts.id)
        eventually(lambda: reading.channel.next_seq == 2)
        speak(bench, run, "unheard ")
        theirs.start()  # until now the announcement has waited
        eventually(lambda: reading.text == "unheard ")
        eventually(lambda: notifier.follows(theirs.replica, run.facts.id))
        bench.feed(finished(run))
        notifier.notify_events([run.facts.id])
        assert reading.whole.result(30) == everything(bench, run)
        theirs.stop()


def test_a_hint_has_only_those_looked_at_that_it_names(
    bench: Bench, notifier: Notifier, other: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[list[UUID]] = []
    catch_up = log_read.read_updates

    def look(connection: Connection, watched: Sequence[Subscription]) -> list[SubscriptionUpdate]:
        looked_at.append([one.response_id for one in watched])
        return catch_up(connection, watched)

    monkeypatch.setattr(log_read, "read_updates", look)
    runs = [bench.begin() for _ in range(20)]
    readings = [other.stream(run.facts.id) for run in runs]
    # Each new reader has one look, of which the last may not be over yet.
    eventually(lambda: {run.facts.id for run in runs} == set(chain.from_iterable(looked_at)))
    eventually(lambda: all(reading.channel.next_seq == 2 for reading in readings))
    before = len(looked_at)
    speak(bench, runs[7], "word")
    notifier.notify_events([runs[7].facts.id, new_uuid()])
    eventually(lambda: readings[7].text == "word" and len(looked_at) > before)
    assert looked_at[before:] == [[runs[7].facts.id]]
    for run in runs:
        bench.feed(finished(run))
    notifier.notify_events([run.facts.id for run in runs])
    for run, reading in zip(runs, readings, strict=True):
        assert reading.whole.result(30) == everything(bench, run)


def test_a_stream_is_followed_without_any_hint(bench: Bench, polling: Elsewhere) -> None:
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
    bench: Bench, polling: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.delivery.hub.TAIL_FRAMES", 3)
    monkeypatch.setattr("server.delivery.stored_responses.TAIL_FRAMES", 3)
    monkeypatch.setattr("server.delivery.stored_responses.PAGE_EVENTS", 7)
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
    bench: Bench,
    notifier: Notifier,
    other: Elsewhere,
    monkeypatch: pytest.MonkeyPatch,
    database_url: str,
) -> None:
    damaged, sound = bench.begin(), bench.begin()
    readings = [other.stream(run.facts.id) for run in (damaged, sound)]
    eventually(lambda: all(reading.channel.next_seq == 2 for reading in readings))

    def read(connection: Connection, update: SubscriptionUpdate) -> Published:
        if update.subscription.response_id == damaged.facts.id:
            connection.exec_driver_sql("select 1 / 0")  # as for a page that the disk has lost
        return read_update(connection, update)

    monkeypatch.setattr(follower, "read_update", read)
    bench.feed(finished(damaged))
    speak(bench, sound, "on ")
    notifier.notify_events([run.facts.id for run in (damaged, sound)])
    assert readings[0].whole.result(30).endswith(DONE)
    assert readings[0].channel.gone
    eventually(lambda: readings[1].text == "on ")
    bench.feed(finished(sound))
    notifier.notify_events([sound.facts.id])
    assert readings[1].whole.result(30) == everything(bench, sound)
    assert sessions(database_url, "follower") == 1


def test_another_tenants_response_looks_like_none(bench: Bench, polling: Elsewhere) -> None:
    run = bench.begin(tenant="rival")
    assert polling.stream(run.facts.id).whole.result(30) == DONE
    assert polling.stream(new_uuid()).whole.result(30) == DONE
    bench.feed(finished(run))


def test_one_that_runs_here_is_left_to_its_recorder(
    bench: Bench, notifier: Notifier, other: Elsewhere
) -> None:
    here, there = bench.begin(), bench.begin()
    other.listener.here.add(here.facts.id)
    readings = [other.stream(run.facts.id) for run in (here, there)]
    eventually(lambda: readings[1].channel.next_seq == 2)
    assert readings[0].channel.next_seq is None
    other.listener.here.clear()
    other.follower.wake()
    eventually(lambda: readings[0].channel.next_seq == 2)
    bench.feed(finished(here), finished(there))
    notifier.notify_events([here.facts.id, there.facts.id])
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


def test_events_are_not_lost_when_the_listening_connection_is(
    bench: Bench, notifier: Notifier, other: Elsewhere, database_url: str
) -> None:
    run = bench.begin()
    reading = other.stream(run.facts.id)
    eventually(lambda: reading.channel.next_seq == 2)
    speak(bench, run, "untold ")
    assert sessions(database_url, "follower", ended=True) == 1
    eventually(lambda: reading.text == "untold ")
    bench.feed(finished(run))
    notifier.notify_events([run.facts.id])
    assert reading.whole.result(30) == everything(bench, run)


def _hinted(notifier: Notifier, response: UUID) -> bool:
    """Says it again, for the new connection may not have listened yet."""
    notifier.notify_events([response])
    return True


def test_other_hints_are_handed_on(notifier: Notifier, other: Elsewhere) -> None:
    wanted = [new_uuid() for _ in range(3)]
    for response in wanted:
        notifier.notify_cancel(response)
    eventually(lambda: set(other.listener.cancelled) == set(wanted))
    assert other.listener.queue_hints == 0
    notifier.notify_queue()
    eventually(lambda: other.listener.queue_hints == 1)


def test_a_mistake_in_a_callback_does_not_end_the_thread(
    bench: Bench, notifier: Notifier, other: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench.begin()
    reading = other.stream(run.facts.id)
    eventually(lambda: reading.channel.next_seq == 2)

    def fail() -> None:
        raise RuntimeError("A mistake of ours.")

    monkeypatch.setattr(other.follower, "_on_queue", fail)
    notifier.notify_queue()
    bench.feed(tokens(run, say("on")), finished(run))
    eventually(lambda: _hinted(notifier, run.facts.id) and reading.whole.done())
    assert reading.whole.result() == everything(bench, run)


def test_what_is_not_ours_on_the_channels_is_passed_over(
    bench: Bench, notifier: Notifier, other: Elsewhere
) -> None:
    with bench.database.begin() as connection:
        for channel in ("holdfast_events", "holdfast_cancel", "holdfast_queue"):
            connection.exec_driver_sql("select pg_notify(%s, 'é, nonsense')", (channel,))
    eventually(lambda: other.listener.queue_hints == 1)
    assert other.listener.cancelled == []
    wanted = new_uuid()
    notifier.notify_cancel(wanted)
    eventually(lambda: other.listener.cancelled == [wanted])
