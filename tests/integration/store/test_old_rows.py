"""What grows with every response and every start of a process goes after its time."""

from uuid import UUID

import pytest

from server.maintenance.retention import analyze, remove_old
from server.protocol.ids import new_uuid
from server.store.database import Database
from tests.integration.store.test_retention import TABLES, drain, left, plant
from tests.support.builders import TENANT, insert_response, register

LEDGER = """
    insert into usage_ledger
        (tenant, response_id, model, status, stored, input_tokens, cached_tokens, output_tokens,
         reasoning_tokens, started_at, finished_at, kind, background, attempt)
    values (%s, %s, 'm', 'completed', true, 1, 0, 1, 0, now(), now() - make_interval(days => %s), 'response',
        false, 1)
"""


def meter(database: Database, response: UUID, *, days: int) -> UUID:
    with database.begin() as connection:
        connection.exec_driver_sql(LEDGER, (TENANT, response, days))
    return response


def entries(database: Database) -> set[UUID]:
    with database.begin() as connection:
        return set(connection.exec_driver_sql("select response_id from usage_ledger").scalars())


def test_entries_of_the_ledger_go_after_their_days_once_not_stored(database: Database) -> None:
    meter(database, new_uuid(), days=11)
    kept = {meter(database, new_uuid(), days=9)}
    replica, stored = register(database), new_uuid()
    with database.begin() as connection:
        insert_response(connection, replica, id=stored)
    kept.add(meter(database, stored, days=11))
    remove_old(database, 10)
    assert entries(database) == kept


def test_without_days_the_ledger_keeps_everything(database: Database) -> None:
    kept = {meter(database, new_uuid(), days=9999)}
    remove_old(database, 0)
    assert entries(database) == kept


@pytest.mark.parametrize(
    ("state", "days", "stays"),
    [("dead", 31, False), ("stopped", 31, False), ("dead", 29, True), ("alive", 99, True)],
)
def test_replicas_that_ended_a_month_ago_go(database: Database, state: str, days: int, stays: bool) -> None:
    replica = register(database)
    with database.begin() as connection:
        connection.exec_driver_sql(
            "update replicas set state = %s, heartbeat_at = now() - make_interval(days => %s) where id = %s",
            (state, days, replica),
        )
    remove_old(database, 0)
    with database.begin() as connection:
        found = connection.exec_driver_sql("select count(*) from replicas where id = %s", (replica,))
        assert found.scalar_one() == stays


def test_a_dead_replica_stays_while_a_response_is_still_its_own(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        insert_response(connection, replica, id=new_uuid())
        connection.exec_driver_sql("update replicas set state = 'dead', heartbeat_at = '2020-01-01'")
    remove_old(database, 0)
    with database.begin() as connection:
        assert connection.exec_driver_sql("select id from replicas").scalar_one() == replica


def test_the_planner_learns_how_large_a_partitioned_table_is(database: Database) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(
            "insert into usage_ledger (tenant, response_id, model, status, stored, input_tokens,"
            " cached_tokens, output_tokens, reasoning_tokens, kind, background, attempt)"
            " select 'acme', gen_random_uuid(), 'm', 'completed', true, 1, 0, 1, 0, 'response', false, 1"
            " from generate_series(1, 3000)"
        )
        connection.exec_driver_sql("analyze usage_ledger_default")
    analyze(database)
    with database.begin() as connection:
        known = connection.exec_driver_sql("select reltuples from pg_class where relname = 'usage_ledger'")
        assert known.scalar_one() == 3000


def test_responses_whose_parent_is_not_there_go_and_keep_nobody_else(database: Database) -> None:
    """As of one user's responses that were imported without those of others before them."""
    replica = register(database)
    with database.begin() as connection:
        plant(connection, replica)
        for _ in range(60):
            parent = plant(connection, replica, expired=False)
            plant(connection, replica, previous=parent)
            for table, column in TABLES.items():
                connection.exec_driver_sql(f"delete from {table} where {column} = %s", (parent,))  # noqa: S608
    drain(database)
    assert left(database) == {table: set() for table in TABLES}
