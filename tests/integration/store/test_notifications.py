from collections.abc import Iterator, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol.ids import new_uuid
from server.store.cluster import leases, notifications
from server.store.cluster.notifications import Hints, Notifier
from server.store.database import Connection, Database
from tests.integration.delivery.following import sessions
from tests.support.builders import examples, kill, register
from tests.support.eventually import eventually
from tests.support.listeners import Listener


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def notifier(database: Database, listener: Listener) -> Iterator[Notifier]:
    made = Notifier(database, listener)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def ear(database: Database) -> Iterator[Connection]:
    """Another replica's."""
    connection = database.dedicated_connection("ear", autocommit=True)
    notifications.listen(connection)
    yield connection
    connection.close()


def listen_until(ear: Connection, expected: Hints) -> None:
    heard = Hints()

    def all_heard() -> bool:
        more = notifications.receive(ear)
        heard.add(more)
        return heard == expected

    eventually(all_heard)


@given(st.booleans(), st.sets(st.uuids(), max_size=3))
@examples(25)
def test_hints_are_read_as_they_were_written(queue: bool, cancels: set[UUID]) -> None:
    given, read = Hints(queue, cancels), Hints()
    for channel, payload in given.to_notifications():
        read.parse(channel, payload)
    assert read == given
    assert bool(given) == bool(given.to_notifications())


@given(st.sampled_from(["holdfast_cancel", "holdfast_queue"]), st.text())
@examples(25)
def test_a_notification_of_any_other_program_is_read_without_an_error(channel: str, payload: str) -> None:
    Hints().parse(channel, payload)


def test_hints_of_thousands_of_responses_fit_into_what_postgres_takes(
    notifier: Notifier, ear: Connection
) -> None:
    responses = {new_uuid() for _ in range(5000)}
    given = Hints(queue=True, cancels=set(responses))
    assert max(len(payload) for _, payload in given.to_notifications()) < 8000
    notifier.notify_queue()
    for response in responses:
        notifier.notify_cancel(response)
    listen_until(ear, Hints(queue=True, cancels=responses))


def test_hints_are_handed_on(notifier: Notifier, listener: Listener, database: Database) -> None:
    """Those of this replica among them, which come back to it."""
    wanted = [new_uuid() for _ in range(3)]
    for response in wanted:
        notifier.notify_cancel(response)
    eventually(lambda: set(listener.cancelled) == set(wanted))
    assert listener.queue_hints == 0
    notifier.notify_queue()
    eventually(lambda: listener.queue_hints == 1)


def test_what_is_not_ours_on_the_channels_is_passed_over(
    notifier: Notifier, listener: Listener, database: Database
) -> None:
    notifier.notify_queue()
    eventually(lambda: listener.queue_hints == 1)  # it listens
    with database.begin() as connection:
        for channel in ("holdfast_cancel", "holdfast_queue"):
            connection.exec_driver_sql("select pg_notify(%s, 'é, nonsense')", (channel,))
    eventually(lambda: listener.queue_hints == 2)
    assert listener.cancelled == []
    wanted = new_uuid()
    notifier.notify_cancel(wanted)
    eventually(lambda: listener.cancelled == [wanted])


class Mistaken(Listener):
    """Fails at the first hint."""

    def on_queue_hint(self) -> None:
        super().on_queue_hint()
        if self.queue_hints == 1:
            raise RuntimeError("A mistake of ours.")


@pytest.mark.parametrize("listener", [Mistaken()], ids=["mistaken"])
def test_a_mistake_in_a_callback_does_not_end_the_thread(notifier: Notifier, listener: Listener) -> None:
    for hints in (1, 2):
        notifier.notify_queue()
        eventually(lambda hints=hints: listener.queue_hints == hints)  # type: ignore[misc]


def test_nothing_is_said_while_nobody_else_is_alive(
    database: Database, database_url: str, notifier: Notifier, ear: Connection
) -> None:
    response, later = new_uuid(), new_uuid()
    notifier.other_replicas = 0
    notifier.notify_queue()
    notifier.notify_cancel(response)
    notifier.other_replicas = 1
    notifier.notify_cancel(later)
    listen_until(ear, Hints(cancels={later}))


def test_a_muted_notifier_says_nothing(database: Database, database_url: str) -> None:
    notifier = Notifier(database, Listener(), enabled=False)
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
    first, second = new_uuid(), new_uuid()
    notifier.notify_cancel(first)
    listen_until(ear, Hints(cancels={first}))
    fails = iter([True, True, True])
    say = notifications.notify

    def sometimes(connection: Connection, sent: Sequence[tuple[str, str]]) -> None:
        if next(fails, False):
            sessions(database_url, "notifier", ended=True)
        say(connection, sent)

    monkeypatch.setattr(notifications, "notify", sometimes)
    notifier.notify_cancel(second)
    listen_until(ear, Hints(cancels={second}))
    assert [record.levelname for record in caplog.records if record.name == "holdfast.notify"] == ["WARNING"]


def test_its_commits_do_not_wait_for_the_disk_even_when_all_others_do(database_url: str) -> None:
    database = Database(database_url, pool_size=1, strict=True)
    notifier = Notifier(database, Listener())
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
