"""What the model is given of a conversation: stored history, then the new input. Pure but for one query."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from server.errors import InvalidRequest, NotFound
from server.runs.states import ENDED
from server.store import responses
from server.store.database import Connection
from server.wire import ids
from server.wire.items import (
    Item,
    Message,
    MessageInput,
    Reasoning,
    ReasoningInput,
    read_content,
    read_input,
)
from server.wire.request import CreateResponse

_decode = msgspec.json.Decoder(Item).decode


def decode_item(payload: str) -> Item:
    """An item as it was stored."""
    item: Item = _decode(payload)
    return item


def read_history(connection: Connection, tenant: str, response: UUID) -> list[Item]:
    """Every item up to a response's end, oldest first."""
    return [decode_item(payload) for payload in responses.history(connection, tenant, response)]


def new_items(request: CreateResponse, response: UUID) -> list[Item]:
    """The request's input as items of this response, with ids of their own. Raises DecodeFailure."""
    return [_own(given, response, index) for index, given in enumerate(read_input(request.input))]


def _own(given: MessageInput | ReasoningInput, response: UUID, index: int) -> Item:
    if isinstance(given, MessageInput):
        return Message(
            ids.item_id("msg", response, "i", index),
            "completed",
            given.role,
            read_content(given, f"input[{index}]"),
            given.phase if given.phase is not None else msgspec.UNSET,
        )
    return Reasoning(
        ids.item_id("rs", response, "i", index),
        "completed",
        given.summary,
        given.content if given.content is not None else msgspec.UNSET,
        given.encrypted_content if given.encrypted_content is not None else msgspec.UNSET,
    )


def previous(connection: Connection, tenant: str, request: CreateResponse) -> tuple[UUID | None, list[Item]]:
    """The response that this request goes on from, and every item up to its end, oldest first.

    Raises NotFound if the tenant has no such response, InvalidRequest if it has not ended.
    """
    if request.previous_response_id is None:
        return None, []
    given = request.previous_response_id
    found = ids.parse_response_id(given)
    stored = responses.get(connection, tenant, found) if found else None
    if found is None or stored is None:
        raise unknown_previous(given)
    if stored.status not in ENDED:
        raise InvalidRequest(
            f"The response '{given}' is still {stored.status}; wait for its end before going on from it.",
            param="previous_response_id",
        )
    return found, read_history(connection, tenant, found)


def unknown_previous(given: str) -> NotFound:
    return NotFound(
        f"Previous response with id '{given[:100]}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def conversation(history: Sequence[Item], new: Sequence[Item]) -> list[Item]:
    """Everything that the model reads, in order."""
    return [*history, *new]
