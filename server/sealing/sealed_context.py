"""A compacted context in one sealed item, as `context_management` makes it. Pure.

The compact endpoint's item stands for the summarised items beside retained messages. The item of a response
stands for everything before it: retained messages and calls, and a summary of the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from server.protocol.decode import decode_as
from server.protocol.responses.items import Compaction, InputText, Item, Message, decode_item, encode_item
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
        """As a model reads it: the summary is a developer message with the compaction item's id."""
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
