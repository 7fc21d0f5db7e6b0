"""Purging on a real Postgres: what goes, what stays as history, and several purges at once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol.ids import new_uuid
from server.protocol.responses.events import Event, Kind
from server.protocol.responses.response import Ending, ResponseFacts
from server.store import log_append
from server.store.administration import ledger
from server.store.content import deletion, responses, stored_items
from server.store.content.deletion import MAX_BATCH_ROWS, PurgeBatch
from server.store.database import Connection, Database, clock
from tests.support.builders import TENANT, USAGE, examples, finish, insert_response, register

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
TABLES = {
    "responses": "id",
    "items": "response_id",
    "response_streams": "response_id",
    "response_events_hot": "response_id",
}


def ending(finished_at: datetime = LONG_AGO) -> Ending:
    return Ending(
        status="completed",
        first_token_at=None,
        finished_at=finished_at,
        input_tokens=USAGE.prompt,
        cached_tokens=USAGE.cached,
        output_tokens=USAGE.output,
        reasoning_tokens=0,
    )


def plant(
    connection: Connection,
    replica: UUID,
    *,
    previous: UUID | None = None,
    expired: bool = True,
    ended: bool = True,
    inputs: int = 1,
    tenant: str = TENANT,
    finished_at: datetime = LONG_AGO,
) -> UUID:
    """A response with its input and a stream."""
    node = new_uuid()
    lifetime = timedelta(days=-1) if expired else timedelta(days=1)
    insert_response(
        connection,
        replica,
        id=node,
        tenant=tenant,
        previous=previous,
        inputs=["said"] * inputs,
        lifetime=lifetime,
    )
    log_append.append(
        connection, log_append.encode_rows(tenant, node, 1, [Event(0, Kind.OUTPUT_TEXT_DELTA, 0, 0, "a")], [])
    )
    if ended:
        end(connection, replica, node, tenant=tenant, finished_at=finished_at)
    return node


def end(
    connection: Connection,
    replica: UUID,
    node: UUID,
    *,
    tenant: str = TENANT,
    finished_at: datetime = LONG_AGO,
) -> None:
    """What the recorder does at a response's end."""
    log_append.fold(connection, [(tenant, node)])
    if finish(connection, tenant, node, replica, 1, ending(finished_at)):
        deletion.remove_if_unneeded(connection, tenant, node)


def drain(database: Database, quiet: float = 0) -> list[PurgeBatch]:
    """Every batch until nothing is left to do."""
    done: list[PurgeBatch] = []
    while not done or done[-1].moved:
        with database.begin() as connection:
            done.append(deletion.purge_batch(connection, quiet))
    return done


def left(database: Database) -> dict[str, set[UUID]]:
    """Which responses have rows, by table."""
    with database.begin() as connection:
        return {
            table: set(connection.exec_driver_sql(f"select {column} from {table}").scalars())  # noqa: S608
            for table, column in TABLES.items()
        }


def is_readable(database: Database, node: UUID, tenant: str = TENANT) -> bool:
    with database.begin() as connection:
        return responses.get(connection, tenant, node) is not None


def test_a_response_expires_its_lifetime_after_its_creation_to_the_microsecond(database: Database) -> None:
    replica = register(database)
    node, kept = new_uuid(), new_uuid()
    with database.begin() as connection:
        created = insert_response(connection, replica, id=node, lifetime=timedelta(seconds=90))
        insert_response(connection, replica, id=kept)
        found = connection.exec_driver_sql("select id, expires_at from responses").all()
    assert set(found) == {(node, created + timedelta(seconds=90)), (kept, None)}


def test_only_expired_responses_that_ended_go_and_their_metering_stays(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        gone = plant(connection, replica)
        kept = {plant(connection, replica, expired=False), plant(connection, replica, ended=False)}
        ledger.record_usage(
            connection,
            [
                (
                    ledger.LedgerEntry(
                        facts=ResponseFacts(
                            tenant=TENANT,
                            id=gone,
                            created_at=LONG_AGO,
                            model="model",
                            background=False,
                            key_id=None,
                        ),
                        stored=True,
                    ),
                    ending(),
                )
            ],
        )
    first, last = drain(database)
    assert (first.responses, first.rows) == (1, 3)
    assert (last.responses, last.rows) == (0, 0)
    found = left(database)
    assert found["responses"] == found["items"] == kept
    assert found["response_streams"] | found["response_events_hot"] == kept
    with database.begin() as connection:
        assert ledger.is_metered(connection, TENANT, gone)


def test_a_response_that_has_just_ended_is_left_to_its_readers(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        now = connection.exec_driver_sql("select clock_timestamp()").scalar_one()
        just = plant(connection, replica, finished_at=now)
        long_over = plant(connection, replica, finished_at=now - timedelta(seconds=301))
    drain(database, quiet=300)
    assert (is_readable(database, just), is_readable(database, long_over)) == (True, False)


@dataclass
class Forest:
    """Responses by number: each one's parent, and which of them have expired, run, or were deleted."""

    parents: list[int | None]
    expired: set[int]
    running: set[int]
    deleted: set[int]
    ids: list[UUID] = field(default_factory=list)

    def rows(self) -> set[UUID]:
        """A row is there while it is live or running, or while a row is there that goes on from it."""
        kept: set[int] = set()
        for node in reversed(range(len(self.parents))):
            has_next = any(self.parents[other] == node for other in kept)
            if not self.is_gone(node) or node in self.running or has_next:
                kept.add(node)
        return {self.ids[node] for node in kept}

    def is_gone(self, node: int) -> bool:
        return node in self.deleted or (node in self.expired and node not in self.running)

    def streams(self) -> set[UUID]:
        return {id_ for node, id_ in enumerate(self.ids) if not self.is_gone(node) or node in self.running}

    def readable(self) -> set[UUID]:
        return {id_ for node, id_ in enumerate(self.ids) if not self.is_gone(node)}


def check(database: Database, forest: Forest) -> None:
    found = {table: nodes & set(forest.ids) for table, nodes in left(database).items()}
    assert found["responses"] == found["items"] == forest.rows()
    assert found["response_streams"] | found["response_events_hot"] == forest.streams()
    assert {id_ for id_ in forest.ids if is_readable(database, id_)} == forest.readable()


def sets_below(size: int) -> st.SearchStrategy[set[int]]:
    return st.sets(st.integers(0, size - 1))


forests = st.integers(1, 9).flatmap(
    lambda size: st.builds(
        Forest,
        st.tuples(*(st.none() | st.integers(0, node - 1) if node else st.none() for node in range(size))).map(
            list
        ),
        sets_below(size),
        sets_below(size),
        sets_below(size),
    )
)


@given(forests, st.booleans())
@examples(25)
def test_exactly_what_nothing_needs_is_purged(database: Database, forest: Forest, at_once: bool) -> None:
    replica = register(database)
    forest.ids.clear()
    with database.begin() as connection:
        for node, parent in enumerate(forest.parents):
            previous = forest.ids[parent] if parent is not None else None
            ended, expired = node not in forest.running, node in forest.expired
            forest.ids.append(plant(connection, replica, previous=previous, expired=expired, ended=ended))
        for node in forest.deleted:
            deletion.delete(connection, TENANT, forest.ids[node])
    purge_at_once(database, 3) if at_once else drain(database)
    check(database, forest)
    with database.begin() as connection:
        for node in forest.running:
            end(connection, replica, forest.ids[node])
        connection.exec_driver_sql("update responses set expires_at = 'epoch' where deleted_at is null")
    forest.running, forest.expired = set(), set(range(len(forest.parents)))
    drain(database)
    assert left(database) == {table: set() for table in TABLES}


def purge_at_once(database: Database, purgers: int) -> list[PurgeBatch]:
    """Every purger's batches, all begun together; then what they left to each other."""
    begin = threading.Barrier(purgers)

    def run() -> list[PurgeBatch]:
        begin.wait()
        return drain(database)

    with ThreadPoolExecutor(purgers) as pool:
        runs = [pool.submit(run) for _ in range(purgers)]
        batches = [batch for finished in runs for batch in finished.result()]
    return batches + drain(database)


def test_several_purges_at_once_share_the_work_and_leave_nothing(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        for _ in range(40):
            previous: UUID | None = None
            for _ in range(5):
                previous = plant(connection, replica, previous=previous)
    batches = purge_at_once(database, 4)
    assert sum(batch.responses for batch in batches) == 200
    assert sum(batch.rows for batch in batches) == 600
    assert left(database) == {table: set() for table in TABLES}


def test_the_history_of_a_live_response_stays_and_goes_with_it(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        first = plant(connection, replica)
        second = plant(connection, replica, previous=first)
        third = plant(connection, replica, previous=second, expired=False)
        before = stored_items.chain_items(connection, TENANT, third)
    drain(database)
    assert [is_readable(database, node) for node in (first, second, third)] == [False, False, True]
    with database.begin() as connection:
        assert stored_items.chain_items(connection, TENANT, third) == before
        assert len(before) == 3
        deletion.delete(connection, TENANT, third)
    assert left(database) == {table: set() for table in TABLES}


def test_a_response_that_a_new_one_is_about_to_follow_waits_for_the_next_purge(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        node = plant(connection, replica, finished_at=clock(connection))
    with database.begin() as connection:
        following = plant(connection, replica, previous=node, expired=False)
        assert drain(database) == [PurgeBatch(0, 0, False)]
    drain(database)
    assert not is_readable(database, node)
    assert left(database)["items"] == {node, following}


def test_a_parent_that_somebody_holds_keeps_its_expired_child_until_the_next_purge(
    database: Database,
) -> None:
    replica = register(database)
    with database.begin() as connection:
        parent = plant(connection, replica, expired=False)
        child = plant(connection, replica, previous=parent)
    with database.begin() as connection:
        connection.exec_driver_sql("select from responses where id = %s for share", (parent,))
        drain(database)
        assert not is_readable(database, child)
        assert left(database)["response_streams"] == {parent}
        assert left(database)["responses"] == {parent, child}
    drain(database)
    assert left(database)["responses"] == {parent}


def test_a_batch_removes_no_more_rows_than_it_may(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        for _ in range(30):
            plant(connection, replica, inputs=98)  # a hundred rows each
    batches = drain(database)
    assert sum(batch.rows for batch in batches) == 3000
    assert all(batch.rows <= MAX_BATCH_ROWS for batch in batches)


def test_a_response_of_more_rows_than_a_batch_may_remove_has_one_to_itself(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        plant(connection, replica, inputs=MAX_BATCH_ROWS + 1)
        plant(connection, replica)
    batches = drain(database)
    assert sorted(batch.rows for batch in batches if batch.rows) == [3, MAX_BATCH_ROWS + 3]


@pytest.mark.parametrize(("seconds", "slices"), [(0.045, 4), (0.09, 2), (0.3, 1)])
def test_a_batch_ends_before_the_slice_that_would_take_too_long(
    database: Database, seconds: float, slices: int
) -> None:
    replica = register(database)
    with database.begin() as connection:
        for _ in range(300):
            plant(connection, replica)
    clock = ticking(seconds)
    with database.begin() as connection:
        assert deletion.purge_batch(connection, 0, clock).responses == 50 * slices


def ticking(seconds: float) -> Callable[[], float]:
    """A clock on which every slice takes that long."""
    turns = iter(range(1000))
    return lambda: next(turns) * seconds


def test_another_tenants_response_of_the_same_id_is_another_response(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        node = plant(connection, replica)
        insert_response(connection, replica, id=node, tenant="other", previous=node)
    drain(database)
    assert not is_readable(database, node)
    assert is_readable(database, node, "other")
    with database.begin() as connection:
        assert connection.exec_driver_sql("select tenant from responses").scalars().all() == ["other"]


def test_responses_older_than_an_age_are_made_to_expire(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        old, running, young = (
            plant(connection, replica, expired=False, ended=ended) for ended in (True, False, True)
        )
        connection.exec_driver_sql(
            "update responses set created_at = now() - interval '8 days', expires_at = null"
            " where id = any(%s)",
            ([old, running],),
        )
        assert deletion.count_due(connection, 0) == 0
        assert deletion.count_older(connection, TENANT, 0, timedelta(days=7)) == 1
        assert deletion.count_older(connection, TENANT, 0, timedelta(days=9)) == 0
        assert deletion.count_older(connection, "other", 0, timedelta(days=7)) == 0
        assert deletion.expire_older(connection, "other", timedelta(days=7)) == 0
        assert deletion.expire_older(connection, TENANT, timedelta(days=7)) == 1
        assert deletion.expire_older(connection, TENANT, timedelta(days=7)) == 0
        assert deletion.count_due(connection, 0) == 1
        assert deletion.count_older(connection, TENANT, 0, timedelta(days=7)) == 0
    drain(database)
    assert [is_readable(database, node) for node in (old, running, young)] == [False, True, True]


def test_everybody_who_has_responses_is_found_once(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        assert responses.tenants(connection) == []
        for tenant in ("b", "a", "c", "a", "b"):
            plant(connection, replica, tenant=tenant)
        assert responses.tenants(connection) == ["a", "b", "c"]
