"""A conversation as text that a model or a person can read. Pure."""

import json
from collections.abc import Collection, Sequence

from server.hosted_tools.tool_specs import items_for_model
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

SHOWN = 200
"""Characters of a message that is told elsewhere, to show what was answered."""
CUT = "\n[…]\n"


def transcript(items: Sequence[Item], told_already: Collection[str]) -> str:
    """Who said what, in order, without thoughts; empty if all of it is told elsewhere anyway.

    `told_already` are the ids of such items.
    """
    if all(item.id in told_already for item in items):
        return ""
    told = [_told(item, shortly=item.id in told_already) for item in items_for_model(items)]
    return "\n\n".join(line for line in told if line)


def cut(text: str, characters: int) -> str:
    """The text, or its beginning and end, which together are no longer than that."""
    if len(text) <= characters:
        return text
    if characters < len(CUT):
        return text[:characters]
    half = (characters - len(CUT)) // 2
    return text[:half] + CUT + text[len(text) - half :]


def _told(item: Item, *, shortly: bool) -> str:
    match item:
        case Message(role=role, content=content):
            text = plain_text(content)
            return f"{role}: {cut(text, SHOWN) if shortly else text}"
        case FunctionCall(name=name, arguments=given) | CustomToolCall(name=name, input=given):
            return f"assistant calls {name}: {given}"
        case FunctionCallOutput(output=output) | CustomToolCallOutput(output=output):
            return f"output of the call: {_output(output)}"
        case OtherItem(fields=fields):
            return f"{item_type(item)}: {json.dumps(fields, ensure_ascii=False)}"
        case _:
            return ""


def _output(output: str | list[ContentPart]) -> str:
    return output if isinstance(output, str) else plain_text(output)
