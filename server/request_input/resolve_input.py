"""The items of a request: its input parsed, and its history before it. New items keep the ids that they are
sent with, but in a conversation, where an id names one item of the tenant. No id may come twice. Calls and
approvals that are referred to must be among the items.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import msgspec

from server.errors import InvalidRequest
from server.generation.hosted_tools_of_response import approved_calls
from server.limits.tenant_limits import HistoryReads
from server.prompting.prompt_images import PromptImages, prompt_images
from server.prompting.served_model import LoadedModel
from server.protocol import ids
from server.protocol.error_object import invalid_value, missing_parameter
from server.protocol.responses.input import (
    CompactionTrigger,
    InputItem,
    ItemReference,
    has_lasting_id,
    read_input,
)
from server.protocol.responses.items import (
    ID_PREFIXES,
    CallOutput,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    PairedCall,
)
from server.protocol.responses.request import COMPACTION_TRIGGER, ContextManagement, CreateResponse
from server.request_input.previous_messages import read_previous
from server.request_input.stored_input import ConversationVersion, StoredInput, read_images, read_stored_input
from server.sealing.cipher import Seal
from server.sealing.sealed_items import is_tagged, keep_approval_tag, unseal_items
from server.store.database import Connection, Database


@dataclass(frozen=True, slots=True)
class ResolvedInput:
    """A request's items."""

    previous_id: UUID | None
    history: Sequence[Item]
    new: Sequence[Item]
    """The new input. Items that were sent with an id have it still, others one of this response."""
    conversation: ConversationVersion | None = None
    images: PromptImages = field(default_factory=dict)
    only_messages: bool = False
    """Whether all items are messages, of which none has a setting, a call or a sealed part."""
    approves: bool = False
    sent_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids that the input's approval requests were sent with, by the ids that they have here."""
    read_bytes: int = 0
    """Bytes of the stored items among these, as JSON."""
    items: Sequence[Item] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", [*self.history, *self.new])


def read_request_input(request: CreateResponse) -> tuple[CreateResponse, list[InputItem]]:
    """The parsed input, and the request with the input's compaction trigger. Raises InvalidRequest. Pure."""
    if request.previous_input_messages:
        before = read_previous(request.previous_input_messages)
        request = msgspec.structs.replace(request, previous_input_messages=None)
        elements = [*before, *(read_input(request.input) if request.input else [])]
    else:
        elements = read_input(_required_input(request))
    if CompactionTrigger() in elements:
        request = _with_compaction_trigger(request, elements)
    return request, elements


def _with_compaction_trigger(request: CreateResponse, elements: Sequence[InputItem]) -> CreateResponse:
    """The trigger as a `context_management` entry: it is no item, and the request is stored."""
    if elements.count(CompactionTrigger()) > 1:
        raise invalid_value("Only one compaction_trigger may be given.", "input")
    if elements[-1] != CompactionTrigger():
        raise invalid_value("The compaction_trigger must be the last input item.", "input")
    settings = [*(request.context_management or ()), ContextManagement(COMPACTION_TRIGGER)]
    return msgspec.structs.replace(request, context_management=settings)


def _required_input(request: CreateResponse) -> str | list[dict[str, Any]]:
    """Raises InvalidRequest if there is no input and nothing else to answer to."""
    if request.input is not None:
        return request.input
    if request.prompt is None and request.conversation is None and request.previous_response_id is None:
        raise missing_parameter("input")
    return []


def _input_alone(
    request: CreateResponse, elements: Sequence[InputItem], prior_items: Sequence[Item] | None
) -> StoredInput | None:
    """The input of a request that refers to nothing stored; None for any other request. Pure."""
    refers = request.conversation is not None or any(isinstance(item, ItemReference) for item in elements)
    if refers or (request.previous_response_id is not None and prior_items is None):
        return None
    items = [item for item in elements if not isinstance(item, CompactionTrigger | ItemReference)]
    return StoredInput(items, prior_items or ())


def resolve_input(
    stored: StoredInput, elements: Sequence[InputItem], response: UUID, seal: Seal, tenant: str
) -> ResolvedInput:
    """The items of a request. Raises ApiError for unmatched call outputs and approvals. Pure."""
    history, items = stored.history, stored.input_items
    refuse_duplicates(items, history)
    lasting = set() if stored.conversation else {item.id for item in items if has_lasting_id(item)}
    if all(isinstance(item, Message) for item in (*history, *items)):
        own = [with_own_id(item, response, "i", index, lasting) for index, item in enumerate(items)]
        return ResolvedInput(stored.previous_id, history, own, stored.conversation, only_messages=True)
    new = with_own_ids(elements, items, response, "i", seal, tenant, lasting)
    approves = any(isinstance(item, McpApprovalResponse) for item in (*history, *new))
    if approves:
        _validate_approvals([*history, *new], new, elements, seal, tenant)
    _validate_call_outputs(history, new, lambda items: unseal_items(items, seal, tenant))
    sent_ids = {
        own.id: sent.id for sent, own in zip(items, new, strict=True) if isinstance(own, McpApprovalRequest)
    }
    return ResolvedInput(
        stored.previous_id, history, new, stored.conversation, approves=approves, sent_ids=sent_ids
    )


@contextmanager
def reading_input(
    database: Database,
    history: HistoryReads,
    served: LoadedModel,
    tenant: str,
    request: CreateResponse,
    elements: Sequence[InputItem],
    response: UUID,
    prior_items: Sequence[Item] | None = None,
    check: Callable[[Connection], None] | None = None,
) -> Iterator[ResolvedInput]:
    """`check`, `resolve_input` and its pictures, in one transaction; the history counts during the block."""
    is_checked = check is not None or served.images is not None
    alone = None if is_checked else _input_alone(request, elements, prior_items)
    if alone is not None:
        yield resolve_input(alone, elements, response, served.seal, tenant)
        return
    with history.for_request(tenant) as reads:

        def read(connection: Connection) -> tuple[StoredInput, dict[bytes, bytes]]:
            reads.start_over()
            if check is not None:
                check(connection)
            stored = read_stored_input(connection, tenant, request, elements, prior_items, reads.reserve)
            if served.images is None:
                return stored, {}
            items = [*stored.history, *stored.input_items]
            return stored, read_images(connection, tenant, items, reads.reserve_images)

        stored, pictures = database.read(read)
        resolved = resolve_input(stored, elements, response, served.seal, tenant)
        resolved = replace(resolved, read_bytes=reads.item_bytes)
        if served.images is not None:
            images = prompt_images(served, tenant, request, resolved.items, pictures)
            resolved = replace(resolved, images=images)
        yield resolved


def refuse_duplicates(items: Sequence[Item], history: Sequence[Item] = ()) -> None:
    """Raises InvalidRequest for an id that two items have, or one and the history. Pure."""
    sent = [item.id for item in items if item.id]
    seen = {item.id for item in history} if sent else set()
    for item_id in sent:
        if item_id in seen:
            raise duplicate_item(item_id)
        seen.add(item_id)


def duplicate_item(item_id: str) -> InvalidRequest:
    """OpenAI's error for an item that is there already."""
    return InvalidRequest(
        f"Duplicate item found with id {item_id[:100]}. Remove duplicate items from your input and try "
        "again.",
        param="input",
    )


def with_own_id(
    item: Item, response: UUID, side: ids.ItemSource, index: int, lasting: Container[str] = ()
) -> Item:
    """The item, unless its id is in `lasting`, with an id derived from the response and its index there."""
    if item.id in lasting and has_lasting_id(item):
        return item
    return msgspec.structs.replace(item, id=ids.item_id(ID_PREFIXES[type(item)], response, side, index))


def with_own_ids(
    elements: Sequence[InputItem],
    resolved: Sequence[Item],
    source: UUID,
    side: ids.ItemSource,
    seal: Seal,
    tenant: str,
    lasting: Container[str] = (),
) -> list[Item]:
    """The items with new ids, but for the lasting ones, and references between them changed accordingly.

    `elements` is the input that they were resolved from; elements that are no items are skipped.
    """
    stored = [isinstance(item, ItemReference) for item in elements if not isinstance(item, CompactionTrigger)]
    new = [with_own_id(item, source, side, index, lasting) for index, item in enumerate(resolved)]
    for index, item in enumerate(resolved):
        if isinstance(item, McpApprovalRequest):
            new[index] = keep_approval_tag(seal, tenant, item, new[index], stored=stored[index])
    return _with_renamed_references(resolved, new)


def _with_renamed_references(resolved: Sequence[Item], new: Sequence[Item]) -> list[Item]:
    """The new items, with approval_request_id changed to the new ids. Pure."""
    names = {before.id: after.id for before, after in zip(resolved, new, strict=True) if before.id}

    def rename(item: Item) -> Item:
        if isinstance(item, McpCall | McpApprovalResponse) and item.approval_request_id in names:
            return msgspec.structs.replace(item, approval_request_id=names[item.approval_request_id])
        return item

    return [rename(item) for item in new]


def _validate_approvals(
    items: Sequence[Item], new: Sequence[Item], elements: Sequence[InputItem], seal: Seal, tenant: str
) -> None:
    """Raises InvalidRequest for an unknown approval request, or a call that this server did not ask about."""
    for request in approved_calls(items):
        if not (ids.is_output_id(request.id) or is_tagged(seal, tenant, request)):
            answers = [index for index, item in enumerate(elements) if isinstance(item, McpApprovalResponse)]
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
    """Raises InvalidRequest for an output whose call is in no item, nor sealed in a compaction. Pure."""
    calls = _calls([*history, *new])
    for item in new:
        if not isinstance(item, CallOutput) or item.call_id is None or item.call_id in calls:
            continue
        if item.call_id not in _calls(unseal([*history, *new])):
            raise InvalidRequest(
                f"No tool call found for function call output with call_id {item.call_id[:100]}.",
                param="input",
            )


def _calls(items: Sequence[Item]) -> set[str | None]:
    return {item.call_id for item in items if isinstance(item, PairedCall)}
