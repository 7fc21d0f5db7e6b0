"""The items of a request: its history from a previous response or a conversation, and its new input."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from server.errors import InvalidRequest, NotFound
from server.input_resolution.history import MAX_ITEMS, Reserve, check_history_size, unbounded
from server.input_resolution.mcp_approvals import keep_approval_tag, refuse_forged
from server.input_resolution.previous_messages import read_previous
from server.protocol import ids
from server.protocol.error_object import DecodeFailure
from server.protocol.responses.input import (
    AdditionalTools,
    CompactionTrigger,
    InputItem,
    ItemReference,
    read_input,
)
from server.protocol.responses.items import (
    ID_PREFIXES,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    decode_item,
)
from server.protocol.responses.request import ContextManagement, CreateResponse
from server.protocol.responses.response import TERMINAL_STATUSES
from server.protocol.responses.tools import declaration
from server.sealing.cipher import Seal
from server.sealing.sealed_items import unseal_items
from server.store.content import conversations, responses, stored_items
from server.store.content.stored_items import HistorySize
from server.store.database import Connection

_NO_ITEMS = AdditionalTools | CompactionTrigger
COMPACTION_TRIGGER = "compaction_trigger"
"""The type in `context_management` that records a trigger in the input."""


@dataclass(frozen=True, slots=True)
class ConversationVersion:
    """A conversation at the moment when its items were read."""

    id: UUID
    next_position: int


@dataclass(frozen=True, slots=True)
class ResolvedInput:
    """A request's items."""

    previous_id: UUID | None
    history: Sequence[Item]
    new: Sequence[Item]
    """The new input, with ids of this response."""
    conversation: ConversationVersion | None = None

    @property
    def items(self) -> list[Item]:
        """History and new input, in order."""
        return [*self.history, *self.new]


def resolve_input(
    connection: Connection,
    tenant: str,
    request: CreateResponse,
    given: Sequence[InputItem],
    response: UUID,
    seal: Seal,
    prior_items: Sequence[Item] | None = None,
    *,
    reserve: Reserve = unbounded,
) -> ResolvedInput:
    """Read what the request refers to. Raises ApiError for missing references and unmatched call outputs.

    `prior_items` is the history up to the end of the previous response where that is not stored. `reserve`
    is called with the size of stored items before they are read.
    """
    conversation = parse_conversation(request)
    version = None
    previous, history_items = (
        (None, prior_items)
        if prior_items is not None
        else _read_previous(connection, tenant, request, reserve)
    )
    if conversation is not None:
        version, history_items = _read_versioned_conversation(connection, tenant, conversation, reserve)
    wanted = [item for item in given if not isinstance(item, _NO_ITEMS)]
    resolved = resolve_references(connection, tenant, wanted, reserve)
    new = with_own_ids(given, resolved, response, "i", seal, tenant)
    refuse_forged(seal, tenant, [*history_items, *new], _answer_path(given))
    validate_call_outputs(history_items, new, lambda items: unseal_items(items, seal, tenant))
    return ResolvedInput(previous, history_items, new, version)


def read_request_input(request: CreateResponse) -> tuple[CreateResponse, list[InputItem]]:
    """The parsed input, and the request with the tools and the compaction trigger that the input had.

    Raises DecodeFailure. Pure.
    """
    if request.previous_input_messages:
        before = read_previous(request.previous_input_messages)
        request = msgspec.structs.replace(request, previous_input_messages=None)
        given = [*before, *(read_input(request.input) if request.input else [])]
    else:
        given = read_input(_required_input(request))
    if CompactionTrigger() in given:
        request = _with_compaction_trigger(request, given)
    more = [tool for item in given if isinstance(item, AdditionalTools) for tool in item.tools]
    if more:
        tools = [*(request.tools or []), *map(declaration, more)]
        request = msgspec.structs.replace(request, tools=tools)
    return request, given


def _with_compaction_trigger(request: CreateResponse, given: Sequence[InputItem]) -> CreateResponse:
    """The trigger as a `context_management` entry: it is no item, and the request is stored."""
    if given.count(CompactionTrigger()) > 1:
        raise DecodeFailure("Only one compaction_trigger may be given.", "input", "invalid_value")
    if given[-1] != CompactionTrigger():
        raise DecodeFailure("The compaction_trigger must be the last input item.", "input", "invalid_value")
    settings = [*(request.context_management or ()), ContextManagement(COMPACTION_TRIGGER)]
    return msgspec.structs.replace(request, context_management=settings)


def _required_input(request: CreateResponse) -> str | list[dict[str, Any]]:
    """Raises DecodeFailure if there is no input and nothing else to answer to."""
    if request.input is not None:
        return request.input
    if request.prompt is None and request.conversation is None and request.previous_response_id is None:
        raise DecodeFailure(
            "Object missing required field `input` (at input).", "input", "missing_required_parameter"
        )
    return []


def with_own_id(item: Item, response: UUID, side: ids.ItemSource, index: int) -> Item:
    """The item with an id derived from the response (or conversation) and its index there."""
    return msgspec.structs.replace(item, id=ids.item_id(ID_PREFIXES[type(item)], response, side, index))


def with_own_ids(
    given: Sequence[InputItem],
    resolved: Sequence[Item],
    source: UUID,
    side: ids.ItemSource,
    seal: Seal,
    tenant: str,
) -> list[Item]:
    """The items with new ids, and references between them changed accordingly.

    `given` is the input that they were resolved from; elements that are no items are skipped.
    """
    stored = [isinstance(item, ItemReference) for item in given if not isinstance(item, _NO_ITEMS)]
    new = [
        keep_approval_tag(seal, tenant, item, with_own_id(item, source, side, index), stored=stored[index])
        for index, item in enumerate(resolved)
    ]
    return _with_renamed_references(resolved, new)


def _answer_path(given: Sequence[InputItem]) -> str:
    """The path of the input's last approval response, for the error."""
    places = [index for index, item in enumerate(given) if isinstance(item, McpApprovalResponse)]
    return f"input[{places[-1]}]" if places else "input"


def read_history(
    connection: Connection, tenant: str, response: UUID, reserve: Reserve = unbounded
) -> list[Item]:
    """Every item up to a response's end, oldest first, without image data."""
    if reserve is not unbounded:
        reserve(stored_items.measure_chain(connection, tenant, response, MAX_ITEMS))
    return [decode_item(payload) for payload in stored_items.chain_items(connection, tenant, response)]


def read_conversation(
    connection: Connection, tenant: str, conversation: UUID, reserve: Reserve = unbounded
) -> list[Item]:
    """Every item of a conversation, oldest first, without image data."""
    if reserve is not unbounded:
        reserve(stored_items.measure_conversation(connection, tenant, conversation, MAX_ITEMS))
    return [
        decode_item(payload) for payload in stored_items.conversation_items(connection, tenant, conversation)
    ]


def parse_conversation(request: CreateResponse) -> UUID | None:
    """The id of the request's conversation, if it has one. Raises ApiError for an invalid id. Pure."""
    if request.conversation is None:
        return None
    if request.previous_response_id is not None:
        raise InvalidRequest(
            "previous_response_id and conversation are two ways to go on: give one of them.",
            param="conversation",
            code="mutually_exclusive_parameters",
        )
    given = request.conversation if isinstance(request.conversation, str) else request.conversation.id
    _refuse_prefix(given, "conv", "conversation")
    found = ids.parse_conversation_id(given)
    if found is None:
        raise unknown_conversation(given)
    return found


def _refuse_prefix(given: str, prefix: str, param: str) -> None:
    """Raises InvalidRequest, in OpenAI's words, for an id of something else."""
    if not given.startswith(f"{prefix}_"):
        raise InvalidRequest(
            f"Invalid '{param}': '{given[:100]}'. Expected an ID that begins with '{prefix}_'.",
            param=param,
            code="invalid_value",
        )


def unknown_conversation(given: str) -> NotFound:
    """The same error for another tenant's conversation, a deleted one and one that never existed."""
    return NotFound(f"Conversation with id '{given[:100]}' not found.", param="conversation")


def _read_versioned_conversation(
    connection: Connection, tenant: str, conversation: UUID, reserve: Reserve
) -> tuple[ConversationVersion, list[Item]]:
    """The version is read before the items: an item added in between is noticed in the accept transaction."""
    found = conversations.get(connection, tenant, conversation)
    if found is None:
        raise unknown_conversation(ids.conversation_id(conversation))
    return ConversationVersion(conversation, found.next_position), read_conversation(
        connection, tenant, conversation, reserve
    )


def resolve_references(
    connection: Connection, tenant: str, given: Sequence[InputItem], reserve: Reserve = unbounded
) -> list[Item]:
    """The input with its item references read. Raises NotFound, or InvalidRequest beyond the size limit."""
    resolved: list[Item] = []
    referred = 0
    for item in given:
        if not isinstance(item, ItemReference):
            assert not isinstance(item, AdditionalTools | CompactionTrigger)
            resolved.append(item)
            continue
        payload = _referenced_payload(connection, tenant, item)
        referred += len(payload)
        check_history_size(referred)
        reserve(HistorySize(len(payload), 1))
        resolved.append(decode_item(payload))
    return resolved


def _referenced_payload(connection: Connection, tenant: str, item: ItemReference) -> str:
    """The JSON of the referenced item. Raises NotFound."""
    payload = stored_items.get_item(connection, tenant, item.id) or conversations.get_item(
        connection, tenant, item.id
    )
    if payload is None:
        raise NotFound(
            f"Item with id '{item.id[:100]}' not found.", param=f"{item.path}.id", code="item_not_found"
        )
    return payload


def _with_renamed_references(given: Sequence[Item], new: Sequence[Item]) -> list[Item]:
    """The new items, with approval_request_id changed to the new ids. Pure."""
    names = {before.id: after.id for before, after in zip(given, new, strict=True) if before.id}

    def rename(item: Item) -> Item:
        if isinstance(item, McpCall | McpApprovalResponse) and item.approval_request_id in names:
            return msgspec.structs.replace(item, approval_request_id=names[item.approval_request_id])
        return item

    return [rename(item) for item in new]


def validate_call_outputs(
    history: Sequence[Item],
    new: Sequence[Item],
    unseal: Callable[[Sequence[Item]], Sequence[Item]] = list,
) -> None:
    """Raises InvalidRequest for an output or approval whose call or request is not in the items. Pure.

    `unseal` returns the items with the calls that a compaction has sealed.
    """
    asked = {item.id for item in [*history, *new] if isinstance(item, McpApprovalRequest)}
    for item in new:
        if isinstance(item, McpApprovalResponse) and item.approval_request_id not in asked:
            raise InvalidRequest(
                f"No approval request found with id '{item.approval_request_id[:100]}'.", param="input"
            )
    calls = _calls([*history, *new])
    for item in new:
        if not isinstance(item, FunctionCallOutput | CustomToolCallOutput) or item.call_id in calls:
            continue
        if item.call_id not in _calls(unseal([*history, *new])):
            raise InvalidRequest(
                f"No tool call found for function call output with call_id {item.call_id[:100]}.",
                param="input",
            )


def _calls(items: Sequence[Item]) -> set[str]:
    return {item.call_id for item in items if isinstance(item, FunctionCall | CustomToolCall)}


def _read_previous(
    connection: Connection, tenant: str, request: CreateResponse, reserve: Reserve
) -> tuple[UUID | None, list[Item]]:
    """The id of the previous response and every item up to its end, oldest first."""
    if request.previous_response_id is None:
        return None, []
    given = request.previous_response_id
    _refuse_prefix(given, "resp", "previous_response_id")
    found = ids.parse_response_id(given)
    stored = responses.get(connection, tenant, found) if found else None
    if found is None or stored is None:
        raise unknown_previous(given)
    if stored.status not in TERMINAL_STATUSES:
        raise InvalidRequest(
            f"The response '{given}' is still {stored.status}; wait for its end before going on from it.",
            param="previous_response_id",
        )
    return found, read_history(connection, tenant, found, reserve)


def unknown_previous(given: str) -> NotFound:
    return NotFound(
        f"Previous response with id '{given[:100]}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
