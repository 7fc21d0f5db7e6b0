"""The items of a request: its history from a previous response or a conversation, and its new input.

Item references are read, new items get ids of the response, and calls and approvals that outputs and answers
refer to must be among the items.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from uuid import UUID

import msgspec

from server.admission.tenant_limits import MAX_ITEMS, HistoryReads, Reserve, check_history_size, unbounded
from server.errors import InvalidRequest, NotFound
from server.hosted_tools.offered_tools import approved_calls
from server.prompting.loaded_model import LoadedModel
from server.prompting.prompt_images import PromptImages, prompt_images, stored_digests, with_prompt_images
from server.protocol import ids
from server.protocol.responses.input import AdditionalTools, CompactionTrigger, InputItem, ItemReference
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
    Message,
    decode_item,
)
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import TERMINAL_STATUSES
from server.sealing.approval_tags import is_tagged, keep_approval_tag
from server.sealing.cipher import Seal
from server.sealing.sealed_items import unseal_items
from server.store.content import conversations, images, responses, stored_items
from server.store.content.stored_items import HistorySize
from server.store.database import Connection, Database

_NO_ITEMS = AdditionalTools | CompactionTrigger


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
    images: PromptImages = field(default_factory=dict)
    approves: bool = False
    """Whether there are answers to requests for approval."""

    @property
    def items(self) -> list[Item]:
        """History and new input, in order."""
        return [*self.history, *self.new]

    @property
    def prompt_items(self) -> Sequence[Item]:
        """`items` with the pictures that the model reads. Raises InvalidRequest for too many."""
        return with_prompt_images(self.items, self.images) if self.images else self.items


@dataclass(frozen=True, slots=True)
class StoredInput:
    """What a request refers to, as it is stored."""

    input_items: Sequence[Item]
    """The new input, its item references read."""
    history: Sequence[Item] = ()
    previous_id: UUID | None = None
    conversation: ConversationVersion | None = None


def read_stored_input(
    connection: Connection,
    tenant: str,
    request: CreateResponse,
    given: Sequence[InputItem],
    prior_items: Sequence[Item] | None = None,
    *,
    reserve: Reserve = unbounded,
) -> StoredInput:
    """Read what the request refers to. Raises ApiError for what is missing.

    `prior_items` is the history up to the end of the previous response where that is not stored. `reserve`
    is called with the size of stored items before they are read.
    """
    conversation = parse_conversation(request)
    previous, version, history_items = None, None, prior_items or ()
    if prior_items is None and request.previous_response_id is not None:
        previous, history_items = _read_previous(connection, tenant, request.previous_response_id, reserve)
    if conversation is not None:
        version, history_items = _read_versioned_conversation(connection, tenant, conversation, reserve)
    wanted = [item for item in given if not isinstance(item, _NO_ITEMS)]
    input_items = resolve_references(connection, tenant, wanted, reserve)
    return StoredInput(input_items, history_items, previous, version)


def input_alone(
    request: CreateResponse, given: Sequence[InputItem], prior_items: Sequence[Item] | None
) -> StoredInput | None:
    """The same for a request that refers to nothing stored; None for any other. Pure."""
    refers = request.previous_response_id is not None and prior_items is None
    if refers or request.conversation is not None or any(isinstance(one, ItemReference) for one in given):
        return None
    items = [item for item in given if not isinstance(item, _NO_ITEMS | ItemReference)]
    return StoredInput(items, prior_items or ())


def resolve_input(
    stored: StoredInput, given: Sequence[InputItem], response: UUID, seal: Seal, tenant: str
) -> ResolvedInput:
    """The items of a request. Raises ApiError for unmatched call outputs and approvals. Pure."""
    history, items = stored.history, stored.input_items
    if all(isinstance(item, Message) for item in (*history, *items)):
        own = [with_own_id(item, response, "i", index) for index, item in enumerate(items)]
        return ResolvedInput(stored.previous_id, history, own, stored.conversation)
    new = with_own_ids(given, items, response, "i", seal, tenant)
    approves = any(isinstance(item, McpApprovalResponse) for item in (*history, *new))
    if approves:
        _validate_approvals([*history, *new], new, given, seal, tenant)
    _validate_call_outputs(history, new, lambda items: unseal_items(items, seal, tenant))
    return ResolvedInput(stored.previous_id, history, new, stored.conversation, approves=approves)


@contextmanager
def reading_input(
    database: Database,
    history: HistoryReads,
    served: LoadedModel,
    tenant: str,
    request: CreateResponse,
    given: Sequence[InputItem],
    response: UUID,
    prior_items: Sequence[Item] | None = None,
    check: Callable[[Connection], None] | None = None,
) -> Iterator[ResolvedInput]:
    """`check`, and what the request refers to, in one transaction; then `resolve_input` and its pictures.

    The history read is counted during the block.
    """
    alone = None
    if check is None and served.images is None:
        alone = input_alone(request, given, prior_items)
    if alone is not None:
        yield resolve_input(alone, given, response, served.seal, tenant)
        return
    with history.for_request(tenant) as reads:

        def read(connection: Connection) -> tuple[StoredInput, dict[bytes, bytes]]:
            reads.start_over()
            if check is not None:
                check(connection)
            stored = read_stored_input(connection, tenant, request, given, prior_items, reserve=reads.reserve)
            if served.images is None:
                return stored, {}
            items = [*stored.history, *stored.input_items]
            return stored, read_images(connection, tenant, items, reads.reserve_images)

        stored, pictures = database.read(read)
        resolved = resolve_input(stored, given, response, served.seal, tenant)
        if served.images is not None:
            images = prompt_images(served, tenant, request, resolved.items, pictures)
            resolved = replace(resolved, images=images)
        yield resolved


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
    new = [with_own_id(item, source, side, index) for index, item in enumerate(resolved)]
    for index, item in enumerate(resolved):
        if isinstance(item, McpApprovalRequest):
            new[index] = keep_approval_tag(seal, tenant, item, new[index], stored=stored[index])
    return _with_renamed_references(resolved, new)


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
        item_read = decode_item(payload)
        pictures = images.sizes(connection, tenant, stored_digests([item_read]))
        referred += len(payload) + sum(pictures.values())  # an answer may give them back
        check_history_size(referred)
        reserve(HistorySize(len(payload), 1))
        resolved.append(item_read)
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


def _validate_approvals(
    items: Sequence[Item], new: Sequence[Item], given: Sequence[InputItem], seal: Seal, tenant: str
) -> None:
    """Raises InvalidRequest for an approved call that this server did not ask about, or an unknown request.

    `items`, of which `new` are the last, have the ids under which this response stores them; `given` is the
    input, whose last approval response the error names.
    """
    for request in approved_calls(items):
        if not (ids.is_output_id(request.id) or is_tagged(seal, tenant, request)):
            answers = [index for index, item in enumerate(given) if isinstance(item, McpApprovalResponse)]
            raise InvalidRequest(
                f"The call of '{request.name[:100]}' is allowed, but this server did not ask whether it may "
                "be made: send the mcp_approval_request as the server gave it, with its id, or go on from "
                "its response by previous_response_id.",
                param=f"input[{answers[-1]}]" if answers else "input",
            )
    requests = {item.id for item in items if isinstance(item, McpApprovalRequest)}
    for item in new:
        if isinstance(item, McpApprovalResponse) and item.approval_request_id not in requests:
            raise InvalidRequest(
                f"No approval request found with id '{item.approval_request_id[:100]}'.", param="input"
            )


def _validate_call_outputs(
    history: Sequence[Item], new: Sequence[Item], unseal: Callable[[Sequence[Item]], Sequence[Item]]
) -> None:
    """Raises InvalidRequest for an output whose call is not in the items. Pure.

    `unseal` returns the items with the calls that a compaction has sealed.
    """
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
    connection: Connection, tenant: str, given: str, reserve: Reserve
) -> tuple[UUID, list[Item]]:
    """The id of the previous response and every item up to its end, oldest first."""
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


def removed_image() -> NotFound:
    """An item that the input refers to was deleted while the request was prepared."""
    return NotFound(
        "An item that the input refers to has just been deleted.", param="input", code="item_not_found"
    )


def unknown_previous(given: str) -> NotFound:
    return NotFound(
        f"Previous response with id '{given[:100]}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
