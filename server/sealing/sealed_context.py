"""A whole context in one sealed item: what a compaction within a response carries. Pure.

An item of the compact endpoint stands for what was left out, beside messages that are sent with it. One that
a response tells stands for everything before it: the newest messages and calls, and a summary of the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from server.protocol.responses.items import Compaction, InputText, Item, Message, decode_item, encode_item
from server.protocol.typed import decode_as
from server.sealing.cipher import Seal

SUMMARY_PREFIX = "Earlier parts of this conversation were left out. This is what they said:\n\n"


@dataclass(frozen=True, slots=True)
class SealedContext:
    """What is left of a context, in order."""

    before: Sequence[Item]
    summary: str
    after: Sequence[Item]
    """What is to be answered, and what was called for that."""

    def items(self, place: str) -> list[Item]:
        """As a model reads it; the summary is the developer's message, by the id of the place it was in."""
        told = [summary_message(place, self.summary)] if self.summary else []
        return [*self.before, *told, *self.after]


class _Sealed(msgspec.Struct):
    before: list[msgspec.Raw]
    summary: str
    after: list[msgspec.Raw]


def summary_message(place: str, summary: str) -> Message:
    return Message(place, "completed", "developer", [InputText(SUMMARY_PREFIX + summary)])


def seal_context(window: SealedContext, seal: Seal, tenant: str, place: str) -> str:
    """The content of the item at that place."""
    text = msgspec.json.encode(_Sealed(_raw(window.before), window.summary, _raw(window.after))).decode()
    return seal.seal("context", tenant, place, text)


def unseal_context(item: Compaction, seal: Seal, tenant: str) -> list[Item] | None:
    """What the item stands for; None if it is no window of ours."""
    text = seal.open("context", tenant, item.encrypted_content)
    if text is None:
        return None
    found = decode_as(text, _Sealed)
    before, after = ([decode_item(bytes(one)) for one in part] for part in (found.before, found.after))
    return SealedContext(before, found.summary, after).items(item.id)


def _raw(items: Sequence[Item]) -> list[msgspec.Raw]:
    return [msgspec.Raw(encode_item(item)) for item in items]
