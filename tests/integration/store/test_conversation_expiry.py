"""Conversations that nothing changes expire: after the server's days, or the tenant's own."""

from datetime import timedelta
from uuid import UUID

import psycopg

from server.maintenance.retention import Purged, expired_conversations, purge_conversations
from server.protocol.ids import new_uuid
from server.store.content import conversations, images, storage_usage
from server.store.content.images import NewImage
from server.store.content.item_rows import stored_item
from server.store.database import Database
from tests.support.builders import TENANT, insert_response, make_message, register

PICTURE = NewImage(bytes(32), "image/png", b"p")


def make(database: Database, tenant: str = TENANT, *, days: int, item_days: int | None = None) -> UUID:
    """A conversation with an item and a picture, changed so many days ago."""
    made = new_uuid()
    with database.begin() as connection:
        conversations.create(connection, tenant, made, "{}")
        locked = conversations.get(connection, tenant, made, lock=True)
        assert locked is not None
        item = stored_item(make_message(made, 0, "said"))
        conversations.append(connection, tenant, locked, [item])
        images.insert(connection, tenant, made, [(item.id, PICTURE)])
    age(database, made, days, days if item_days is None else item_days)
    return made


def age(database: Database, conversation: UUID, days: int, item_days: int) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(
            "update conversations set touched_at = now() - %s, created_at = now() - %s where id = %s",
            (timedelta(days=days), timedelta(days=days), conversation),
        )
        connection.exec_driver_sql(
            "update conversation_items set created_at = now() - %s where conversation_id = %s",
            (timedelta(days=item_days), conversation),
        )


def left(database: Database) -> set[UUID]:
    with database.begin() as connection:
        return set(connection.exec_driver_sql("select id from conversations").scalars())


def set_days(database_url: str, tenant: str, days: int) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("insert into tenants (tenant, conversation_days) values (%s, %s)", [tenant, days])


def test_conversations_go_with_their_items_pictures_and_bytes(database: Database) -> None:
    old, young = make(database, days=8), make(database, days=6)
    with database.begin() as connection:
        before = storage_usage.total(connection, TENANT)
    assert [key.id for key in expired_conversations(database, 7)] == [old]
    purged = purge_conversations(database, 7)
    assert purged == Purged(conversations=purged.conversations)
    assert purged.conversations == {TENANT: 1}
    assert left(database) == {young}
    with database.begin() as connection:
        assert 2 * storage_usage.total(connection, TENANT) == before + images_size(database)
        counted = connection.exec_driver_sql(
            "select (select count(*) from conversation_items),"
            " (select count(*) from item_images where removed_at is null)"
        ).one()
    assert tuple(counted) == (1, 1)


def images_size(database: Database) -> int:
    """The bytes that the shared picture counts for, which stay while a conversation names it."""
    with database.begin() as connection:
        return 1024 + int(connection.exec_driver_sql("select sum(size) from images").scalar_one())


def test_conversations_are_kept_for_ever_unless_a_setting_says_otherwise(
    database: Database, database_url: str
) -> None:
    kept = {make(database, days=40_000), make(database, "other", days=40_000)}
    assert purge_conversations(database, 0) == Purged()
    set_days(database_url, TENANT, 30)
    set_days(database_url, "other", 0)
    assert purge_conversations(database, 0).conversations == {TENANT: 1}
    assert purge_conversations(database, 30) == Purged(), "the other's are kept for ever"
    assert len(left(database) & kept) == 1


def test_what_changes_a_conversation_keeps_it(database: Database) -> None:
    appended, renamed, emptied = (make(database, days=9) for _ in range(3))
    with database.begin() as connection:
        locked = conversations.get(connection, TENANT, appended, lock=True)
        assert locked is not None
        conversations.append(connection, TENANT, locked, [stored_item(make_message(new_uuid(), 1, "more"))])
        conversations.update_metadata(connection, TENANT, renamed, '{"topic": "new"}')
        conversations.delete_items(connection, TENANT, emptied, [make_message(emptied, 0, "said").id])
    assert purge_conversations(database, 7) == Purged()
    assert left(database) == {appended, renamed, emptied}


def test_a_conversation_in_which_a_response_runs_stays(database: Database) -> None:
    replica, response = register(database), new_uuid()
    conversation = make(database, days=9)
    with database.begin() as connection:
        insert_response(connection, replica, id=response)
        connection.exec_driver_sql("update responses set conversation_id = %s", (conversation,))
    assert purge_conversations(database, 7) == Purged()
    with database.begin() as connection:
        connection.exec_driver_sql("update responses set status = 'completed'")
    assert purge_conversations(database, 7).conversations.total() == 1


def test_a_conversation_that_somebody_has_locked_stays(database: Database) -> None:
    conversation = make(database, days=9)
    with database.begin() as connection:
        conversations.get(connection, TENANT, conversation, lock=True)
        assert purge_conversations(database, 7) == Purged()
    assert purge_conversations(database, 7).conversations.total() == 1


def test_all_pages_are_looked_at(database: Database, monkeypatch: object) -> None:
    made = {make(database, f"tenant-{number}", days=9) for number in range(5)}
    after, found = conversations.FIRST, set[UUID]()
    with database.begin() as connection:
        page = conversations.expired_after(connection, 7, after)
        found |= {key.id for key in page.expired}
    assert found == made
    assert page.last is None
