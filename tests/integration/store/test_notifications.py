from collections.abc import Iterator, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol.ids import new_uuid
from server.store.cluster import leases, notifications
from server.store.cluster.notifications import MOST_NOTIFIED, Hints, Notifier, Outgoing, short_id
from server.store.cluster.watches import Watches
from server.store.database import Connection, Database
from tests.integration.delivery.following import sessions
from tests.support.builders import examples, kill, register
from tests.support.eventually import eventually

ME, OTHER = new_uuid(), new_uuid()


@pytest.fixture
def notifier(database: Database) -> Iterator[Notifier]:
    made = Notifier(database, ME)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def ear(database: Database) -> Iterator[Connection]:
    """Another replica's."""
    connection = database.dedicated_connection("ear", autocommit=True)
    notifications.listen(connection, OTHER)
    yield connection
    connection.close()


def follow(notifier: Notifier, *responses: UUID) -> None:
    """As if the other replica had announced it."""
    notifier.add_watches(OTHER, responses, runs_here=lambda _response: False)


def listen_until(ear: Connection, expected: Hints) -> None:
    heard = Hints()

    def all_heard() -> bool:
        more = notifications.receive(ear)
        heard.events |= more.events
        heard.queue |= more.queue
        heard.cancels |= more.cancels
        for replica, responses in more.watches.items():
            heard.watches.setdefault(replica, set()).update(responses)
        return heard == expected

    eventually(all_heard)


some = st.sets(st.uuids(), max_size=3)


@given(some, st.booleans(), some, some)
@examples(25)
def test_hints_are_read_as_they_were_written(
    responses: set[UUID], queue: bool, cancels: set[UUID], watched: set[UUID]
) -> None:
    names = set(map(short_id, responses))
    given = Outgoing({OTHER: names} if names else {}, queue, cancels, watched)
    read = Hints()
    for channel, payload in given.to_notifications(ME):
        read.parse(channel, payload)
    assert read == Hints(names, queue, cancels, {ME: watched} if watched else {})
    assert bool(given) == bool(given.to_notifications(ME))


@given(st.sampled_from(["holdfast_events", "holdfast_cancel", "holdfast_watch"]), st.text())
@examples(25)
def test_a_notification_of_any_other_program_is_read_without_an_error(channel: str, payload: str) -> None:
    Hints().parse(channel, payload)


def test_hints_of_thousands_of_responses_fit_into_what_postgres_takes(
    notifier: Notifier, ear: Connection
) -> None:
    responses = [new_uuid() for _ in range(5000)]
    names = set(map(short_id, responses))
    given = Outgoing({OTHER: names}, queue=True, cancels=set(responses), watches=set(responses))
    assert max(len(payload) for _, payload in given.to_notifications(ME)) < 8000
    notifier.add_watches(OTHER, responses, runs_here=lambda _response: False)
    notifier.notify_events(responses)
    notifier.notify_queue()
    for response in responses:
        notifier.notify_cancel(response)
    notifier.watch(responses)
    listen_until(ear, Hints(names, queue=True, cancels=set(responses), watches={ME: set(responses)}))


def test_only_the_replica_that_follows_a_response_is_notified_of_it(
    notifier: Notifier, ear: Connection
) -> None:
    followed, followed_by_a_third, of_nobody = new_uuid(), new_uuid(), new_uuid()
    notifier.add_watches(OTHER, [followed], runs_here=lambda _response: False)
    notifier.add_watches(new_uuid(), [followed_by_a_third], runs_here=lambda _response: False)
    notifier.notify_events([followed, followed_by_a_third, of_nobody])
    notifier.notify_queue()
    listen_until(ear, Hints({short_id(followed)}, queue=True))


def test_a_new_follower_is_notified_at_once_of_what_runs_here(notifier: Notifier, ear: Connection) -> None:
    here, elsewhere = new_uuid(), new_uuid()
    notifier.add_watches(OTHER, [here, elsewhere], runs_here=lambda response: response == here)
    listen_until(ear, Hints({short_id(here)}))
    notifier.add_watches(OTHER, [here, elsewhere], runs_here=lambda response: response == here)
    notifier.notify_queue()
    listen_until(ear, Hints(queue=True))  # and not again of what it followed before


def test_many_replicas_are_notified_only_of_events_after_a_silence(
    notifier: Notifier, ear: Connection
) -> None:
    busy, starts = new_uuid(), new_uuid()
    follow(notifier, busy, starts)
    notifier.set_other_replicas_alive(MOST_NOTIFIED + 1)
    notifier.notify_events([busy])
    listen_until(ear, Hints({short_id(busy)}))
    notifier._clock = lambda: 0.0  # no time passes from here on
    notifier._watches = Watches()
    follow(notifier, busy, starts)
    notifier._watches.was_silent(busy, 0.0)
    notifier.notify_events([busy, starts])
    listen_until(ear, Hints({short_id(starts)}))


def test_ones_own_announcements_are_nothing(notifier: Notifier, ear: Connection) -> None:
    response = new_uuid()
    notifier.add_watches(ME, [response], runs_here=lambda _response: True)
    notifier.notify_events([response])
    notifier.notify_queue()
    listen_until(ear, Hints(queue=True))


def test_nothing_is_said_while_nobody_else_is_alive(
    database: Database, database_url: str, notifier: Notifier, ear: Connection
) -> None:
    response, later = new_uuid(), new_uuid()
    follow(notifier, response, later)
    notifier.set_other_replicas_alive(0)
    notifier.notify_events([response])
    notifier.notify_queue()
    notifier.notify_cancel(response)
    notifier.set_other_replicas_alive(1)
    notifier.notify_events([later])
    listen_until(ear, Hints({short_id(later)}))


def test_a_muted_notifier_says_nothing(database: Database, database_url: str) -> None:
    notifier = Notifier(database, ME, enabled=False)
    notifier.start()
    notifier.notify_queue()
    notifier.stop()
    assert sessions(database_url, "notifier") == 0


def test_what_could_not_be_said_is_said_later_and_logged_once(
    database: Database,
    notifier: Notifier,
    ear: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    database_url: str,
) -> None:
    monkeypatch.setattr(notifications, "_RETRY_SECONDS", 0.0)
    first, second = new_uuid(), new_uuid()
    follow(notifier, first, second)
    notifier.notify_events([first])
    listen_until(ear, Hints({short_id(first)}))
    fails = iter([True, True, True])
    say = notifications.notify

    def sometimes(connection: Connection, sent: Sequence[tuple[str, str]]) -> None:
        if next(fails, False):
            sessions(database_url, "notifier", ended=True)
        say(connection, sent)

    monkeypatch.setattr(notifications, "notify", sometimes)
    notifier.notify_events([second])
    listen_until(ear, Hints({short_id(second)}))
    assert [record.levelname for record in caplog.records if record.name == "holdfast.notify"] == ["WARNING"]


def test_its_commits_do_not_wait_for_the_disk_even_when_all_others_do(database_url: str) -> None:
    database = Database(database_url, pool_size=1, strict=True)
    notifier = Notifier(database, ME)
    try:
        connection = notifier._connect()
        setting = connection.exec_driver_sql("show synchronous_commit").scalar()
        assert setting == "off"
    finally:
        notifier._disconnect()
        database.close()


def test_others_are_alive_as_long_as_one_of_them_is(database: Database) -> None:
    def alone() -> bool:
        with database.begin() as connection:
            return not leases.other_heartbeats(connection, me)

    me = register(database)
    assert alone()
    one, two = register(database), register(database)
    assert not alone()
    kill(database, one)
    assert not alone()
    with database.begin() as connection:
        leases.mark_stopped(connection, two)
    assert alone()
