"""Opens sealed reasoning and compactions for the model, and seals reasoning for clients. Pure."""

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
            return _compaction_message(item.id, seal.open("compaction", tenant, sealed))
        case _:
            return item


def _compaction_message(item_id: str, summary: str | None) -> Message | None:
    """A compaction as a developer message; None if its summary is empty."""
    if summary is None:
        return Message(item_id, "completed", "developer", [InputText(UNREADABLE)])
    return summary_message(item_id, summary) if summary else None


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
