"""Background responses with a completion window: run when nothing else does, cancelled at its end."""

from uuid import UUID

import pytest

from engine.request import IDLE_PRIORITY
from server.metrics.cluster_sampler import ClusterSampler, cluster_families
from server.protocol.ids import new_uuid
from server.protocol.responses.request import COMPLETION_WINDOWS
from server.recovery.claimer import CHECK_SECONDS, QueueCheck
from server.store.cluster import claims
from server.store.database import Database
from tests.integration.recording.claiming import Taking, taking
from tests.support.builders import TENANT, accept, register
from tests.support.eventually import eventually


def queue(database: Database, priority: int, count: int = 1) -> list[UUID]:
    """Background responses of this priority that wait."""
    responses = [accept(database, new_uuid(), background=True).facts.id for _ in range(count)]
    with database.begin() as connection:
        connection.exec_driver_sql(
            "update responses set priority = %s where id = any(%s)", (priority, responses)
        )
    return responses


def taken(at: Taking) -> list[UUID]:
    """What the replica has begun since it was asked last."""
    at.claimer.claim_all()
    requests = begun(at)
    at.engine.requests.clear()
    return requests


def begun(at: Taking) -> list[UUID]:
    return [UUID(request.request_id) for request in at.engine.requests]


def test_they_come_after_every_other_and_take_an_eighth_of_what_a_replica_runs(database_url: str) -> None:
    with taking(database_url, max_running=32) as at:
        idle = queue(at.bench.database, IDLE_PRIORITY, 6)
        assert taken(at) == idle[:4]
        others = queue(at.bench.database, 0, 3)
        assert taken(at) == others
        assert taken(at) == [], "others run, so no more of them begin"


def test_a_replica_that_runs_one_at_a_time_runs_them_too(database_url: str) -> None:
    with taking(database_url, max_running=1) as at:
        first, _ = queue(at.bench.database, IDLE_PRIORITY, 2)
        assert taken(at) == [first]


def test_of_few_that_a_replica_runs_they_take_half(database_url: str) -> None:
    with taking(database_url, max_running=4) as at:
        idle = queue(at.bench.database, IDLE_PRIORITY, 3)
        assert taken(at) == idle[:2]


def test_the_end_of_one_begins_the_next_without_a_poll(database_url: str) -> None:
    with taking(database_url, max_running=1, poll_seconds=3600) as at:
        first, second = queue(at.bench.database, IDLE_PRIORITY, 2)
        at.claimer.start()
        eventually(lambda: begun(at) == [first])
        at.bench.recorder.capacity.discard(first)
        at.claimer.ended(first)
        eventually(lambda: begun(at) == [first, second])
        at.claimer.stop()


def test_they_do_not_begin_while_another_response_runs(database_url: str) -> None:
    with taking(database_url, max_running=32) as at:
        (other,) = queue(at.bench.database, 5)
        (idle,) = queue(at.bench.database, IDLE_PRIORITY)
        assert taken(at) == [other]
        at.bench.recorder.capacity.discard(other)
        assert taken(at) == [idle]


def test_the_shorter_window_is_the_more_urgent_one(database_url: str) -> None:
    with taking(database_url, max_running=32) as at:
        long, short = (queue(at.bench.database, COMPLETION_WINDOWS[window][0])[0] for window in ("8h", "2h"))
        assert taken(at) == [short, long]


def test_metrics_have_the_time_until_the_first_window_of_what_waits_ends(database_url: str) -> None:
    with taking(database_url, max_running=32) as at:
        sampler = ClusterSampler(at.bench.database, lambda: None)

        def left() -> list[float]:
            sampler.read()
            name = "holdfast_first_window_left_seconds"
            return [
                sample.value
                for family in cluster_families(sampler)
                for sample in family.samples
                if sample.name == name
            ]

        queue(at.bench.database, 5)
        assert left() == []
        for window in ("8h", "2h"):
            queue(at.bench.database, COMPLETION_WINDOWS[window][0])
            (seconds,) = left()
            assert 0 <= COMPLETION_WINDOWS[window][1].total_seconds() - seconds < 60
        with at.bench.database.begin() as connection:
            connection.exec_driver_sql("update responses set created_at = created_at - interval '3 hours'")
        assert -7200 < left()[0] < -3500


def test_a_running_one_leaves_its_tenant_what_it_may_have_at_a_time(database_url: str) -> None:
    with taking(database_url, max_running=32) as at:
        queue(at.bench.database, IDLE_PRIORITY)
        assert len(taken(at)) == 1
        assert TENANT not in at.bench.recorder.capacity._counts


@pytest.mark.parametrize("window", ["2h", "8h"])
@pytest.mark.parametrize("runs", [False, True])
def test_at_the_end_of_its_window_a_response_is_cancelled(
    database_url: str, window: str, *, runs: bool
) -> None:
    priority, length = COMPLETION_WINDOWS[window]
    now = [0.0]
    with taking(database_url, max_running=32) as at:
        database = at.bench.database
        check = QueueCheck(database, lambda: now[0])
        response, young = queue(database, priority, 2)
        if runs:
            assert response in taken(at)
        with database.begin() as connection:
            connection.exec_driver_sql(
                "update responses set created_at = now() - %s - interval '1 second' where id = %s",
                (length, response),
            )
        now[0] = CHECK_SECONDS
        check.check()
        with database.begin() as connection:
            asked = connection.exec_driver_sql(
                "select id, cancel_reason from responses where cancel_requested_at is not null"
            ).all()
            owner = register(database) if not runs else at.bench.replica
            running = claims.cancel_requested(connection, owner)
        assert [tuple(row) for row in asked] == [(response, "window_ended")]
        assert running == ([(response, "window_ended")] if runs else [])
        assert young != response
