"""What tenants have stored, counted with every change, against the sizes of all that is there."""

from datetime import timedelta
from uuid import UUID

import pytest

from server.protocol.ids import new_uuid
from server.protocol.responses.events import Event, Kind
from server.store import log_append
from server.store.content import (
    conversations,
    deletion,
    responses,
    storage_usage,
    stored_items,
)
from server.store.content.item_rows import stored_item
from server.store.content.storage_usage import FOLD_ROWS
from server.store.database import Connection, Database
from tests.support.builders import (
    CREATED,
    TENANT,
    finish,
    insert_response,
    make_ending,
    make_message,
    register,
)

OTHER = "other"
SIZES = """
    select coalesce(sum(bytes), 0)::bigint from (
        select size as bytes from responses where tenant = %(tenant)s
        union all select size from response_streams where tenant = %(tenant)s
        union all select size from conversations where tenant = %(tenant)s
        union all select size + coalesce(octet_length(for_model), 0) from items where tenant = %(tenant)s
        union all select size + coalesce(octet_length(for_model), 0)
            from conversation_items where tenant = %(tenant)s) as stored
"""
ROWS = "select count(*) from storage_changes where tenant = %(tenant)s"


def scalar(connection: Connection, statement: str, tenant: str = TENANT) -> int:
    found: int = connection.exec_driver_sql(statement, {"tenant": tenant}).scalar_one()
    return found


def counted(database: Database, tenant: str = TENANT) -> int:
    """The sum of the changes, which must be what is there."""
    with database.begin() as connection:
        found = storage_usage.total(connection, tenant)
        assert found == scalar(connection, SIZES, tenant)
    return found


def begin(
    connection: Connection,
    replica: UUID,
    *texts: str,
    tenant: str = TENANT,
    previous: UUID | None = None,
    lifetime: timedelta | None = None,
) -> UUID:
    node = new_uuid()
    insert_response(
        connection, replica, id=node, tenant=tenant, previous=previous, inputs=texts, lifetime=lifetime
    )
    told = [Event(0, Kind.OUTPUT_TEXT_DELTA, 0, 0, "something said")]
    log_append.append(connection, log_append.encode_rows(tenant, node, 1, told, []))
    return node


def end(connection: Connection, replica: UUID, node: UUID, *texts: str, tenant: str = TENANT) -> None:
    """As the recorder writes an end."""
    finished = finish(connection, tenant, node, replica, 1, make_ending(finished_at=CREATED))
    output = [stored_item(make_message(new_uuid(), 0, text)) for text in texts]
    stored_items.insert_items_of(connection, stored_items.OUTPUT, [(tenant, node, output)])
    log_append.fold(connection, [(tenant, node)])
    if finished.deleted:
        deletion.remove_if_unneeded(connection, tenant, node)


@pytest.fixture
def replica(database: Database) -> UUID:
    return register(database)


def test_a_response_is_counted_when_it_is_accepted_when_it_ends_and_when_it_is_deleted(
    database: Database, replica: UUID
) -> None:
    with database.begin() as connection:
        node = begin(connection, replica, "x" * 5000)
    accepted = counted(database)
    assert 5000 < accepted < 10_000
    with database.begin() as connection:
        end(connection, replica, node, "y" * 7000)
    assert 5000 < counted(database) - accepted < 10_000  # the request to begin again from is gone
    with database.begin() as connection:
        assert deletion.delete(connection, TENANT, node) is False
    assert counted(database) == 0


def test_what_is_undone_is_not_counted(database: Database, replica: UUID) -> None:
    with database.begin() as connection:
        begin(connection, replica, "in")
        connection.get_transaction().rollback()  # type: ignore[union-attr]
    assert counted(database) == 0


def test_a_response_that_is_deleted_while_it_runs_counts_until_it_ends(
    database: Database, replica: UUID
) -> None:
    with database.begin() as connection:
        node = begin(connection, replica, "in")
        assert deletion.delete(connection, TENANT, node) is True
    assert counted(database) > 0
    with database.begin() as connection:
        end(connection, replica, node, "out")
    assert counted(database) == 0


def test_a_tombstone_counts_without_its_stream_until_its_descendants_are_gone(
    database: Database, replica: UUID
) -> None:
    with database.begin() as connection:
        parent = begin(connection, replica, "in")
        end(connection, replica, parent, "out")
        child = begin(connection, replica, "in", previous=parent)
        end(connection, replica, child, "out")
    both = counted(database)
    with database.begin() as connection:
        deletion.delete(connection, TENANT, parent)
    assert 0 < both - counted(database) < 200
    with database.begin() as connection:
        deletion.delete(connection, TENANT, child)
    assert counted(database) == 0


def test_a_purge_counts_what_it_removes_by_tenant(database: Database, replica: UUID) -> None:
    expired = timedelta(days=-1)
    with database.begin() as connection:
        for tenant in (TENANT, OTHER):
            parent = begin(connection, replica, "in", tenant=tenant, lifetime=expired)
            end(connection, replica, parent, "out", tenant=tenant)
            child = begin(connection, replica, "in", tenant=tenant, previous=parent, lifetime=expired)
            end(connection, replica, child, "out", tenant=tenant)
        stays = begin(connection, replica, "stays", tenant=OTHER)
        end(connection, replica, stays, tenant=OTHER)
    while True:
        with database.begin() as connection:
            if not deletion.purge_batch(connection, 0).moved:
                break
    assert counted(database) == 0
    left = counted(database, OTHER)
    assert left > 0
    with database.begin() as connection:
        assert storage_usage.totals(connection) == [(OTHER, left)]


def test_conversations_are_counted_with_their_items_and_metadata(database: Database, replica: UUID) -> None:
    conversation = new_uuid()
    made = [stored_item(make_message(new_uuid(), index, "x" * 3000)) for index in range(2)]
    with database.begin() as connection:
        conversations.create(connection, TENANT, conversation, "{}")
        conversations.create(connection, TENANT, conversation, "{}")
        empty = storage_usage.total(connection, TENANT)
        held = conversations.get(connection, TENANT, conversation, lock=True)
        assert held
        conversations.append(connection, TENANT, held, made)
    assert 6000 < counted(database) - empty < 8000
    with database.begin() as connection:
        conversations.update_metadata(connection, TENANT, conversation, '{"k": "' + "v" * 500 + '"}')
    full = counted(database)
    with database.begin() as connection:
        assert conversations.delete_items(connection, TENANT, conversation, [made[0].id])
        assert not conversations.delete_items(connection, TENANT, conversation, [made[0].id])
    assert 3000 < full - counted(database) < 4000
    with database.begin() as connection:
        node = begin(connection, replica, "z" * 1000)
        end(connection, replica, node, "z" * 1000)
        conversations.append_response(connection, TENANT, conversation, node)
        deletion.delete(connection, TENANT, node)
    assert counted(database) > full - 4000 + 2000
    with database.begin() as connection:
        conversations.delete(connection, TENANT, conversation)
    assert counted(database) == 0


def test_other_metadata_of_a_stored_chat_completion_is_counted(database: Database, replica: UUID) -> None:
    with database.begin() as connection:
        node = begin(connection, replica, "in")
        end(connection, replica, node, "out")
    before = counted(database)
    with database.begin() as connection:
        stored = responses.get(connection, TENANT, node)
        assert stored
        longer = stored.request.replace('"metadata":{}', '"metadata":{"k":"vvvvvvvv"}')
        assert longer != stored.request
        responses.update_choice_metadata(connection, stored, longer, '{"k":"vvvvvvvv"}')
    assert counted(database) == before + 2 * len('"k":"vvvvvvvv"')


def test_folding_keeps_sums_and_waits_for_nobody(database: Database, replica: UUID) -> None:
    with database.begin() as connection:
        for _ in range(FOLD_ROWS + 1):
            begin(connection, replica, "in")
        begin(connection, replica, "in", tenant=OTHER)
    before, others = counted(database), counted(database, OTHER)
    with database.begin() as first:
        assert not storage_usage.fold_changes(first)
        with database.begin() as second:
            assert not storage_usage.fold_changes(second)
            assert storage_usage.total(second, TENANT) == before
        with database.begin() as writer:
            node = begin(writer, replica, "more")
    with database.begin() as connection:
        assert scalar(connection, ROWS) < 5
        assert scalar(connection, ROWS, OTHER) == 1
        deletion.delete(connection, TENANT, node)
        end(connection, replica, node)
    assert (counted(database), counted(database, OTHER)) == (before, others)


def test_the_sums_of_days_stay_when_changes_are_folded(database: Database, replica: UUID) -> None:
    days = "select sum(added), sum(removed), sum(growth) from admin.storage_daily where tenant = %(tenant)s"
    with database.begin() as connection:
        for _ in range(storage_usage.FOLD_ROWS):
            begin(connection, replica, "in")
        node = begin(connection, replica, "in")
        end(connection, replica, node, "out")
        deletion.delete(connection, TENANT, node)
    total = counted(database)
    with database.begin() as connection:
        before = connection.exec_driver_sql(days, {"tenant": TENANT}).one()
        assert storage_usage.fold_changes(connection) is False
        assert scalar(connection, ROWS) == 1
        assert connection.exec_driver_sql(days, {"tenant": TENANT}).one() == before
    assert before[1] > 0
    assert before[0] - before[1] == before[2] == total
