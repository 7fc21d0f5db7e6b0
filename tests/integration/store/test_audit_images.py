"""What an audit finds of pictures that were damaged by SQL."""

from uuid import UUID

import psycopg
import pytest

from server.maintenance.retention import remove_images
from server.protocol.ids import new_uuid
from server.store import audit_snapshot
from server.store.audit_snapshot import Scope
from server.store.content import conversations
from server.store.database import Database
from tests.support.builders import TENANT, register
from tests.support.invariants import find
from tests.support.stored_images import PNG, content, delete, picture_item, store

SPOIL = "update images set data = '\\x00'"
FORGET = "delete from item_images"
FEIGN = "insert into item_images select tenant, owner, 'msg_none', digest from item_images limit 1"
LOSE = "delete from item_images; delete from images"
DAMAGE = [
    (SPOIL, f"the picture {content(PNG)} has other bytes than its digest and size say."),
    (FORGET, f"the picture {content(PNG)} is kept, but no item names it."),
    (FEIGN, f"{content(PNG)} is kept for its item msg_none, which does not name it."),
]


def damage(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def findings(url: str, scope: Scope | None = None) -> list[tuple[UUID | None, str]]:
    return [(one.response_id, one.sentence) for one in find(url, scope=scope) if one.invariant == "I17"]


@pytest.fixture
def replica(database: Database) -> UUID:
    return register(database)


@pytest.fixture
def conversation(database: Database) -> UUID:
    """One with an item that has a picture."""
    made = new_uuid()
    with database.begin() as connection:
        conversations.create(connection, TENANT, made, "{}")
        held = conversations.get(connection, TENANT, made, lock=True)
        assert held
        conversations.append(connection, TENANT, held, [picture_item(made, 0, PNG)])
    return made


def test_nothing_is_wrong_with_pictures_in_use_and_with_those_that_await_their_removal(
    database: Database, database_url: str, replica: UUID, conversation: UUID
) -> None:
    with database.begin() as connection:
        store(connection, replica, PNG)
        gone = store(connection, replica, PNG + b"gone")
    assert findings(database_url) == []
    delete(database, gone)
    assert findings(database_url) == []
    assert remove_images(database) == 1
    assert findings(database_url) == []


@pytest.mark.parametrize(("statement", "sentence"), DAMAGE)
def test_a_damaged_picture_is_found(
    database: Database, database_url: str, replica: UUID, statement: str, sentence: str
) -> None:
    with database.begin() as connection:
        store(connection, replica, PNG)
    damage(database_url, statement)
    assert sentence in [said for _, said in findings(database_url)]


def test_an_item_whose_picture_is_gone_is_found(
    database: Database, database_url: str, replica: UUID, conversation: UUID
) -> None:
    with database.begin() as connection:
        node = store(connection, replica, PNG)
    damage(database_url, LOSE)
    of_response, of_conversation = findings(database_url)
    assert of_response[0] == node
    assert of_response[1] == (f"its item msg_{node.hex}i0 names {content(PNG)}, which is not kept for it.")
    assert of_conversation[0] is None
    assert of_conversation[1].startswith(f"of conv_{conversation.hex}: its item msg_")


def test_pictures_of_what_does_not_exist_are_found(
    database: Database, database_url: str, conversation: UUID
) -> None:
    damage(database_url, "delete from conversation_items; delete from conversations")
    orphans = [one for one in find(database_url) if one.invariant == "I16"]
    assert [(one.response_id, one.sentence) for one in orphans] == [
        (conversation, "item_images has 1 of its rows, but there is no such response.")
    ]


def test_the_scope_bounds_what_is_looked_at(
    database: Database, database_url: str, replica: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.begin() as connection:
        for number in range(3):
            store(connection, replica, PNG + bytes([number]))
    damage(database_url, SPOIL)
    monkeypatch.setattr(audit_snapshot, "MAX_HASHED_BYTES", len(PNG))
    assert len(findings(database_url)) == 3
    assert findings(database_url, Scope(replays=False)) == []
    assert findings(database_url, Scope(tenant="other")) == []
    assert findings(database_url, Scope(limit=1)) == []
    damage(
        database_url,
        "update images set created_at = '2020-01-01' where digest = (select max(digest) from images)",
    )
    with psycopg.connect(database_url) as connection:
        newest = connection.execute("select max(created_at) from images").fetchone()
    assert newest is not None
    assert len(findings(database_url, Scope(since=newest[0]))) == 1
