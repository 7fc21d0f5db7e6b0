"""Reads what a request refers to; what another tenant has is refused in the words for what never existed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from server.errors import InvalidRequest, NotFound
from server.limits.tenant_limits import MAX_ITEMS, Reserve, check_history_size, unbounded
from server.prompting.prompt_images import stored_digests
from server.protocol import ids
from server.protocol.error_object import invalid_value
from server.protocol.responses.input import CompactionTrigger, InputItem, ItemReference
from server.protocol.responses.items import Item, decode_item
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import TERMINAL_STATUSES
from server.store.content import conversations, images, responses, stored_items
from server.store.content.stored_items import HistorySize
from server.store.database import Connection


@dataclass(frozen=True, slots=True)
class ConversationVersion:
    """A conversation at the moment when its items were read."""

    id: UUID
    next_position: int


@dataclass(frozen=True, slots=True)
class StoredInput:
    input_items: Sequence[Item]
    """The new input, its item references read."""
    history: Sequence[Item] = ()
    previous_id: UUID | None = None
    conversation: ConversationVersion | None = None


def read_stored_input(
    connection: Connection,
    tenant: str,
    request: CreateResponse,
    elements: Sequence[InputItem],
    prior_items: Sequence[Item] | None = None,
    reserve: Reserve = unbounded,
) -> StoredInput:
    """Reads what the request refers to. Raises ApiError for what is missing. `prior_items` is the history
    where that is not stored; `reserve` gets the size of items before they are read.
    """
    conversation = _parse_conversation(request)
    previous, version, history = None, None, prior_items or ()
    if prior_items is None and request.previous_response_id is not None:
        previous, history = _read_previous(connection, tenant, request.previous_response_id, reserve)
    if conversation is not None:
        # Before the items: one that is added in between is noticed in the accept transaction.
        row = conversations.get(connection, tenant, conversation)
        if row is None:
            raise unknown_conversation(ids.conversation_id(conversation))
        version = ConversationVersion(conversation, row.next_position)
        history = read_conversation(connection, tenant, conversation, reserve)
    items = [item for item in elements if not isinstance(item, CompactionTrigger)]
    return StoredInput(resolve_references(connection, tenant, items, reserve), history, previous, version)


def read_images(
    connection: Connection,
    tenant: str,
    items: Sequence[Item],
    reserve: Callable[[int], None] = lambda _size: None,
) -> dict[bytes, bytes]:
    """The bytes of the stored pictures of these items, by digest. `reserve` is called with their size."""
    digests = stored_digests(items)
    if not digests:
        return {}
    reserve(sum(images.sizes(connection, tenant, digests).values()))
    return {digest: image.data for digest, image in images.load(connection, tenant, digests).items()}


def read_history(
    connection: Connection, tenant: str, response: UUID, reserve: Reserve = unbounded
) -> list[Item]:
    """Every item up to a response's end, oldest first, without the bytes of pictures."""
    if reserve is not unbounded:
        reserve(stored_items.measure_chain(connection, tenant, response, MAX_ITEMS))
    return [decode_item(payload) for payload in stored_items.chain_items(connection, tenant, response)]


def read_conversation(
    connection: Connection, tenant: str, conversation: UUID, reserve: Reserve = unbounded
) -> list[Item]:
    """Every item of a conversation, oldest first, without the bytes of pictures."""
    if reserve is not unbounded:
        reserve(stored_items.measure_conversation(connection, tenant, conversation, MAX_ITEMS))
    payloads = stored_items.conversation_items(connection, tenant, conversation)
    return [decode_item(payload) for payload in payloads]


def _parse_conversation(request: CreateResponse) -> UUID | None:
    """The id of the request's conversation, if it has one. Raises ApiError for an invalid id. Pure."""
    if request.conversation is None:
        return None
    if request.previous_response_id is not None:
        raise InvalidRequest(
            "previous_response_id and conversation are two ways to go on: give one of them.",
            param="conversation",
            code="mutually_exclusive_parameters",
        )
    name = request.conversation if isinstance(request.conversation, str) else request.conversation.id
    _refuse_prefix(name, "conv", "conversation")
    conversation = ids.parse_conversation_id(name)
    if conversation is None:
        raise unknown_conversation(name)
    return conversation


def _refuse_prefix(name: str, prefix: str, param: str) -> None:
    """Raises InvalidRequest, in OpenAI's words, for an id of something else."""
    if not name.startswith(f"{prefix}_"):
        raise invalid_value(
            f"Invalid '{param}': '{name[:100]}'. Expected an ID that begins with '{prefix}_'.", param
        )


def unknown_conversation(name: str) -> NotFound:
    """One error for another tenant's conversation, a deleted one and one that never existed."""
    return NotFound(f"Conversation with id '{name[:100]}' not found.", param="conversation")


def resolve_references(
    connection: Connection, tenant: str, elements: Sequence[InputItem], reserve: Reserve = unbounded
) -> list[Item]:
    """The input with its item references read. Raises NotFound, or InvalidRequest beyond the size limit."""
    resolved: list[Item] = []
    referred = 0
    for item in elements:
        if not isinstance(item, ItemReference):
            assert not isinstance(item, CompactionTrigger)
            resolved.append(item)
            continue
        payload = _referenced_payload(connection, tenant, item)
        item_read = decode_item(payload)
        pictures = images.sizes(connection, tenant, stored_digests([item_read]))
        referred += len(payload) + sum(pictures.values())  # an answer may give them back
        check_history_size(referred)
        reserve(HistorySize(len(payload), 1))
        resolved.append(item_read)
    return resolved


def _referenced_payload(connection: Connection, tenant: str, item: ItemReference) -> str:
    """The JSON of the item for which the id was made, or of one that was sent with it. Raises NotFound."""
    source = ids.response_of_item(item.id)
    payload = (
        (source and stored_items.get_item(connection, tenant, item.id, source))
        or conversations.get_item(connection, tenant, item.id)
        or stored_items.get_item(connection, tenant, item.id)
    )
    if payload is None:
        raise unknown_item(item.id, f"{item.path}.id")
    return payload


def _read_previous(
    connection: Connection, tenant: str, name: str, reserve: Reserve
) -> tuple[UUID, list[Item]]:
    """The id of the previous response and every item up to its end, oldest first."""
    _refuse_prefix(name, "resp", "previous_response_id")
    response = ids.parse_response_id(name)
    stored = responses.get(connection, tenant, response) if response else None
    if response is None or stored is None:
        raise unknown_previous(name)
    if stored.status not in TERMINAL_STATUSES:
        raise InvalidRequest(
            f"The response '{name}' is still {stored.status}; wait for its end before going on from it.",
            param="previous_response_id",
        )
    return response, read_history(connection, tenant, response, reserve)


def unknown_item(name: str, param: str | None = None) -> NotFound:
    """OpenAI's error for an item that is in none of the lists where the id is looked for."""
    return NotFound(f"Item with id '{name[:100]}' not found.", param=param, code="item_not_found")


def removed_image() -> NotFound:
    """An item that the input refers to was deleted while the request was prepared."""
    return NotFound(
        "An item that the input refers to has just been deleted.", param="input", code="item_not_found"
    )


def unknown_previous(name: str) -> InvalidRequest:
    """OpenAI's error, the same for another tenant's response, a deleted one and one that never existed."""
    return InvalidRequest(
        f"Previous response with id '{name[:100]}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
