"""Pictures in the store: kept once for each tenant, counted once, loaded by their hash."""

from uuid import UUID

import pytest
from sqlalchemy import event

from server.maintenance.retention import remove_images
from server.protocol.ids import new_uuid
from server.protocol.responses.items import ContentPart, InputImage, Message
from server.store.content import (
    deletion,
    images,
    stored_items,
)
from server.store.content.images import ImageRemoved, NewImage, StoredImage
from server.store.content.item_rows import stored_item, stored_items_of
from server.store.database import Database
from tests.support.builders import CREATED, TENANT, finish, insert_response, make_ending, register
from tests.support.stored_images import (
    PNG,
    add,
    content,
    count,
    delete,
    digest_of,
    store,
    stored_bytes,
    url_of,
)

OTHER = "other"


@pytest.fixture
def replica(database: Database) -> UUID:
    return register(database)


def test_a_picture_of_two_items_is_stored_once_and_given_whole(database: Database, replica: UUID) -> None:
    other = PNG + b"other"
    with database.begin() as connection:
        store(connection, replica, PNG, PNG, other)
        store(connection, replica, other)
    assert (count(database), count(database, "item_images")) == (2, 3)
    wanted = [digest_of(PNG), digest_of(other), digest_of(b"none")]
    with database.begin() as connection:
        assert images.sizes(connection, TENANT, wanted) == {wanted[0]: len(PNG), wanted[1]: len(other)}
        assert images.load(connection, TENANT, wanted) == {
            wanted[0]: StoredImage("image/png", PNG),
            wanted[1]: StoredImage("image/png", other),
        }
        assert images.load(connection, OTHER, wanted) == {}
        assert images.sizes(connection, OTHER, wanted) == {}
        assert images.load(connection, TENANT, []) == {}


def test_pictures_larger_than_a_statement_are_sent_in_several(database: Database, replica: UUID) -> None:
    large = PNG + bytes(images.MAX_STATEMENT_BYTES // 3 - len(PNG) - 1)
    pictures = [large + bytes([number]) for number in range(7)]
    with database.begin() as connection:
        store(connection, replica, *pictures)
        found = images.load(connection, TENANT, [digest_of(data) for data in pictures])
    assert sorted(image.data for image in found.values()) == pictures


def test_a_picture_counts_once_among_a_tenants_bytes(database: Database, replica: UUID) -> None:
    with database.begin() as connection:
        first = store(connection, replica, PNG)
    before = stored_bytes(database)
    assert before > len(PNG)
    with database.begin() as connection:
        second = store(connection, replica, PNG)
        store(connection, replica, PNG, tenant=OTHER)
    assert stored_bytes(database) - before < len(PNG)
    assert stored_bytes(database, OTHER) > len(PNG)
    delete(database, first)
    remove_images(database)
    assert len(PNG) < stored_bytes(database)
    delete(database, second)
    assert remove_images(database) == 1
    assert stored_bytes(database) == 0
    assert count(database, tenant=OTHER) == 1


def test_a_history_is_measured_without_the_bytes_of_its_pictures(database: Database, replica: UUID) -> None:
    with database.begin() as connection:
        first = store(connection, replica, PNG, PNG)
        second = store(connection, replica, PNG, PNG + bytes(100_000), previous=first)
        chain = stored_items.measure_chain(connection, TENANT, second, 100)
        assert chain.items == 2
        assert chain.bytes < 1000


def test_items_that_are_read_again_name_the_same_picture_without_its_bytes(
    database: Database, replica: UUID
) -> None:
    with database.begin() as connection:
        first = store(connection, replica, PNG)
        (payload,) = stored_items.input_items(connection, TENANT, first)
        read = stored_item(Message("msg_again", "completed", "user", [InputImage(content=content(PNG))]))
        assert content(PNG) in payload
        assert [image.data for image in read.images] == [None]
        node = new_uuid()
        insert_response(connection, replica, id=node)
        add(connection, node, [read])
        finish(connection, TENANT, node, replica, 1, make_ending(finished_at=CREATED))
    delete(database, first)
    assert remove_images(database) == 0
    delete(database, node)
    assert remove_images(database) == 1
    with pytest.raises(ImageRemoved), database.begin() as connection:
        images.insert(connection, TENANT, node, [("msg_late", NewImage(digest_of(PNG), "", None))])
    assert count(database, "item_images") == 0


def test_pictures_are_stored_as_they_are_not_compressed_again(database: Database) -> None:
    with database.begin() as connection:
        storage = connection.exec_driver_sql(
            "select attstorage from pg_attribute where attrelid = 'images'::regclass and attname = 'data'"
        ).scalar_one()
    assert storage in ("e", b"e")


def test_a_picture_that_many_items_have_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[ContentPart] = [InputImage(url_of(PNG))]
    made = stored_items_of([Message(f"msg_{index}", "completed", "user", parts) for index in range(5)])
    assert len({id(item.images[0]) for item in made}) == 1


def test_the_view_of_pictures_says_how_many_items_name_them(database: Database, replica: UUID) -> None:
    with database.begin() as connection:
        store(connection, replica, PNG)
        gone = store(connection, replica, PNG)
    view = "select content, media_type, size, items, owners from v_images"
    with database.begin() as connection:
        assert tuple(connection.exec_driver_sql(view).one()) == (content(PNG), "image/png", len(PNG), 2, 2)
        deletion.delete(connection, TENANT, gone)
        assert connection.exec_driver_sql(view).one().items == 1


def test_items_without_pictures_cost_no_statement(database: Database) -> None:
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        sent.append(statement)

    with database.begin() as connection:
        event.listen(connection, "before_cursor_execute", note)
        images.insert(connection, TENANT, new_uuid(), [])
        images.insert_all(connection, [])
        assert images.load(connection, TENANT, []) == {}
        assert images.sizes(connection, TENANT, []) == {}
    assert sent == []
