import threading
from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from server.protocol.ids import new_uuid
from server.protocol.responses.events import Event, Kind
from server.protocol.responses.response import Ending
from server.store import log_append
from server.store.content import deletion, responses, stored_items
from server.store.database import Connection, Database
from tests.support.builders import LATER, TENANT, examples, finish, insert_response, register
from tests.support.eventually import eventually

ENDING = Ending(
    status="completed",
    first_token_at=None,
    finished_at=LATER,
    input_tokens=1,
    cached_tokens=0,
    output_tokens=1,
    reasoning_tokens=0,
)


@dataclass
class Forest:
    """What must be stored: which responses there are, whose child each is, and how each stands."""

    parents: list[int | None]
    ids: list[UUID] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)

    def rows(self) -> set[UUID]:
        """A row is there while it is live or running, or while a row is there that goes on from it."""
        kept: set[int] = set()
        for node in reversed(range(len(self.parents))):
            has_next = any(self.parents[other] == node for other in kept)
            if node not in self.deleted or node in self.running or has_next:
                kept.add(node)
        return {self.ids[node] for node in kept}

    def streams(self) -> set[UUID]:
        """Events are there while they can be asked for, or are still being written."""
        return {
            self.ids[node]
            for node in range(len(self.parents))
            if node not in self.deleted or node in self.running
        }

    def readable(self) -> set[UUID]:
        return {id_ for node, id_ in enumerate(self.ids) if node not in self.deleted}


def plant(connection: Connection, replica: UUID, forest: Forest) -> None:
    for parent in forest.parents:
        previous = forest.ids[parent] if parent is not None else None
        node = new_uuid()
        insert_response(connection, replica, id=node, previous=previous, inputs=["said"])
        delta = Event(0, Kind.OUTPUT_TEXT_DELTA, 0, 0, "a")
        log_append.append(connection, log_append.encode_rows(TENANT, node, 1, [delta], []))
        forest.ids.append(node)
        if len(forest.ids) - 1 not in forest.running:
            log_append.fold(connection, [(TENANT, node)])
            finish(connection, TENANT, node, replica, 1, ENDING)


def end(connection: Connection, replica: UUID, node: UUID) -> None:
    """What the recorder does at a response's end."""
    log_append.fold(connection, [(TENANT, node)])
    if finish(connection, TENANT, node, replica, 1, ENDING):
        deletion.remove_if_unneeded(connection, TENANT, node)


def found(connection: Connection, table: str, column: str, forest: Forest) -> set[UUID]:
    query = f"select distinct {column} from {table} where {column} = any(%s)"  # noqa: S608
    return {row[0] for row in connection.exec_driver_sql(query, (forest.ids,))}


def check(connection: Connection, forest: Forest) -> None:
    assert found(connection, "responses", "id", forest) == forest.rows()
    assert found(connection, "items", "response_id", forest) == forest.rows()
    streams = found(connection, "response_streams", "response_id", forest)
    assert streams | found(connection, "response_events_hot", "response_id", forest) == forest.streams()
    assert {
        id_ for id_ in forest.ids if responses.get(connection, TENANT, id_) is not None
    } == forest.readable()


trees = st.integers(1, 8).flatmap(
    lambda size: st.tuples(
        st.tuples(*(st.none() | st.integers(0, node - 1) if node else st.none() for node in range(size))).map(
            list
        ),
        st.sets(st.integers(0, size - 1)),
        st.lists(st.tuples(st.booleans(), st.integers(0, size - 1)), max_size=2 * size),
    )
)


@given(trees)
@examples(30)
def test_exactly_what_nothing_needs_is_removed(
    database: Database, tree: tuple[list[int | None], set[int], list[tuple[bool, int]]]
) -> None:
    parents, running, steps = tree
    replica = register(database)
    forest = Forest(parents, running=set(running))
    with database.begin() as connection:
        plant(connection, replica, forest)
        check(connection, forest)
        for is_deletion, node in steps:
            if is_deletion:
                answer = deletion.delete(connection, TENANT, forest.ids[node])
                assert answer == (None if node in forest.deleted else node in forest.running)
                forest.deleted.add(node)
            elif node in forest.running:
                end(connection, replica, forest.ids[node])
                forest.running.discard(node)
            check(connection, forest)
        for node in range(len(parents)):
            deletion.delete(connection, TENANT, forest.ids[node])
            forest.deleted.add(node)
            if node in forest.running:
                end(connection, replica, forest.ids[node])
                forest.running.discard(node)
        assert forest.rows() == set()
        check(connection, forest)


def test_the_history_of_a_live_response_runs_through_deleted_ones(database: Database) -> None:
    replica = register(database)
    forest = Forest([None, 0, 1])
    with database.begin() as connection:
        plant(connection, replica, forest)
        before = stored_items.chain_items(connection, TENANT, forest.ids[2])
        deletion.delete(connection, TENANT, forest.ids[0])
        deletion.delete(connection, TENANT, forest.ids[1])
        assert stored_items.chain_items(connection, TENANT, forest.ids[2]) == before
        assert len(before) == 3


def test_a_tenant_cannot_delete_anothers_response(database: Database) -> None:
    replica = register(database)
    forest = Forest([None])
    with database.begin() as connection:
        plant(connection, replica, forest)
        assert deletion.delete(connection, "other", forest.ids[0]) is None
        deletion.remove_if_unneeded(connection, "other", forest.ids[0])
        check(connection, forest)


def test_two_last_descendants_that_are_deleted_at_once_leave_no_ancestor(database: Database) -> None:
    replica = register(database)
    forest = Forest([None, 0, 0])
    with database.begin() as connection:
        plant(connection, replica, forest)
        deletion.delete(connection, TENANT, forest.ids[0])

    def delete_second() -> None:
        with database.begin() as connection:
            deletion.delete(connection, TENANT, forest.ids[2])
            deleted.set()

    deleted = threading.Event()
    second = threading.Thread(target=delete_second)
    with database.begin() as connection:
        deletion.delete(connection, TENANT, forest.ids[1])
        second.start()
        eventually(lambda: deleted.is_set() or is_waiting(database))
    second.join(30)
    assert deleted.is_set()
    with database.begin() as connection:
        forest.deleted = {0, 1, 2}
        check(connection, forest)


def test_a_response_and_its_last_descendant_that_are_deleted_at_once_are_both_removed(
    database: Database,
) -> None:
    replica = register(database)
    forest = Forest([None, 0])
    with database.begin() as connection:
        plant(connection, replica, forest)

    def delete_first() -> None:
        with database.begin() as connection:
            deletion.delete(connection, TENANT, forest.ids[0])
        deleted.set()

    deleted = threading.Event()
    other = threading.Thread(target=delete_first)
    with database.begin() as connection:
        deletion.delete(connection, TENANT, forest.ids[1])
        other.start()
        eventually(lambda: deleted.is_set() or is_waiting(database))
    other.join(30)
    assert deleted.is_set()
    with database.begin() as connection:
        forest.deleted = {0, 1}
        check(connection, forest)


def is_waiting(database: Database) -> bool:
    """Whether a transaction waits for a lock of another."""
    with database.begin() as connection:
        waiting = connection.exec_driver_sql(
            "select count(*) from pg_locks where not granted and pid in"
            " (select pid from pg_stat_activity where datname = current_database())"
        )
        return bool(waiting.scalar_one())
