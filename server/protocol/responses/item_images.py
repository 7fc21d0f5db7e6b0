"""The pictures of an item: those of a message's content and of a tool's output. Pure."""

from collections.abc import Callable, Sequence

import msgspec

from server.protocol.responses.items import (
    ContentPart,
    CustomToolCallOutput,
    FunctionCallOutput,
    InputImage,
    Item,
    Message,
)


def images_of(item: Item) -> list[InputImage]:
    """The item's pictures, in order."""
    return [part for part in _parts(item) if isinstance(part, InputImage)]


def with_images(item: Item, change: Callable[[InputImage], ContentPart]) -> Item:
    """The item with each picture replaced; the same object if nothing changes."""
    before = _parts(item)
    after = [change(part) if isinstance(part, InputImage) else part for part in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return item
    name = "content" if isinstance(item, Message) else "output"
    changed: Item = msgspec.structs.replace(item, **{name: after})
    return changed


def _parts(item: Item) -> Sequence[ContentPart]:
    match item:
        case Message(content=parts):
            return parts
        case FunctionCallOutput(output=list(parts)) | CustomToolCallOutput(output=list(parts)):
            return parts
    return ()
