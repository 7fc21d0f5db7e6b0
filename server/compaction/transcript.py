"""A conversation as plain text, which a model summarises or a summary quotes. Pure."""

import json
from collections.abc import Collection, Sequence

from server.hosted_tools.call_items import items_for_model
from server.protocol.responses.items import (
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    OtherItem,
    item_type,
    plain_text,
)

EXCERPT_CHARACTERS = 200
"""Characters of a retained message that the transcript quotes, to show what an answer refers to."""
ELLIPSIS = "\n[…]\n"


def transcript(items: Sequence[Item], retained_ids: Collection[str]) -> str:
    """Messages, calls and outputs in order, without reasoning; empty if every item is retained.

    Items in `retained_ids` stay in the context and are quoted shortly.
    """
    if all(item.id in retained_ids for item in items):
        return ""
    lines = [_line(item, quoted=item.id in retained_ids) for item in items_for_model(items)]
    return "\n\n".join(filter(None, lines))


def shorten(text: str, characters: int) -> str:
    """The text, or its beginning and end around an ellipsis, of at most so many characters."""
    if len(text) <= characters:
        return text
    if characters < len(ELLIPSIS):
        return text[:characters]
    half = (characters - len(ELLIPSIS)) // 2
    return text[:half] + ELLIPSIS + text[len(text) - half :]


def _line(item: Item, *, quoted: bool) -> str:
    match item:
        case Message(role=role, content=content):
            text = plain_text(content)
            return f"{role}: {shorten(text, EXCERPT_CHARACTERS) if quoted else text}"
        case FunctionCall(name=name, arguments=text) | CustomToolCall(name=name, input=text):
            return f"assistant calls {name}: {text}"
        case FunctionCallOutput(output=output) | CustomToolCallOutput(output=output):
            return f"output of the call: {_output(output)}"
        case OtherItem(fields=fields):
            return f"{item_type(item)}: {json.dumps(fields, ensure_ascii=False)}"
        case _:
            return ""


def _output(output: str | list[ContentPart]) -> str:
    return output if isinstance(output, str) else plain_text(output)
