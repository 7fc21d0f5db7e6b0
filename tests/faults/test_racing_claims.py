"""F26: sixteen replicas look after a replica that ended with responses unfinished, all at the same moment."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar
from uuid import UUID

import pytest

from server.protocol.ids import new_uuid
from server.store.cluster import claims, leases
from server.store.database import Connection, Database
from tests.fix_tally import Tally
from tests.support.builders import TENANT, accept, register
from tests.support.rounds import faults_only

REPLICAS = 16
LEFT = 64
T = TypeVar("T")
RUNNING = 3200
"""Responses of living replicas, among which the others are to be found."""

_COPIES = """
    insert into responses (tenant, id, status, background, stream, model, replica_id, seed, request, metadata,
        size, kind, turn)
    select tenant, gen_random_uuid(), 'in_progress', true, stream, model, %s, seed, request, metadata,
        size, kind, turn
    from responses, generate_series(1, %s) where id = %s
"""


def copies(connection: Connection, template: UUID, owner: UUID, count: int) -> None:
    connection.exec_driver_sql(_COPIES, (owner, count, template))


@pytest.fixture
def raced(database_url: str) -> Iterator[Database]:
    with closing(Database(database_url, pool_size=REPLICAS + 2)) as database:
        yield database


@pytest.mark.parametrize("rounds", [2, *faults_only(200)])
def test_no_response_is_claimed_twice_however_many_replicas_race_for_it(
    raced: Database, rounds: int, tally: Tally
) -> None:
    template = accept(raced, new_uuid(), background=True, tenant=TENANT).facts.id
    alive = [register(raced) for _ in range(REPLICAS)]
    with raced.begin() as connection:
        copies(connection, template, alive[0], RUNNING)
        connection.exec_driver_sql("update responses set status = 'completed' where id = %s", (template,))
    with ThreadPoolExecutor(REPLICAS) as pool:
        for _ in range(rounds):
            race(raced, alive, template, pool)
            tally["F26", f"rounds in which {REPLICAS} replicas raced, and nothing was claimed twice"] += 1


def race(database: Database, alive: list[UUID], template: UUID, pool: ThreadPoolExecutor) -> None:
    ended = register(database)
    with database.begin() as connection:
        copies(connection, template, ended, LEFT)
        leases.mark_stopped(connection, ended)
    start = threading.Barrier(REPLICAS)

    def look_after(me: UUID) -> list[UUID]:
        start.wait(60)
        claimed: list[UUID] = []
        for _ in range(3):
            in_transaction(database, leases.release_orphans)
            claimed += in_transaction(database, lambda connection: claim(connection, me))
        return claimed

    found = list(pool.map(look_after, alive))
    while rest := in_transaction(database, leases.release_orphans):
        assert sum(rest.values()) <= LEFT
    late = in_transaction(database, lambda connection: claim(connection, alive[0]))
    times = Counter(one for claimed in [*found, late] for one in claimed)
    assert set(times.values()) == {1}
    assert len(times) == LEFT
    owners = {one: me for me, claimed in zip(alive, found, strict=True) for one in claimed}
    with database.begin() as connection:
        rows = connection.exec_driver_sql(
            "select id, replica_id, attempt, deaths from responses where id = any(%s)", (list(times),)
        ).all()
        assert {(row.attempt, row.deaths) for row in rows} == {(2, 1)}
        assert {row.id: row.replica_id for row in rows if row.id in owners} == owners
        connection.exec_driver_sql("delete from responses where id = any(%s)", (list(times),))


def in_transaction(database: Database, work: Callable[[Connection], T]) -> T:
    with database.begin() as connection:
        return work(connection)


def claim(connection: Connection, me: UUID) -> list[UUID]:
    leases.fence(connection, me)
    return [
        one.id
        for one in claims.claim_waiting(connection, me, models=["model"], full=(), most_deaths=3, limit=LEFT)
    ]
