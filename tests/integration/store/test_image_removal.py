"""Pictures are gone with the last item that names them, whoever stores and deletes at the same time."""

import threading
from datetime import timedelta
from uuid import UUID

import pytest

from server.maintenance.retention import remove_images
from server.protocol.ids import new_uuid
from server.store.content import (
    conversations,
    deletion,
    images,
)
from server.store.content.images import ImageUse, RemovedImages
from server.store.database import Database
from server.store.database_errors import DatabaseError
from tests.support.builders import TENANT, register
from tests.support.eventually import eventually
from tests.support.stored_images import (
    PNG,
    count,
    delete,
    digest_of,
    picture_item,
    store,
    stored_bytes,
)

OTHER = "other"


@pytest.fixture
def replica(database: Database) -> UUID:
    return register(database)


def waiting(database: Database) -> bool:
    with database.begin() as connection:
        return bool(connection.exec_driver_sql("select count(*) from pg_locks where not granted").scalar())


def test_a_picture_goes_with_the_last_item_of_a_chain_of_tombstones(
    database: Database, replica: UUID
) -> None:
    with database.begin() as connection:
        first = store(connection, replica, PNG)
        second = store(connection, replica, PNG + b"2", previous=first)
    delete(database, first)
    assert remove_images(database) == 0, "it is history"
    delete(database, second)
    assert remove_images(database) == 2
    assert count(database, "item_images") == 0


def test_a_purge_removes_the_pictures_of_what_it_removes(database: Database, replica: UUID) -> None:
    expired = timedelta(days=-1)
    with database.begin() as connection:
        parent = store(connection, replica, PNG, lifetime=expired)
        store(connection, replica, PNG + b"2", lifetime=expired, previous=parent)
        store(connection, replica, PNG, tenant=OTHER, lifetime=expired)
        store(connection, replica, PNG + b"3")
    moved = True
    while moved:
        with database.begin() as connection:
            moved = deletion.purge_batch(connection, 0).moved
    assert remove_images(database) == 3
    assert (count(database), count(database, tenant=OTHER)) == (1, 0)


def test_the_pictures_of_a_conversation_go_with_its_items(database: Database, replica: UUID) -> None:
    conversation, source = new_uuid(), new_uuid()
    made = [picture_item(source, index, PNG + bytes([index])) for index in range(3)]
    with database.begin() as connection:
        conversations.create(connection, TENANT, conversation, "{}")
        held = conversations.get(connection, TENANT, conversation, lock=True)
        assert held
        conversations.append(connection, TENANT, held, made)
        node = store(connection, replica, PNG + b"answer")
        conversations.append_response(connection, TENANT, conversation, node)
    delete(database, node)
    assert remove_images(database) == 0, "the conversation keeps it"
    with database.begin() as connection:
        assert conversations.delete_items(connection, TENANT, conversation, [made[1].id])
    assert remove_images(database) == 1
    assert count(database) == 3
    with database.begin() as connection:
        conversations.delete(connection, TENANT, conversation)
    assert remove_images(database) == 3
    assert (count(database), count(database, "item_images"), stored_bytes(database)) == (0, 0, 0)


def test_what_is_undone_stores_and_removes_no_picture(database: Database, replica: UUID) -> None:
    with database.begin() as connection:
        store(connection, replica, PNG + b"never")
        connection.get_transaction().rollback()  # type: ignore[union-attr]
    with database.begin() as connection:
        node = store(connection, replica, PNG)
    with database.begin() as connection:
        deletion.delete(connection, TENANT, node)
        connection.get_transaction().rollback()  # type: ignore[union-attr]
    assert remove_images(database) == 0
    assert count(database) == 1


def test_a_picture_whose_last_two_uses_go_at_the_same_time_is_removed(
    database: Database, replica: UUID
) -> None:
    with database.begin() as connection:
        first, second = (store(connection, replica, PNG) for _ in range(2))
    with database.begin() as one, database.begin() as two:
        deletion.delete(one, TENANT, first)
        deletion.delete(two, TENANT, second)
        assert remove_images(database) == 0
    assert remove_images(database) == 1
    assert count(database, "item_images") == 0


def test_two_removals_at_the_same_time_leave_no_picture_without_a_use(
    database: Database, replica: UUID
) -> None:
    with database.begin() as connection:
        nodes = [store(connection, replica, PNG) for _ in range(4)]
    for node in nodes[:2]:
        delete(database, node)
    with database.begin() as one:
        assert images.remove_unused(one) == RemovedImages(0, False), "two items name it"
        for node in nodes[2:]:
            delete(database, node)
        with database.begin() as two:
            assert images.remove_unused(two).images == 0
    assert remove_images(database) == 1


def test_a_removal_neither_waits_for_an_insert_of_a_use_nor_removes_its_picture(
    database: Database, replica: UUID
) -> None:
    with database.begin() as connection:
        node = store(connection, replica, PNG)
    delete(database, node)
    with database.begin() as connection:
        store(connection, replica, PNG)
        assert remove_images(database) == 0
    assert remove_images(database) == 0
    assert count(database) == 1


def test_a_use_of_a_picture_that_is_being_removed_stores_it_again(database: Database, replica: UUID) -> None:
    with database.begin() as connection:
        node = store(connection, replica, PNG)
    delete(database, node)
    done: list[UUID] = []

    def insert() -> None:
        with database.begin() as connection:
            done.append(store(connection, replica, PNG))

    with database.begin() as connection:
        assert images.remove_unused(connection).images == 1
        inserting = threading.Thread(target=insert)
        inserting.start()
        eventually(lambda: waiting(database))
        assert not done
    inserting.join(10)
    assert len(done) == 1
    assert remove_images(database) == 0
    with database.begin() as connection:
        assert images.load(connection, TENANT, [digest_of(PNG)])[digest_of(PNG)].data == PNG


def test_two_that_store_the_same_picture_first_store_it_once_and_hold_it_both(
    database: Database, replica: UUID
) -> None:
    with database.begin() as connection:
        gone = store(connection, replica, PNG + b"gone")
    second_holds, may_commit = threading.Event(), threading.Event()

    def insert() -> None:
        with database.begin() as connection:
            images.insert(connection, TENANT, gone, [("msg_second", picture_item(gone, 0, PNG).images[0])])
            second_holds.set()
            may_commit.wait(10)

    with database.begin() as connection:
        first = store(connection, replica, PNG)
        inserting = threading.Thread(target=insert)
        inserting.start()
        eventually(lambda: waiting(database))
    assert second_holds.wait(10)
    delete(database, first)
    assert remove_images(database) == 0, "the second one's use is not committed, but holds the picture"
    may_commit.set()
    inserting.join(10)
    assert remove_images(database) == 0
    assert count(database) == 2


def test_many_that_store_and_delete_the_same_pictures_never_deadlock(
    database: Database, replica: UUID
) -> None:
    pictures = [PNG + bytes([number]) for number in range(6)]
    failures: list[BaseException] = []
    stop = threading.Event()

    def churn(seed: int) -> None:
        try:
            for turn in range(25):
                chosen = [pictures[(seed * turn + 5 * step) % 6] for step in range(4)]
                with database.begin() as connection:
                    node = store(connection, replica, *chosen)
                if (seed + turn) % 5:
                    delete(database, node)
        except DatabaseError as error:
            failures.append(error)

    def clean() -> None:
        try:
            while not stop.is_set():
                remove_images(database)
        except DatabaseError as error:
            failures.append(error)

    workers = [threading.Thread(target=churn, args=(seed,)) for seed in range(1, 5)]
    cleaners = [threading.Thread(target=clean) for _ in range(2)]
    for thread in (*workers, *cleaners):
        thread.start()
    for thread in workers:
        thread.join(120)
    stop.set()
    for thread in cleaners:
        thread.join(30)
    assert failures == []
    remove_images(database)
    with database.begin() as connection:
        used = connection.exec_driver_sql("select distinct digest from item_images order by 1").all()
        assert used == connection.exec_driver_sql("select digest from images order by 1").all()
        missing = connection.exec_driver_sql(
            "select count(*) from items i where not exists (select from item_images u where u.item_id = i.id)"
        ).scalar()
        assert missing == 0


def test_a_batch_removes_no_more_uses_and_bytes_than_it_may(database: Database, replica: UUID) -> None:
    with database.begin() as connection:
        node = store(connection, replica, *(PNG + bytes([number]) for number in range(5)))
    delete(database, node)
    batches = []
    while True:
        with database.begin() as connection:
            batch = images.remove_unused(connection, max_bytes=2 * len(PNG) + 2)
        if not batch.more:
            break
        batches.append(batch.images)
    assert batches == [2, 2, 1]
    with database.begin() as connection:
        nodes = [store(connection, replica, PNG) for _ in range(7)]
    for node in nodes:
        delete(database, node)
    left = []
    for _ in range(3):
        with database.begin() as connection:
            images.remove_unused(connection, max_uses=3)
        left.append((count(database), count(database, "item_images")))
    assert left == [(1, 4), (1, 1), (0, 0)]


def test_a_conversation_does_not_keep_the_picture_of_another_item_with_the_same_id(
    database: Database, replica: UUID
) -> None:
    conversation = new_uuid()
    of_conversation = picture_item(conversation, 0, PNG)
    of_response = picture_item(conversation, 0, PNG + b"2").images
    with database.begin() as connection:
        conversations.create(connection, TENANT, conversation, "{}")
        held = conversations.get(connection, TENANT, conversation, lock=True)
        assert held
        conversations.append(connection, TENANT, held, [of_conversation])
        node = store(connection, replica)
        images.insert(connection, TENANT, node, [(of_conversation.id, image) for image in of_response])
    delete(database, node)
    assert remove_images(database) == 1
    assert (count(database), count(database, "item_images")) == (1, 1)


def test_pictures_of_several_owners_are_locked_in_one_order(database: Database, replica: UUID) -> None:
    """A transaction that waits for a picture holds none that comes after it."""
    low, high = sorted((PNG, PNG + b"2"), key=digest_of)
    with database.begin() as connection:
        first, second = (store(connection, replica) for _ in range(2))
    uses = [
        ImageUse(TENANT, owner, "msg_x", picture_item(owner, 0, data).images[0])
        for owner, data in ((first, high), (second, low))
    ]

    def insert() -> None:
        with database.begin() as connection:
            images.insert_all(connection, uses)

    with database.begin() as connection:
        store(connection, replica, low)
        inserting = threading.Thread(target=insert)
        inserting.start()
        eventually(lambda: waiting(database))
        store(connection, replica, high)
    inserting.join(10)
    assert (count(database), count(database, "item_images")) == (2, 4)
