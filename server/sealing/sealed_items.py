"""Sealed items: reasoning and compacted contexts, encrypted for clients and opened for models; MACs in ids.

The compact endpoint's item stands for the summarised items beside retained messages. The item of a response
stands for everything before it: retained messages and calls, and a summary of the rest.

The id of an MCP approval request has a MAC of the tenant and the call, so that a client may carry the request
with `store: false` and cannot forge one. An id without a MAC is accepted for stored output items alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from server.protocol.decode import decode_as
from server.protocol.ids import is_output_id, split_id_tag
from server.protocol.responses.items import (
    Compaction,
    InputText,
    Item,
    McpApprovalRequest,
    Message,
    Reasoning,
    ReasoningText,
    decode_item,
    encode_item,
)
from server.protocol.responses.response import Response
from server.sealing.cipher import Seal

SUMMARY_PREFIX = "Earlier parts of this conversation were left out. This is what they said:\n\n"


@dataclass(frozen=True, slots=True)
class SealedContext:
    """A compacted context, in order."""

    before: Sequence[Item]
    summary: str
    after: Sequence[Item]
    """The unanswered user message and the calls after it."""

    def items(self, item_id: str) -> list[Item]:
        """The items that a model reads: the summary is a developer message with the compaction item's id."""
        summary = [summary_message(item_id, self.summary)] if self.summary else []
        return [*self.before, *summary, *self.after]


class _Sealed(msgspec.Struct):
    before: list[msgspec.Raw]
    summary: str
    after: list[msgspec.Raw]


def summary_message(item_id: str, summary: str) -> Message:
    return Message(item_id, "completed", "developer", [InputText(SUMMARY_PREFIX + summary)])


def seal_context(context: SealedContext, seal: Seal, tenant: str, item_id: str) -> str:
    """The encrypted_content of the compaction item."""
    text = msgspec.json.encode(_Sealed(_raw(context.before), context.summary, _raw(context.after))).decode()
    return seal.seal("context", tenant, item_id, text)


def unseal_context(item: Compaction, seal: Seal, tenant: str) -> list[Item] | None:
    """The items that a compaction stands for; None if it is not a sealed context of this server."""
    text = seal.open("context", tenant, item.encrypted_content)
    if text is None:
        return None
    sealed = decode_as(text, _Sealed)
    before, after = ([decode_item(bytes(one)) for one in part] for part in (sealed.before, sealed.after))
    return SealedContext(before, sealed.summary, after).items(item.id)


def _raw(items: Sequence[Item]) -> list[msgspec.Raw]:
    return [msgspec.Raw(encode_item(item)) for item in items]


UNREADABLE = "[Earlier parts of this conversation were compacted by another server and cannot be read here.]"


def unseal_items(items: Iterable[Item], seal: Seal, tenant: str) -> list[Item]:
    """The items as a model reads them: a compaction becomes a developer message with its summary.

    A response's own compaction replaces everything before it. Reasoning that another server has sealed stays
    without content; every model format skips it.
    """
    unsealed: list[Item] = []
    for item in items:
        if isinstance(item, Compaction) and (context := unseal_context(item, seal, tenant)) is not None:
            unsealed = context
        elif (one := _unseal(item, seal, tenant)) is not None:
            unsealed.append(one)
    return unsealed


def _unseal(item: Item, seal: Seal, tenant: str) -> Item | None:
    match item:
        case Reasoning(encrypted_content=str() as sealed) if not item.content:
            text = seal.open("reasoning", tenant, sealed)
            return msgspec.structs.replace(item, content=[ReasoningText(text)]) if text else item
        case Compaction(encrypted_content=""):
            return None  # of a response that ended during its compaction
        case Compaction(encrypted_content=sealed):
            summary = seal.open("compaction", tenant, sealed)
            if summary is None:
                return Message(item.id, "completed", "developer", [InputText(UNREADABLE)])
            return summary_message(item.id, summary) if summary else None
        case _:
            return item


def seal_reasoning(response: Response, seal: Seal, tenant: str) -> Response:
    """The response with encrypted_content in each reasoning item that has none."""
    output = [decode_item(payload) for payload in response.output if isinstance(payload, msgspec.Raw)]
    return msgspec.structs.replace(response, output=[_seal_item(item, seal, tenant) for item in output])


def _seal_item(item: Item, seal: Seal, tenant: str) -> Item:
    if not isinstance(item, Reasoning) or not item.content or item.encrypted_content:
        return item
    text = "".join(part.text for part in item.content)
    sealed = seal.seal("reasoning", tenant, item.id, text)
    return msgspec.structs.replace(item, encrypted_content=sealed)


def with_tagged_id(seal: Seal, tenant: str, request: McpApprovalRequest) -> McpApprovalRequest:
    """The request with the MAC appended to its id."""
    tag = seal.tag("approval", tenant, *_parts(request.id, request))
    return msgspec.structs.replace(request, id=f"{request.id}_{tag}")


def is_tagged(seal: Seal, tenant: str, request: McpApprovalRequest) -> bool:
    """Whether the id has this server's MAC of the call for this tenant."""
    item_id, tag = split_id_tag(request.id)
    return bool(tag) and seal.is_tag(tag, "approval", tenant, *_parts(item_id, request))


def keep_approval_tag(seal: Seal, tenant: str, sent: Item, own: Item, *, stored: bool = False) -> Item:
    """`own`, the copy of `sent` with a new id; a valid approval request gets a MAC for that id."""
    if not isinstance(sent, McpApprovalRequest) or not isinstance(own, McpApprovalRequest):
        return own
    if is_tagged(seal, tenant, sent) or (stored and is_output_id(sent.id)):
        return with_tagged_id(seal, tenant, own)
    return own


def _parts(item_id: str, request: McpApprovalRequest) -> tuple[str, str, str, str]:
    return item_id, request.server_label, request.name, request.arguments
