"""Conversations made, read and changed by hand. What responses add to them is written where responses end."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from server.errors import ConversationLocked, InvalidRequest, NotFound
from server.input_resolution import resolve_input
from server.input_resolution.history import MAX_ITEMS, check_history_size, stored_item
from server.protocol import ids
from server.protocol.conversations import Conversation, CreateConversation
from server.protocol.earlier_releases import with_logprobs
from server.protocol.errors import DecodeFailure
from server.protocol.list_pages import MAX_BYTES, Page, make_page
from server.protocol.responses.input import AdditionalTools, CompactionTrigger, InputItem, read_input
from server.protocol.responses.request import Metadata
from server.sealing.cipher import Seal
from server.store.content import conversations as store
from server.store.content.conversations import StoredConversation
from server.store.content.history_items import measure_conversation
from server.store.content.list_pages import PayloadPage
from server.store.content.responses import NewItem
from server.store.database import Connection, Database


def create(database: Database, tenant: str, wanted: CreateConversation, seal: Seal) -> Conversation:
    """Raises ApiError or DecodeFailure for items that cannot be kept."""
    conversation = ids.new_uuid()
    given = _read_items(wanted.items or [])

    def work(connection: Connection) -> StoredConversation:
        new = _resolve_items(connection, tenant, given, conversation, seal)
        store.create(connection, tenant, conversation, _json(wanted.metadata))
        return _append(connection, tenant, conversation, new)

    return to_wire(database.retry(work))


def find(database: Database, tenant: str, conversation: UUID) -> Conversation:
    """Raises NotFound."""
    return to_wire(database.retry(lambda connection: _require_stored(connection, tenant, conversation)))


def update(database: Database, tenant: str, conversation: UUID, metadata: Metadata | None) -> Conversation:
    """Replaces the metadata. Raises NotFound."""

    def work(connection: Connection) -> StoredConversation:
        found = store.update_metadata(connection, tenant, conversation, _json(metadata))
        return _require(found, conversation)

    return to_wire(database.retry(work))


def delete(database: Database, tenant: str, conversation: UUID) -> None:
    """The responses in it stay. Raises NotFound or ConversationLocked."""
    with database.begin() as connection:
        lock_conversation(connection, tenant, conversation)
        store.delete(connection, tenant, conversation)


def add_items(
    database: Database, tenant: str, conversation: UUID, items: Sequence[dict[str, Any]], seal: Seal
) -> list[bytes]:
    """The JSON of the items as they are kept. Raises ApiError or DecodeFailure."""
    given = _read_items(items)
    source = ids.new_uuid()

    def work(connection: Connection) -> list[NewItem]:
        new = _resolve_items(connection, tenant, given, source, seal)
        _append(connection, tenant, conversation, new)
        return new

    return [item.payload.encode() for item in database.retry(work)]


def find_item(database: Database, tenant: str, conversation: UUID, item_id: str) -> bytes:
    """An item's JSON. Raises NotFound."""

    def work(connection: Connection) -> str:
        _require_stored(connection, tenant, conversation)
        found = store.get_item(connection, tenant, item_id, conversation)
        if found is None:
            raise unknown_item(item_id)
        return found

    return with_logprobs(database.retry(work)).encode()


def delete_item(database: Database, tenant: str, conversation: UUID, item_id: str) -> Conversation:
    """What is left. Raises NotFound or ConversationLocked."""
    with database.begin() as connection:
        held = lock_conversation(connection, tenant, conversation)
        if not store.delete_item(connection, tenant, conversation, item_id):
            raise unknown_item(item_id)
    return to_wire(held)


def list_items(
    database: Database, tenant: str, conversation: UUID, after: str | None, limit: int, *, newest_first: bool
) -> Page[msgspec.Raw]:
    """Raises NotFound, or InvalidRequest for a bad cursor."""

    def work(connection: Connection) -> PayloadPage:
        _require_stored(connection, tenant, conversation)
        place = None
        if after is not None:
            place = store.item_position(connection, tenant, conversation, after)
            if place is None:
                raise InvalidRequest(
                    f"after must be the id of an item of this conversation, not '{after[:100]}'.",
                    param="after",
                )
        return store.item_page(
            connection,
            tenant,
            conversation,
            place,
            limit,
            newest_first=newest_first,
            most_bytes=MAX_BYTES,
        )

    found = database.read(work)
    return make_page([payload.encode() for payload in found.payloads], limit, more=found.more)


def lock_conversation(connection: Connection, tenant: str, conversation: UUID) -> StoredConversation:
    """A conversation that nobody else changes until the transaction ends.

    Raises NotFound, or ConversationLocked while a response in it is unfinished.
    """
    held = _require(store.lock_for_update(connection, tenant, conversation), conversation)
    if store.has_unfinished_response(connection, tenant, conversation):
        raise ConversationLocked
    return held


def to_wire(stored: StoredConversation) -> Conversation:
    return Conversation(
        id=ids.conversation_id(stored.id),
        created_at=int(stored.created_at.timestamp()),
        metadata=msgspec.Raw(stored.metadata.encode()),
    )


def unknown_item(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id[:100]}' not found.", code="item_not_found")


def _require_stored(connection: Connection, tenant: str, conversation: UUID) -> StoredConversation:
    return _require(store.get(connection, tenant, conversation), conversation)


def _require(found: StoredConversation | None, conversation: UUID) -> StoredConversation:
    if found is None:
        raise resolve_input.unknown_conversation(ids.conversation_id(conversation))
    return found


def _read_items(items: Sequence[dict[str, Any]]) -> list[InputItem]:
    given = read_input(list(items), "items")
    for item in given:
        if isinstance(item, CompactionTrigger):
            raise DecodeFailure(
                "A conversation is compacted by a response: send the trigger with a request for one.",
                "items",
                "unsupported_value",
            )
        if isinstance(item, AdditionalTools):
            raise DecodeFailure(
                "Tools are not kept in a conversation; send them with each request.",
                "items",
                "unsupported_value",
            )
    return given


def _resolve_items(
    connection: Connection, tenant: str, given: Sequence[InputItem], source: UUID, seal: Seal
) -> list[NewItem]:
    """The items as a conversation keeps them; `source` makes their ids, the same ones at a second try."""
    resolved = resolve_input.resolve_references(connection, tenant, given)
    return [
        stored_item(item) for item in resolve_input.with_own_ids(given, resolved, source, "c", seal, tenant)
    ]


def _append(
    connection: Connection, tenant: str, conversation: UUID, new: Sequence[NewItem]
) -> StoredConversation:
    """Appends what an earlier try has not appended already."""
    held = lock_conversation(connection, tenant, conversation)
    if new and store.get_item(connection, tenant, new[0].id, conversation) is None:
        there = measure_conversation(connection, tenant, conversation, MAX_ITEMS)
        added = sum(len(item.for_model or item.payload) for item in new)
        check_history_size(there.bytes + added, there.items + len(new))
        store.append(connection, tenant, held, new)
    return held


def _json(metadata: Metadata | None) -> str:
    return msgspec.json.encode(metadata or {}).decode()
