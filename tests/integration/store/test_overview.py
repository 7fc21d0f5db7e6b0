"""What metrics read of the cluster, and what is left of it while the database is away."""

import psycopg

from server.metrics.cluster_sampler import ClusterSampler, cluster_families
from server.store.cluster import leases
from server.store.cluster.cluster_overview import read_overview
from server.store.database import Database


def _register(database: Database, role: str = "all") -> None:
    with database.begin() as connection:
        leases.register_replica(
            connection, host="here", pid=1, version="1", revision="0001", role=role, models=["m"]
        )


def _series(sampler: ClusterSampler) -> dict[str, float]:
    return {sample.name: sample.value for family in cluster_families(sampler) for sample in family.samples}


def test_an_empty_database_has_nothing_unfinished_and_nothing_overdue(database: Database) -> None:
    with database.begin() as connection:
        overview = read_overview(connection)
    assert dict(overview.unfinished) == {}
    assert (overview.oldest_queued_seconds, overview.purge_lag_seconds) == (0, 0)
    assert overview.connections >= 1
    assert overview.database_bytes > 0


def test_replicas_are_counted_by_state_and_role_for_a_day(database: Database, database_url: str) -> None:
    for role in ("all", "worker", "worker"):
        _register(database, role)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "insert into replicas (id, state, host, pid, version, revision, models, heartbeat_at) values"
            " (gen_random_uuid(), 'dead', '', 1, '', '', '{}', now() - interval '1 hour'),"
            " (gen_random_uuid(), 'dead', '', 1, '', '', '{}', now() - interval '2 days')"
        )
    with database.begin() as connection:
        found = read_overview(connection).replicas
    assert dict(found) == {("alive", "all"): 1, ("alive", "worker"): 2, ("dead", "all"): 1}


def test_a_replica_without_a_database_is_shown_as_such_and_not_asked_twice() -> None:
    away = Database("postgresql://nobody@127.0.0.1:1/nowhere", pool_size=1)
    sampler = ClusterSampler(away, lambda: "the database does not answer")
    sampler.read()
    assert _series(sampler) == {"holdfast_ready": 0, "holdfast_database_up": 0}
    away.close()


def test_a_reading_that_is_too_old_is_not_shown(database: Database) -> None:
    now = [100.0]
    sampler = ClusterSampler(database, lambda: None, clock=lambda: now[0])
    assert _series(sampler) == {"holdfast_ready": 0, "holdfast_database_up": 0}
    sampler.read()
    found = _series(sampler)
    assert (found["holdfast_ready"], found["holdfast_database_up"]) == (1, 1)
    assert found["holdfast_responses_unfinished"] == 0
    now[0] += 60
    assert _series(sampler) == {"holdfast_ready": 0, "holdfast_database_up": 0}
