"""The Conversations API: create, read, change. Responses append their own items when they end."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from server.caller import Caller
from server.delivery.image_urls import page_with_image_urls, with_image_urls
from server.delivery.stored_responses import item_page
from server.errors import ConversationLocked
from server.limits.tenant_limits import MAX_ITEMS, check_history_size
from server.logs.context import current_origin
from server.protocol import ids
from server.protocol.conversation_objects import Conversation, CreateConversation
from server.protocol.error_object import unsupported_value
from server.protocol.list_pages import Page, PageRequest, make_page
from server.protocol.responses.input import CompactionTrigger, InputItem, read_input
from server.protocol.responses.request import Metadata
from server.request_input import resolve_input, stored_input
from server.sealing.cipher import Seal
from server.store.administration import audit_trail
from server.store.content import conversations as store
from server.store.content.conversations import ConversationRow
from server.store.content.images import ImageRemoved, StoredImage
from server.store.content.item_rows import NewItem, stored_items_of
from server.store.content.stored_items import CONVERSATION_LIST, PayloadPage, measure_conversation
from server.store.database import Connection, Database


def create(database: Database, tenant: str, request: CreateConversation, seal: Seal) -> Conversation:
    """Raises ApiError for items that cannot be stored."""
    conversation = ids.new_uuid()
    items = _read_items(request.items or [])

    def work(connection: Connection) -> ConversationRow:
        new = _resolve_items(connection, tenant, conversation, items, conversation, seal)
        store.create(connection, tenant, conversation, _json(request.metadata))
        return _append(connection, tenant, conversation, new)

    return to_wire(database.retry(work))


def list_stored(database: Database, tenant: str, request: PageRequest) -> Page[msgspec.Raw]:
    listed = database.retry(lambda connection: store.list_page(connection, tenant, request))
    return make_page([msgspec.json.encode(to_wire(row.conversation)) for row in listed], request.limit)


def find(database: Database, tenant: str, conversation: UUID) -> Conversation:
    """Raises NotFound."""
    return to_wire(database.retry(lambda connection: _require_stored(connection, tenant, conversation)))


def update(database: Database, tenant: str, conversation: UUID, metadata: Metadata | None) -> Conversation:
    """Replaces the metadata. Raises NotFound."""

    def work(connection: Connection) -> ConversationRow:
        stored = store.update_metadata(connection, tenant, conversation, _json(metadata))
        return _require(stored, conversation)

    return to_wire(database.retry(work))


def delete(database: Database, caller: Caller, conversation: UUID) -> None:
    """Delete the conversation; its responses remain. Raises NotFound or ConversationLocked."""
    with database.begin() as connection:
        lock_conversation(connection, caller.tenant, conversation)
        store.delete(connection, caller.tenant, conversation)
        _record(connection, caller, "conversation.delete", ids.conversation_id(conversation))


def _record(connection: Connection, caller: Caller, action: str, target: str) -> None:
    name = current_origin().request_id
    audit_trail.record(connection, caller.actor, action, caller.tenant, target, request_id=name)


def add_items(
    database: Database, tenant: str, conversation: UUID, items: Sequence[dict[str, Any]], seal: Seal
) -> list[bytes]:
    """Append items; returns the JSON of each as stored. Raises ApiError."""
    parsed = _read_items(items)
    source = ids.new_uuid()

    def work(connection: Connection) -> list[str]:
        new = _resolve_items(connection, tenant, conversation, parsed, source, seal)
        _append(connection, tenant, conversation, new)
        known = {
            image.digest: StoredImage(image.media_type, image.data)
            for item in new
            for image in item.images
            if image.data is not None
        }
        return with_image_urls(connection, tenant, [item.payload for item in new], known=known)

    return [payload.encode() for payload in database.retry(work)]


def find_item(database: Database, tenant: str, conversation: UUID, item_id: str) -> bytes:
    """An item's JSON. Raises NotFound."""

    def work(connection: Connection) -> str:
        _require_stored(connection, tenant, conversation)
        payload = store.get_item(connection, tenant, item_id, conversation)
        if payload is None:
            raise stored_input.unknown_item(item_id)
        (whole,) = with_image_urls(connection, tenant, [payload])
        return whole

    return database.retry(work).encode()


def delete_item(database: Database, caller: Caller, conversation: UUID, item_id: str) -> Conversation:
    """Delete one item; returns the conversation. Raises NotFound or ConversationLocked."""
    with database.begin() as connection:
        locked = lock_conversation(connection, caller.tenant, conversation)
        if not store.delete_items(connection, caller.tenant, conversation, [item_id]):
            raise stored_input.unknown_item(item_id)
        _record(connection, caller, "conversation.delete_item", item_id)
    return to_wire(locked)


def list_items(
    database: Database, tenant: str, conversation: UUID, request: PageRequest
) -> Page[msgspec.Raw]:
    """Raises NotFound, or InvalidRequest for a bad cursor."""

    def work(connection: Connection) -> PayloadPage:
        _require_stored(connection, tenant, conversation)
        kind = "an item of this conversation"
        page = item_page(connection, CONVERSATION_LIST, tenant, conversation, request, kind)
        return page_with_image_urls(connection, tenant, page)

    page = database.read(work)
    return make_page([payload.encode() for payload in page.payloads], request.limit, more=page.more)


def lock_conversation(connection: Connection, tenant: str, conversation: UUID) -> ConversationRow:
    """Locks the conversation's row. Raises NotFound, or ConversationLocked while a response is unfinished."""
    locked = _require(store.get(connection, tenant, conversation, lock=True), conversation)
    if store.has_unfinished_response(connection, tenant, conversation):
        raise ConversationLocked
    return locked


def to_wire(stored: ConversationRow) -> Conversation:
    return Conversation(
        id=ids.conversation_id(stored.id),
        created_at=int(stored.created_at.timestamp()),
        metadata=msgspec.Raw(stored.metadata.encode()),
    )


def _require_stored(connection: Connection, tenant: str, conversation: UUID) -> ConversationRow:
    return _require(store.get(connection, tenant, conversation), conversation)


def _require(stored: ConversationRow | None, conversation: UUID) -> ConversationRow:
    if stored is None:
        raise stored_input.unknown_conversation(ids.conversation_id(conversation))
    return stored


def _read_items(items: Sequence[dict[str, Any]]) -> list[InputItem]:
    parsed = read_input(list(items), "items")
    for item in parsed:
        if isinstance(item, CompactionTrigger):
            raise unsupported_value(
                "A conversation is compacted by a response: send the trigger with a request for one.", "items"
            )
    return parsed


def _resolve_items(
    connection: Connection,
    tenant: str,
    conversation: UUID,
    items: Sequence[InputItem],
    source: UUID,
    seal: Seal,
) -> list[NewItem]:
    """The items as stored. Their ids are derived from `source`, so that a retry has the same ones.

    Raises InvalidRequest for an id that comes twice, or that the conversation has.
    """
    resolved = stored_input.resolve_references(connection, tenant, items)
    resolve_input.refuse_duplicates(resolved)
    for item in resolved:
        if item.id and store.get_item(connection, tenant, item.id, conversation) is not None:
            raise resolve_input.duplicate_item(item.id)
    return stored_items_of(resolve_input.with_own_ids(items, resolved, source, "c", seal, tenant))


def _append(
    connection: Connection, tenant: str, conversation: UUID, new: Sequence[NewItem]
) -> ConversationRow:
    """Append the items, unless an earlier attempt that was not confirmed has committed them."""
    locked = lock_conversation(connection, tenant, conversation)
    if new and store.get_item(connection, tenant, new[0].id, conversation) is None:
        size = measure_conversation(connection, tenant, conversation, MAX_ITEMS)
        added = sum(len(item.for_model or item.payload) for item in new)
        check_history_size(size.bytes + added, size.items + len(new))
        try:
            store.append(connection, tenant, locked, new)
        except ImageRemoved:
            raise stored_input.removed_image() from None
    return locked


def _json(metadata: Metadata | None) -> str:
    return msgspec.json.encode(metadata or {}).decode()
