"""Whom a replica declares dead, by its own clock and its own heartbeats."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from uuid import UUID

import pytest

from server.delivery.hub import Abandonment
from server.recovery.heartbeat import ORPHAN_BEATS, Heartbeat
from server.store.cluster import claims, leases
from server.store.cluster.leases import HEARTBEAT_SECONDS, heartbeat_interval
from server.store.database import Database
from server.store.database_errors import DatabaseError
from tests.support.builders import SpyHub, accept, register
from tests.support.eventually import eventually
from tests.support.listeners import Listener, StillRecorder

LEASE = 10.0


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with closing(Database(database_url, pool_size=4)) as opened:
        yield opened


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def heartbeat_of(
    database: Database,
    me: UUID,
    clock: Clock,
    *,
    recorder: StillRecorder | None = None,
    listener: Listener | None = None,
    lease_seconds: float = LEASE,
) -> Heartbeat:
    return Heartbeat(
        database,
        me,
        recorder or StillRecorder(),  # type: ignore[arg-type]
        SpyHub(),
        Abandonment(is_unread=lambda _response: False, cancel=lambda _response: None),
        listener or Listener(),
        lease_seconds=lease_seconds,
        clock=clock,
    )


def state(database: Database, replica: UUID) -> str:
    with database.begin() as connection:
        found: str = connection.exec_driver_sql(
            "select state from replicas where id = %s", (replica,)
        ).scalar_one()
        return found


def judged_at(database: Database, heartbeat: Heartbeat, clock: Clock, other: UUID, until: int) -> int | None:
    """The second at which another replica is declared dead, if it is."""
    while clock.now < until:
        heartbeat.beat()
        if state(database, other) == "dead":
            return int(clock.now)
        clock.now += 1
    return None


def test_a_replica_that_has_just_started_judges_nobody_for_a_lease(database: Database) -> None:
    me, other, clock = register(database), register(database), Clock()
    run = accept(database, other)
    with database.begin() as connection:
        connection.exec_driver_sql("update replicas set heartbeat_at = 'epoch' where id = %s", (other,))
    heartbeat = heartbeat_of(database, me, clock)
    assert judged_at(database, heartbeat, clock, other, 20) == LEASE
    with database.begin() as connection:
        row = connection.exec_driver_sql(
            "select replica_id, deaths from responses where id = %s", (run.facts.id,)
        ).one()
    assert tuple(row) == (None, 1)


def test_a_replica_that_stores_nothing_judges_nobody_and_is_judged_itself(database: Database) -> None:
    me, other, clock = register(database), register(database), Clock()
    troubled = heartbeat_of(database, me, clock, recorder=StillRecorder(stores=lambda: False))
    assert judged_at(database, troubled, clock, other, int(10 * LEASE)) is None
    sound = heartbeat_of(database, other, clock)
    started = int(clock.now)
    while state(database, me) == "alive":
        troubled.beat()
        sound.beat()
        clock.now += 1
    assert int(clock.now) - started <= LEASE + 1


def test_a_fleet_that_stores_nothing_dies_of_it_on_no_replica(database: Database) -> None:
    clock = Clock()
    replicas, stores = [register(database) for _ in range(3)], [False]
    recorder = StillRecorder(stores=lambda: stores[0])
    fleet = [heartbeat_of(database, each, clock, recorder=recorder) for each in replicas]
    while clock.now < 10 * LEASE:
        stores[0] = clock.now > 8 * LEASE
        for heartbeat in fleet:
            heartbeat.beat()
        clock.now += 1
    assert [state(database, each) for each in replicas] == ["alive"] * 3


def test_after_an_outage_of_many_leases_nobody_is_declared_dead_who_beats_again_in_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, other, clock = register(database), register(database), Clock()
    heartbeat = heartbeat_of(database, me, clock)
    assert judged_at(database, heartbeat, clock, other, int(LEASE)) is None
    with monkeypatch.context() as patch:
        patch.setattr(leases, "write_heartbeat", fail)
        for _ in range(4):
            with pytest.raises(DatabaseError):
                heartbeat.beat()
            clock.now += LEASE
    back = int(clock.now)
    assert judged_at(database, heartbeat, clock, other, back + int(LEASE)) is None
    with database.begin() as connection:
        leases.write_heartbeat(connection, other)
    assert judged_at(database, heartbeat, clock, other, back + 30) == back + 2 * LEASE


def test_a_locked_response_that_is_to_be_handed_back_keeps_no_round_waiting(database: Database) -> None:
    me, clock = register(database), Clock()
    locked, _free = accept(database, me), accept(database, me)
    heartbeat = heartbeat_of(database, me, clock, recorder=StillRecorder(lambda _response: False))
    with database.begin() as other:
        other.exec_driver_sql("select 1 from responses where id = %s for update", (locked.facts.id,))
        heartbeat.beat()
        assert owned_by(database, me) == [locked.facts.id]
    heartbeat.beat()
    assert owned_by(database, me) == []


def owned_by(database: Database, replica: UUID) -> list[UUID]:
    with database.begin() as connection:
        return [place.id for place in claims.owned_responses(connection, replica)]


def fail(*_arguments: object) -> None:
    raise DatabaseError("gone")


def test_a_replica_that_was_suspended_judges_nobody_when_it_goes_on(database: Database) -> None:
    me, other, clock = register(database), register(database), Clock()
    heartbeat = heartbeat_of(database, me, clock)
    assert judged_at(database, heartbeat, clock, other, int(LEASE)) is None
    clock.now += 3 * LEASE
    resumed = int(clock.now)
    assert judged_at(database, heartbeat, clock, other, 100) == resumed + LEASE


def test_a_replica_that_was_declared_dead_ends_its_process_and_shows_no_sign_of_life_after(
    database: Database,
) -> None:
    me, listener = register(database), Listener()
    with database.begin() as connection:
        leases.mark_stopped(connection, me)
    heartbeat = heartbeat_of(database, me, Clock(), listener=listener, lease_seconds=2.0)
    heartbeat.start()
    eventually(lambda: listener.fenced)
    assert "has died" in str(eventually(heartbeat.thread.trouble))
    heartbeat.stop()
    assert (len(listener.fenced), listener.beats, listener.failed_beats) == (1, [], 0)


def test_heartbeats_come_several_times_in_a_lease_and_once_a_second_in_a_long_one() -> None:
    assert [heartbeat_interval(lease) for lease in (2, 4, 10, 600)] == [
        0.5,
        1.0,
        HEARTBEAT_SECONDS,
        HEARTBEAT_SECONDS,
    ]


def leave(database: Database) -> None:
    """A response of a replica that was declared dead."""
    other = register(database)
    accept(database, other)
    with database.begin() as connection:
        leases.mark_stopped(connection, other)


def test_the_oldest_replica_looks_at_every_beat_for_what_others_left_and_a_younger_one_at_every_fifth(
    database: Database,
) -> None:
    oldest, younger = register(database), register(database)
    listener = Listener()
    one = heartbeat_of(database, oldest, Clock(), listener=listener)
    two = heartbeat_of(database, younger, Clock(), listener=listener)
    one.beat()
    two.beat()
    assert [beat.is_first for beat in listener.beats] == [True, False]
    leave(database)
    one.beat()
    assert unowned(database) == 1
    leave(database)
    for _ in range(ORPHAN_BEATS - 1):  # it has beaten once
        two.beat()
        assert unowned(database) == 1
    two.beat()
    assert unowned(database) == 2


def unowned(database: Database) -> int:
    with database.begin() as connection:
        count: int = connection.exec_driver_sql(
            "select count(*) from responses where replica_id is null"
        ).scalar_one()
        return count
