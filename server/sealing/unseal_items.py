"""What is sealed, opened for the model, and sealed again for a reader that asks for it. Pure."""

from collections.abc import Iterable

import msgspec

from server.protocol.responses.items import (
    Compaction,
    InputText,
    Item,
    Message,
    Reasoning,
    ReasoningText,
    decode_item,
)
from server.protocol.responses.response import Response
from server.sealing.cipher import Seal
from server.sealing.sealed_context import summary_message, unseal_context

UNREADABLE = "[Earlier parts of this conversation were compacted by another server and cannot be read here.]"


def unseal_items(items: Iterable[Item], seal: Seal, tenant: str) -> list[Item]:
    """Items as a model is given them: what was compacted is told by the developer.

    A compaction within a response stands for everything before it. Sealed reasoning that is not ours stays
    without content, which every model format leaves out.
    """
    found: list[Item] = []
    for item in items:
        if isinstance(item, Compaction) and (window := unseal_context(item, seal, tenant)) is not None:
            found = window
        elif (one := _unseal(item, seal, tenant)) is not None:
            found.append(one)
    return found


def _unseal(item: Item, seal: Seal, tenant: str) -> Item | None:
    match item:
        case Reasoning(encrypted_content=str() as sealed) if not item.content:
            text = seal.open("reasoning", tenant, sealed)
            return msgspec.structs.replace(item, content=[ReasoningText(text)]) if text else item
        case Compaction(encrypted_content=""):
            return None  # one that was broken off
        case Compaction(encrypted_content=sealed):
            return _compaction_message(item.id, seal.open("compaction", tenant, sealed))
        case _:
            return item


def _compaction_message(item_id: str, summary: str | None) -> Message | None:
    """A compaction as the developer's message; None if nothing was left out."""
    if summary is None:
        return Message(item_id, "completed", "developer", [InputText(UNREADABLE)])
    return summary_message(item_id, summary) if summary else None


def seal_reasoning(response: Response, seal: Seal, tenant: str) -> Response:
    """The response as it is read back, its reasoning sealed, too, where it was not from the start."""
    output = [decode_item(payload) for payload in response.output if isinstance(payload, msgspec.Raw)]
    return msgspec.structs.replace(response, output=[_seal_item(item, seal, tenant) for item in output])


def _seal_item(item: Item, seal: Seal, tenant: str) -> Item:
    if not isinstance(item, Reasoning) or not item.content or item.encrypted_content:
        return item
    text = "".join(part.text for part in item.content)
    sealed = seal.seal("reasoning", tenant, item.id, text)
    return msgspec.structs.replace(item, encrypted_content=sealed)
