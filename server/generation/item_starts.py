"""Output items as the event log has them: how each one began. Pure."""

from collections.abc import Iterable

import msgspec

from server.model_formats.interface import CallStart, MessageStart, ReasoningDelta
from server.protocol.responses import events as wire
from server.protocol.responses.events import Event, Kind, event_type
from server.protocol.responses.items import CustomToolCall, FunctionCall, Item, Reasoning

decode_added = msgspec.json.Decoder(wire.OutputItemAdded).decode
decode_done = msgspec.json.Decoder(wire.OutputItemDone).decode


def has_summaries(events: Iterable[Event]) -> bool | None:
    """Whether a log's reasoning has summaries; None if the log has no reasoning."""
    without: bool | None = None
    for event in events:
        kind = event_type(event)
        if kind == "response.reasoning_summary_part.added":
            return True
        if kind == "response.reasoning_text.delta":
            without = False
    return without


def item_start(item: Item) -> tuple[Kind, MessageStart | ReasoningDelta | CallStart]:
    """The kind of an added item's deltas, and the delta that the item began with."""
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
