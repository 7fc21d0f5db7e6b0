import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from server.protocol.ids import new_uuid
from server.protocol.responses.events import Event, Kind
from server.recording.recorder import Recorder
from server.store import log_append
from server.store.cluster import claims, leases
from server.store.content.responses import ResponseKey
from server.store.database import Connection, Database
from server.store.driver_statements import psycopg_connection
from server.store.log_append import append_and_commit
from tests.support.builders import TENANT, SpyHub, accept, kill, register
from tests.support.eventually import eventually
from tests.support.listeners import Listener


def state(database: Database, replica: UUID) -> str:
    with database.begin() as connection:
        found: str = connection.exec_driver_sql(
            "select state from replicas where id = %s", (replica,)
        ).scalar_one()
        return found


def age(connection: Connection, replica: UUID, seconds: float) -> None:
    connection.exec_driver_sql(
        "update replicas set heartbeat_at = clock_timestamp() - make_interval(secs => %s) where id = %s",
        (seconds, replica),
    )


def bury_silent(connection: Connection, seconds: float, *, ttl: float = 10) -> None:
    """As a replica does that has seen these heartbeats for so long."""
    old = connection.exec_driver_sql(
        "select id from replicas where heartbeat_at < clock_timestamp() - make_interval(secs => %s)",
        (seconds,),
    )
    silent = {row[0] for row in old}
    seen = leases.other_heartbeats(connection, new_uuid())
    leases.expire_replicas(connection, {one: seen[one] for one in silent & seen.keys()}, ttl)


def test_a_replica_passes_the_fence_until_it_is_buried(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        before = leases.fence(connection, replica)
        assert leases.fence(connection, replica) > before
    kill(database, replica)
    assert state(database, replica) == "dead"
    with database.begin() as connection, pytest.raises(leases.Fenced):
        leases.fence(connection, replica)
    with database.begin() as connection, pytest.raises(leases.Fenced):
        leases.write_heartbeat(connection, replica)


def test_an_unknown_replica_is_fenced(database: Database) -> None:
    with database.begin() as connection:
        with pytest.raises(leases.Fenced):
            leases.fence(connection, new_uuid())
        with pytest.raises(leases.Fenced):
            leases.write_heartbeat(connection, new_uuid())


def test_only_silent_replicas_are_buried_and_a_beat_prevents_it(database: Database) -> None:
    silent, beating, fresh = (register(database) for _ in range(3))
    with database.begin() as connection:
        age(connection, silent, 11)
        age(connection, beating, 11)
        leases.write_heartbeat(connection, beating)
        bury_silent(connection, 10)
    assert [state(database, replica) for replica in (silent, beating, fresh)] == ["dead", "alive", "alive"]


def test_what_is_read_through_a_replica_is_known_to_the_others_while_it_lives(database: Database) -> None:
    me, other = register(database), register(database)
    here, there, nowhere = (new_uuid() for _ in range(3))
    with database.begin() as connection:
        leases.write_heartbeat(connection, me, [here])
        leases.write_heartbeat(connection, other, [there, new_uuid()])
        assert leases.remotely_read(connection, me, [here, there, nowhere]) == [there]
        assert leases.remotely_read(connection, other, [here, there, nowhere]) == [here]
        assert leases.remotely_read(connection, other, []) == []
        leases.write_heartbeat(connection, other)
        assert leases.remotely_read(connection, me, [there]) == []
        leases.write_heartbeat(connection, other, [there])
    kill(database, other)
    with database.begin() as connection:
        assert leases.remotely_read(connection, me, [there]) == []


def test_a_stopped_replica_is_fenced_and_not_buried(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        leases.mark_stopped(connection, replica)
        age(connection, replica, 11)
        bury_silent(connection, 10)
    assert state(database, replica) == "stopped"
    with database.begin() as connection, pytest.raises(leases.Fenced):
        leases.fence(connection, replica)


def test_a_dead_replica_does_not_become_a_stopped_one(database: Database) -> None:
    replica = register(database)
    kill(database, replica)
    with database.begin() as connection:
        leases.mark_stopped(connection, replica)
    assert state(database, replica) == "dead"


def test_a_burial_passes_by_a_replica_whose_commit_is_in_flight(database: Database) -> None:
    replica, other = register(database), register(database)
    with database.begin() as connection:
        age(connection, replica, 11)
        age(connection, other, 11)
    with database.begin() as connection:
        leases.fence(connection, replica)
        with database.begin() as undertaker:
            bury_silent(undertaker, 10)
        assert state(database, replica) == "alive"
    assert state(database, other) == "dead"
    with database.begin() as connection:
        bury_silent(connection, 10)
    assert state(database, replica) == "dead"


def test_a_heartbeat_and_a_commit_in_flight_do_not_wait_for_each_other(database: Database) -> None:
    replica = register(database)
    recorder = database.dedicated_connection(leases.recorder_application_name(replica))
    with database.begin() as commit:
        leases.fence(commit, replica)
        with database.begin() as heartbeat:
            leases.write_heartbeat(heartbeat, replica)
    with database.begin() as heartbeat:
        leases.write_heartbeat(heartbeat, replica)
        with database.begin() as commit:
            leases.fence(commit, replica)
        assert append_and_commit(recorder, replica, lambda _now: [])
    recorder.close()


def test_a_commit_that_meets_a_burial_in_flight_waits_for_it_and_is_fenced(database: Database) -> None:
    replica = register(database)
    outcome: list[str] = []

    def commit() -> None:
        connection = database.dedicated_connection("zombie")
        try:
            with connection.begin():
                leases.fence(connection, replica)
            outcome.append("committed")
        except leases.Fenced:
            outcome.append("fenced")
        finally:
            connection.close()

    zombie = threading.Thread(target=commit)
    with database.begin() as undertaker:
        age(undertaker, replica, 11)
        bury_silent(undertaker, 10)
        zombie.start()
        eventually(lambda: outcome or _waits(database))
        assert outcome == []
    zombie.join(30)
    assert outcome == ["fenced"]


def test_a_replica_that_vanished_in_the_middle_of_a_copy_is_buried(database: Database) -> None:
    replica, living = register(database), register(database)
    with database.begin() as connection:
        age(connection, replica, 11)
        age(connection, living, -3600)
    session = database.dedicated_connection(leases.recorder_application_name(replica))
    with psycopg_connection(session) as raw:
        raw.pgconn.send_query(b"begin; select 1 from replicas for key share; copy conversations from stdin")
        eventually(lambda: _copies(database))
        bury(database, 10)
        assert _copies(database), "its transaction is younger than a lease"
        eventually(lambda: state_after_burial(database, replica) == "dead")
    assert state(database, living) == "alive"
    session.invalidate()
    session.close()


def bury(database: Database, seconds: float) -> None:
    with database.begin() as connection:
        bury_silent(connection, 10, ttl=seconds)


def state_after_burial(database: Database, replica: UUID) -> str:
    bury(database, 0.1)
    return state(database, replica)


def _copies(database: Database) -> bool:
    with database.begin() as connection:
        query = "select 1 from pg_stat_progress_copy where datname = current_database()"
        return connection.exec_driver_sql(query).first() is not None


def test_a_buried_replicas_recorder_is_fenced_while_another_replicas_goes_on(database: Database) -> None:
    zombie, living = register(database), register(database)
    listeners = {zombie: Listener(), living: Listener()}
    hub = SpyHub()
    recorders = [Recorder(database, replica, hub, listener) for replica, listener in listeners.items()]
    for recorder in recorders:
        recorder.start()
    kill(database, zombie)
    for recorder, replica in zip(recorders, (zombie, living), strict=True):
        run = accept(database, replica)
        recorder.start_run(run)
        recorder.fail_run(run.facts.id, "Ended.")
    eventually(lambda: listeners[zombie].fenced and recorders[1].wait_idle(0))
    for recorder in recorders:
        recorder.stop()
    assert [listener.fenced for listener in listeners.values()] == [[True], []]


def _waits(database: Database) -> bool:
    with database.begin() as connection:
        return bool(
            connection.exec_driver_sql(
                "select count(*) from pg_stat_activity where application_name = 'holdfast zombie'"
                " and wait_event_type = 'Lock' and datname = current_database()"
            ).scalar_one()
        )


def _owner(database: Database, response: UUID) -> tuple[UUID | None, int]:
    with database.begin() as connection:
        row = connection.exec_driver_sql(
            "select replica_id, deaths from responses where id = %s", (response,)
        ).one()
        return row.replica_id, row.deaths


def test_a_response_that_is_claimed_while_it_is_abandoned_stays_with_its_new_owner(
    database: Database,
) -> None:
    dead, living = register(database), register(database)
    run = accept(database, dead)
    with database.begin() as connection:
        leases.mark_stopped(connection, dead)
    with database.begin() as claimer:
        claimer.exec_driver_sql(
            "update responses set replica_id = %s, attempt = 2 where id = %s", (living, run.facts.id)
        )
        with database.begin() as connection:
            assert leases.release_orphans(connection) == {}, "its row is locked, and is passed over"
    with database.begin() as connection:
        assert leases.release_orphans(connection) == {}
    assert _owner(database, run.facts.id) == (living, 0)


def test_what_dead_stopped_and_unknown_replicas_left_is_abandoned_and_nothing_else(
    database: Database,
) -> None:
    dead, stopped, living, unknown = *(register(database) for _ in range(3)), new_uuid()
    runs = {owner: accept(database, owner).facts.id for owner in (dead, stopped, living, unknown)}
    with database.begin() as connection:
        connection.exec_driver_sql("update replicas set state = 'dead' where id = %s", (dead,))
        leases.mark_stopped(connection, stopped)
        assert sum(leases.release_orphans(connection).values()) == 3
        assert leases.release_orphans(connection) == {}
    owners = {owner: _owner(database, run) for owner, run in runs.items()}
    assert owners == {dead: (None, 1), stopped: (None, 1), unknown: (None, 1), living: (living, 0)}


@pytest.mark.parametrize(
    ("attempt", "wrote", "written_by", "deaths"),
    [
        (1, [], 1, 1),
        (1, [7], 1, 0),
        (2, [7], 1, 1),
        (2, [7], 2, 0),
        (2, [], 2, 0),
        (2, None, 0, 1),
    ],
    ids=str,
)
def test_a_death_counts_where_the_attempt_has_stored_nothing_new(
    database: Database, attempt: int, wrote: list[int] | None, written_by: int, deaths: int
) -> None:
    dead, engine_died = register(database), register(database)
    left, released = (accept(database, owner).facts.id for owner in (dead, engine_died))
    with database.begin() as connection:
        for response in (left, released):
            connection.exec_driver_sql("update responses set attempt = %s where id = %s", (attempt, response))
            if wrote is not None:
                event = Event(100, Kind.OUTPUT_TEXT_DELTA, 0, 0, "a")
                rows = log_append.encode_rows(TENANT, response, written_by, [event], wrote)
                log_append.append(connection, rows)
        claims.release(connection, engine_died, [ResponseKey(TENANT, released)], died=True)
        leases.mark_stopped(connection, dead)
        leases.release_orphans(connection)
    assert [_owner(database, response) for response in (left, released)] == [(None, deaths)] * 2


def test_looking_for_lost_owners_reads_as_many_rows_as_there_are_owners(database: Database) -> None:
    owners = [register(database) for _ in range(3)]
    template = accept(database, owners[0]).facts.id
    with database.begin() as connection:
        connection.exec_driver_sql(
            "insert into responses (tenant, id, status, background, stream, model, replica_id, seed, request,"
            " metadata, size, kind, turn) select tenant, gen_random_uuid(), 'in_progress', true, stream,"
            " model, (cast(%s as uuid[]))[n %% 3 + 1], seed, request, metadata, size, kind, turn"
            " from responses, generate_series(1, 3000) n where id = %s",
            (owners, template),
        )
    with database.begin() as connection:
        connection.exec_driver_sql("analyze responses")
        plan = connection.exec_driver_sql(
            f"explain (analyze, format json) {leases._DEAD_OWNERS}"
        ).scalar_one()
    touched = list(_rows_read(msgspec.json.decode(plan)[0]["Plan"]))
    assert touched
    assert max(touched) <= 2 * len(owners)


def _rows_read(node: dict[str, Any]) -> Iterator[float]:
    """Of each scan of a partition of responses."""
    if node.get("Relation Name", "").startswith("responses"):
        yield node["Actual Rows"] * node["Actual Loops"]
    for child in node.get("Plans", ()):
        yield from _rows_read(child)


def test_a_burial_spares_who_has_beaten_since_it_was_seen_silent(database: Database) -> None:
    me, silent, woken = (register(database) for _ in range(3))
    with database.begin() as connection:
        seen = leases.other_heartbeats(connection, me)
        leases.write_heartbeat(connection, woken)
        leases.expire_replicas(connection, seen, 10)
    assert [state(database, one) for one in (me, silent, woken)] == ["alive", "dead", "alive"]


def test_a_silent_replica_is_recognised_in_sessions_that_round_what_they_show(database: Database) -> None:
    me, silent = register(database), register(database)
    with database.begin() as connection:
        connection.exec_driver_sql("set local extra_float_digits = 0")
        connection.exec_driver_sql(
            "update replicas set heartbeat_at = '2026-01-02 03:04:05.678912Z' where id = %s", (silent,)
        )
        seen = leases.other_heartbeats(connection, me)
        leases.expire_replicas(connection, seen, 10)
    assert state(database, silent) == "dead"


def test_a_heartbeat_that_is_no_time_is_read_like_any_other(database: Database) -> None:
    me, odd = register(database), register(database)
    with database.begin() as connection:
        connection.exec_driver_sql("update replicas set heartbeat_at = 'infinity' where id = %s", (odd,))
        seen = leases.other_heartbeats(connection, me)
        leases.expire_replicas(connection, seen, 10)
    assert state(database, odd) == "dead"
