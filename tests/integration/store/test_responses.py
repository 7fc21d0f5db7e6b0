from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from sqlalchemy.exc import IntegrityError

from server.protocol.ids import item_id, new_uuid
from server.protocol.responses.events import Event, Kind
from server.protocol.responses.items import InputText, Message, OutputText
from server.protocol.responses.response import ResponseFacts
from server.store.administration import ledger
from server.store.content import deletion, responses, storage_usage, stored_items
from server.store.content.item_rows import stored_item
from server.store.database import Connection, Database, clock
from server.store.database_errors import OwnershipLost
from tests.support.builders import (
    LATER,
    TENANT,
    finish,
    insert_response,
    make_echo,
    make_ending,
    make_message,
    make_row,
    register,
)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def insert_output(connection: Connection, response: UUID, *texts: str) -> None:
    made = [
        Message(item_id("msg", response, "o", index), "completed", "assistant", [OutputText(text)])
        for index, text in enumerate(texts)
    ]
    rows = [stored_item(item) for item in made]
    stored_items.insert_items_of(connection, stored_items.OUTPUT, [(TENANT, response, rows)])


def plant_chain(connection: Connection, replica: UUID, length: int) -> list[UUID]:
    chain: list[UUID] = []
    for turn in range(length):
        response = new_uuid()
        previous = chain[-1] if chain else None
        insert_response(
            connection, replica, id=response, previous=previous, inputs=[f"in {turn}.0", f"in {turn}.1"]
        )
        insert_output(connection, response, f"out {turn}.0", f"out {turn}.1")
        chain.append(response)
    return chain


def texts(payloads: list[str]) -> list[str]:
    read = [msgspec.json.decode(payload, type=Message) for payload in payloads]
    return [part.text for item in read for part in item.content if isinstance(part, InputText | OutputText)]


@pytest.mark.parametrize("deleted", [(), (0,), (48, 1, 25)])
def test_the_history_of_a_chain_of_50_is_in_order(database: Database, deleted: tuple[int, ...]) -> None:
    replica = register(database)
    with database.begin() as connection:
        chain = plant_chain(connection, replica, 50)
        for turn in deleted:
            assert deletion.delete(connection, TENANT, chain[turn]) is True
        found = texts(stored_items.chain_items(connection, TENANT, chain[-1]))
        part = texts(stored_items.chain_items(connection, TENANT, chain[2]))
    expected = [f"{side} {turn}.{n}" for turn in range(50) for side in ("in", "out") for n in (0, 1)]
    assert found == expected
    assert part == expected[:12]


def test_branches_of_one_response_do_not_see_each_other(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        (root,) = plant_chain(connection, replica, 1)
        left, right = new_uuid(), new_uuid()
        insert_response(connection, replica, id=left, previous=root, inputs=["left"])
        insert_response(connection, replica, id=right, previous=root, inputs=["right"])
        assert texts(stored_items.chain_items(connection, TENANT, left))[4:] == ["left"]
        assert texts(stored_items.chain_items(connection, TENANT, right))[4:] == ["right"]


def test_a_response_is_read_as_it_was_accepted_and_finished(database: Database) -> None:
    replica = register(database)
    response = new_uuid()
    echo = make_echo(instructions='"\u2028', metadata={"k": "v"})
    ending = make_ending(
        status="failed", error_code="server_error", error_message="Why.", incomplete_reason="x"
    )
    with database.begin() as connection:
        created = insert_response(connection, replica, id=response, echo=echo)
        running = responses.get(connection, TENANT, response)
        assert finish(connection, TENANT, response, replica, 1, ending) == (False, None)
        ended = responses.get(connection, TENANT, response)
    assert running is not None
    assert (running.status, running.attempt, running.created_at) == ("in_progress", 1, created)
    assert (running.finished_at, running.output_tokens) == (None, None)
    assert running.request == msgspec.json.encode(echo).decode()
    assert ended is not None
    for name in (
        "status",
        "finished_at",
        "input_tokens",
        "cached_tokens",
        "output_tokens",
        "reasoning_tokens",
        "error_code",
        "error_message",
        "incomplete_reason",
    ):
        assert getattr(ended, name) == getattr(ending, name)


def test_a_response_ends_once_and_only_by_its_replica(database: Database) -> None:
    mine, other = register(database), register(database)
    response = new_uuid()
    with database.begin() as connection:
        insert_response(connection, mine, id=response)
    for replica, attempt in ((other, 1), (mine, 2), (mine, 0)):
        with database.begin() as connection, pytest.raises(OwnershipLost):
            finish(connection, TENANT, response, replica, attempt, make_ending())
    with database.begin() as connection:
        finish(connection, TENANT, response, mine, 1, make_ending())
    with database.begin() as connection, pytest.raises(OwnershipLost):
        finish(connection, TENANT, response, mine, 1, make_ending(status="failed"))


def test_a_deleted_response_is_absent_and_says_so_at_its_end(database: Database) -> None:
    replica = register(database)
    response = new_uuid()
    with database.begin() as connection:
        insert_response(connection, replica, id=response)
        deletion.delete(connection, TENANT, response)
        assert responses.get(connection, TENANT, response) is None
        assert finish(connection, TENANT, response, replica, 1, make_ending()) == (True, None)


def test_a_tenant_sees_nothing_of_another(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        (response,) = plant_chain(connection, replica, 1)
        assert responses.get(connection, "other", response) is None
        assert stored_items.output_items(connection, "other", response) == []
        assert stored_items.chain_items(connection, "other", response) == []
        with pytest.raises(OwnershipLost):
            finish(connection, "other", response, replica, 1, make_ending())
        ledger.record_usage(
            connection,
            [
                (
                    ledger.LedgerEntry(
                        facts=ResponseFacts(
                            tenant=TENANT,
                            id=response,
                            created_at=LATER,
                            model="m",
                            background=False,
                            key_id=None,
                        ),
                        stored=True,
                    ),
                    make_ending(),
                )
            ],
        )
        assert ledger.is_metered(connection, TENANT, response)
        assert not ledger.is_metered(connection, "other", response)


def test_a_history_does_not_cross_into_another_tenant(database: Database) -> None:
    replica = register(database)
    stranger = new_uuid()
    with database.begin() as connection:
        (response,) = plant_chain(connection, replica, 1)
        insert_response(
            connection, replica, id=stranger, tenant="other", previous=response, inputs=["theirs"]
        )
        assert texts(stored_items.chain_items(connection, "other", stranger)) == ["theirs"]


def test_two_tenants_may_have_a_response_of_the_same_id(database: Database) -> None:
    replica = register(database)
    response = new_uuid()
    with database.begin() as connection:
        insert_response(connection, replica, id=response, inputs=["mine"])
        insert_response(connection, replica, id=response, tenant="other", inputs=["theirs"])
        assert deletion.delete(connection, "other", response) is True
        assert responses.get(connection, TENANT, response) is not None
        assert texts(stored_items.chain_items(connection, TENANT, response)) == ["mine"]


def test_items_come_back_byte_for_byte(database: Database) -> None:
    replica = register(database)
    response = new_uuid()
    awkward = 'a\0\u2028"\\u0000😀'
    with database.begin() as connection:
        insert_response(connection, replica, id=response)
        insert_output(connection, response, awkward, "second")
        found = stored_items.output_items(connection, TENANT, response)
    assert texts(found) == [awkward, "second"]
    assert [msgspec.json.encode(msgspec.json.decode(text)).decode() for text in found] == found


def test_an_item_cannot_be_written_twice(database: Database) -> None:
    replica = register(database)
    response = new_uuid()
    item = stored_item(make_message(response, 0, "a"))
    with database.begin() as connection:
        insert_response(connection, replica, id=response, inputs=["a"])
    with pytest.raises(IntegrityError), database.begin() as connection:
        stored_items.insert_items_of(connection, stored_items.INPUT, [(TENANT, response, [item])])


def test_the_responses_of_a_chain_are_numbered_and_know_the_first(database: Database) -> None:
    replica = register(database)
    first, child, grandchild, single = (new_uuid() for _ in range(4))
    with database.begin() as connection:
        insert_response(connection, replica, id=first)
        insert_response(connection, replica, id=child, previous=first)
        insert_response(connection, replica, id=grandchild, previous=child)
        insert_response(connection, replica, id=single)
        found = connection.exec_driver_sql("select id, root_id, turn from responses").all()
    assert set(map(tuple, found)) == {
        (first, None, 1),
        (child, first, 2),
        (grandchild, first, 3),
        (single, None, 1),
    }


@pytest.mark.parametrize("gone", ["deleted", "expired", "another tenant's", "never there"])
def test_nothing_of_a_response_is_written_whose_previous_one_nobody_can_read(
    database: Database, gone: str
) -> None:
    previous, response = new_uuid(), new_uuid()
    replica = register(database)
    with database.begin() as connection:
        lifetime = timedelta(days=-3) if gone == "expired" else None
        if gone != "never there":
            tenant = "other" if gone == "another tenant's" else TENANT
            insert_response(connection, replica, id=previous, tenant=tenant, lifetime=lifetime)
            ending = make_ending(finished_at=LONG_AGO)
            finish(connection, tenant, previous, replica, 1, ending)
        if gone == "deleted":
            deletion.delete(connection, TENANT, previous)
    events = [Event(0, Kind.WHOLE, 0, 0, "{}")]
    given = [stored_item(make_message(response, 0, "Hello"))]
    with database.begin() as connection:
        follower = make_row(response, clock(connection), previous_id=previous)
        assert not responses.insert(connection, follower, given, events, replica)
    with database.begin() as connection:
        for table, name in (
            ("responses", "id"),
            ("items", "response_id"),
            ("response_events_hot", "response_id"),
        ):
            query = f"select count(*) from {table} where {name} = %s"  # noqa: S608 - names of ours
            assert connection.exec_driver_sql(query, (response,)).scalar_one() == 0
        bytes_before = storage_usage.total(connection, TENANT)
        readable = new_uuid()
        insert_response(connection, replica, id=readable)
        assert responses.insert(connection, replace(follower, previous_id=readable), given, events, replica)
        assert storage_usage.total(connection, TENANT) > bytes_before
