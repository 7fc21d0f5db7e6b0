"""Items as a log tells of them: what each began with. Pure."""

import msgspec

from server.dialects.base import CallStart, MessageStart, ReasoningDelta
from server.wire import events as wire
from server.wire.events import Kind
from server.wire.items import CustomToolCall, FunctionCall, Item, Reasoning

decode_added = msgspec.json.Decoder(wire.OutputItemAdded).decode
decode_done = msgspec.json.Decoder(wire.OutputItemDone).decode


def begun_by(item: Item) -> tuple[Kind, MessageStart | ReasoningDelta | CallStart]:
    """What an item began with that was told of."""
    match item:
        case Reasoning():
            return Kind.REASONING_TEXT_DELTA, ReasoningDelta("")
        case FunctionCall():
            call = CallStart(item.name, item.call_id, "function", item.namespace or None)
            return Kind.FUNCTION_CALL_ARGUMENTS_DELTA, call
        case CustomToolCall():
            call = CallStart(item.name, item.call_id, "custom", item.namespace or None)
            return Kind.CUSTOM_TOOL_CALL_INPUT_DELTA, call
        case _:
            phase = getattr(item, "phase", None) or None
            return Kind.OUTPUT_TEXT_DELTA, MessageStart(phase)
