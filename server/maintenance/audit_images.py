"""The invariant of pictures: what items name is there and sound, and goes with the last item. Pure."""

from collections.abc import Collection, Iterable, Iterator

import msgspec

from server.maintenance.audit_event_log import Finding
from server.protocol import ids
from server.protocol.input_images import CONTENT_PREFIX, content_of, parse_content
from server.protocol.responses.item_images import images_of
from server.protocol.responses.items import decode_item
from server.store.audit_images import ConversationImages, UnsoundImage

_SAID = {
    "damaged": "has other bytes than its digest and size say",
    "unused": "is kept, but no item names it",
}
_MAY_NAME = f'"content":"{CONTENT_PREFIX}'


def check_uses(items: Iterable[tuple[str, str]], uses: Collection[tuple[str, bytes]]) -> Iterator[Finding]:
    """The violations by items, as id and JSON, beside the uses that are stored for them."""
    named = {(item_id, digest) for item_id, payload in items for digest in _named(payload)}
    for item_id, digest in sorted(named - set(uses)):
        yield "I17", f"its item {item_id} names {content_of(digest)}, which is not kept for it."
    for item_id, digest in sorted(set(uses) - named):
        yield "I17", f"{content_of(digest)} is kept for its item {item_id}, which does not name it."


def check_conversation(conversation: ConversationImages) -> list[Finding]:
    """The violations in one conversation."""
    name = ids.conversation_id(conversation.id)
    return [
        (invariant, f"of {name}: {sentence}")
        for invariant, sentence in check_uses(conversation.items, conversation.uses)
    ]


def check_image(image: UnsoundImage) -> Finding:
    return "I17", f"the picture {content_of(image.digest)} {_SAID[image.problem]}."


def _named(payload: str) -> Iterator[bytes]:
    """The stored pictures that an item names; none of a damaged item, which is found elsewhere."""
    if _MAY_NAME not in payload:
        return
    try:
        item = decode_item(payload)
    except msgspec.MsgspecError:
        return
    for part in images_of(item):
        digest = parse_content(part.content)
        if digest is not None:
            yield digest
