"""The events of one output item that the model writes: message, reasoning with its summary, client's call.

Pure. Order: item added, part added, deltas, text done, part done, item done; calls have no parts. A summary
repeats the reasoning while it is streamed: part added, text deltas, text done, part done.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec

from msgspec import UNSET

from server.generation.client_tools import client_call, tool_of
from server.model_formats.model_format import CallStart, MessageStart, ReasoningDelta
from server.protocol.responses import events as wire
from server.protocol.responses.events import Event, Kind
from server.protocol.responses.items import (
    ApplyPatchCall,
    CustomToolCall,
    FunctionCall,
    Item,
    ItemStatus,
    LocalShellCall,
    Logprob,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    ShellCall,
    SummaryText,
)

ItemStart = MessageStart | ReasoningDelta | CallStart
"""The delta that an item began with; of a ReasoningDelta only the type counts."""
_WORDS = re.compile(r"(?:\S{0,31}\s|\S{32})*+")
"""Whole words, and pieces of 32 characters of long ones, for languages without spaces."""
_P = ParamSpec("_P")


class EventNumbers:
    """Numbers the events of one response without a gap."""

    def __init__(self, next_seq: int) -> None:
        self.next_seq = next_seq

    def take(self) -> int:
        number = self.next_seq
        self.next_seq += 1
        return number

    def event(
        self, kind: Callable[Concatenate[int, _P], wire.WholeEvent], *args: _P.args, **kwargs: _P.kwargs
    ) -> Event:
        return wire.whole_event(kind(self.take(), *args, **kwargs))


def command_events(numbers: EventNumbers, index: int, call: Item) -> list[Event]:
    """The events of each command of a shell call that is whole; none for another call."""
    return [
        event
        for position, command in enumerate(call.action.commands if isinstance(call, ShellCall) else ())
        for event in (
            numbers.event(wire.ShellCommandAdded, index, position, ""),
            numbers.event(wire.ShellCommandDelta, index, position, command),
            numbers.event(wire.ShellCommandDone, index, position, command),
        )
    ]


@dataclass(slots=True)
class WrittenItem:
    """The item that the current deltas belong to. `open`, `append` and `close` return its events."""

    numbers: EventNumbers
    start: ItemStart
    id: str
    index: int
    call_id: str
    seal: Callable[[str, str], str] | None = None
    """From a reasoning item's id and text: its encrypted content."""
    has_summary: bool = False
    is_client_tool: bool = False
    """A call of one of OpenAI's tools that the client runs, whose item is whole when it is done."""
    text: list[str] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    kind: Kind = field(init=False)
    _partial_word: str = ""

    def __post_init__(self) -> None:
        self.kind = delta_kind(self.start)
        self.has_summary = self.has_summary and isinstance(self.start, ReasoningDelta)

    def open(self) -> list[Event]:
        numbers = self.numbers
        events = [numbers.event(wire.OutputItemAdded, self.index, self._item("in_progress", None))]
        if (part := self._part("")) is not None:
            events.append(numbers.event(wire.ContentPartAdded, self.id, self.index, 0, part))
        if self.has_summary:
            summary = SummaryText("")
            events.append(numbers.event(wire.ReasoningSummaryPartAdded, self.id, self.index, 0, summary))
        return events

    def append(self, text: str, logprobs: Sequence[Logprob]) -> list[Event]:
        """The delta of this text, and that of the summary's words which it completes."""
        self.text.append(text)
        if self.is_client_tool:
            return []
        if self.kind is Kind.OUTPUT_TEXT_DELTA:
            self.logprobs += logprobs
            return [wire.text_delta(self.numbers.take(), self.index, text, logprobs)]
        events = [Event(self.numbers.take(), self.kind, self.index, 0, text)]
        return events + self._append_summary(text) if self.has_summary else events

    def close(self, status: ItemStatus) -> tuple[Item, list[Event]]:
        text = "".join(self.text)
        item = self._item(status, text)
        if self.is_client_tool:
            events = command_events(self.numbers, self.index, item)
            return item, [*events, self.numbers.event(wire.OutputItemDone, self.index, item)]
        events = [wire.whole_event(self._text_done(item, text))]
        if (part := self._part(text)) is not None:
            events.append(self.numbers.event(wire.ContentPartDone, self.id, self.index, 0, part))
        if self.has_summary:
            events += self._close_summary(text)
        events.append(self.numbers.event(wire.OutputItemDone, self.index, item))
        return item, events

    def _append_summary(self, text: str) -> list[Event]:
        """Deltas are whole words, cut by the text alone, so a resumed run continues where its log ends."""
        text = self._partial_word + text
        words = _WORDS.match(text)
        end = words.end() if words else 0
        self._partial_word = text[end:]
        return self._summary_delta(text[:end])

    def _summary_delta(self, text: str) -> list[Event]:
        if not text:
            return []
        return [self.numbers.event(wire.ReasoningSummaryTextDelta, self.id, self.index, 0, text)]

    def _close_summary(self, text: str) -> list[Event]:
        event, position = self.numbers.event, (self.id, self.index, 0)
        return [
            *self._summary_delta(self._partial_word),
            event(wire.ReasoningSummaryTextDone, *position, text),
            event(wire.ReasoningSummaryPartDone, *position, SummaryText(text)),
        ]

    def _item(self, status: ItemStatus, text: str | None) -> Item:
        """The item with that text; None gives the item of `response.output_item.added`."""
        match self.start:
            case MessageStart(phase):
                content = [] if text is None else [OutputText(text=text, logprobs=self.logprobs)]
                return Message(self.id, status, "assistant", [*content], phase or UNSET)
            case ReasoningDelta():
                if text is None:
                    return Reasoning(self.id, status, [], [])
                sealed = self.seal(self.id, text) if self.seal else UNSET
                summary = [SummaryText(text)] if self.has_summary else []
                return Reasoning(self.id, status, summary, [ReasoningText(text)], sealed)
            case CallStart(name) if self.is_client_tool:
                return client_call(name, self.id, status, self.call_id, text or "")
            case CallStart(name, _, "function", namespace):
                return FunctionCall(self.id, status, self.call_id, name, text or "", namespace or UNSET)
            case CallStart(name, _, _, namespace):
                return CustomToolCall(self.id, status, self.call_id, name, text or "", namespace or UNSET)

    def _part(self, text: str) -> OutputText | ReasoningText | None:
        """The single part of a message or of reasoning; calls have no parts."""
        match self.start:
            case MessageStart():
                return OutputText(text=text, logprobs=self.logprobs)
            case ReasoningDelta():
                return ReasoningText(text)
            case CallStart():
                return None

    def _text_done(self, item: Item, text: str) -> wire.WholeEvent:
        number = self.numbers.take()
        match item:
            case Reasoning():
                return wire.ReasoningTextDone(number, self.id, self.index, 0, text)
            case FunctionCall():
                return wire.FunctionCallArgumentsDone(number, self.id, item.name, self.index, text)
            case CustomToolCall():
                return wire.CustomToolCallInputDone(number, self.id, self.index, text)
            case _:
                return wire.OutputTextDone(number, self.id, self.index, 0, text, self.logprobs)


def delta_kind(start: ItemStart) -> Kind:
    match start:
        case MessageStart():
            return Kind.OUTPUT_TEXT_DELTA
        case ReasoningDelta():
            return Kind.REASONING_TEXT_DELTA
        case CallStart(kind="function"):
            return Kind.FUNCTION_CALL_ARGUMENTS_DELTA
        case CallStart():
            return Kind.CUSTOM_TOOL_CALL_INPUT_DELTA


def item_start(item: Item) -> ItemStart:
    """The delta that a logged item began with."""
    match item:
        case Reasoning():
            return ReasoningDelta("")
        case ShellCall() | LocalShellCall() | ApplyPatchCall():
            return CallStart(tool_of(item), item.call_id)
        case FunctionCall():
            return CallStart(item.name, item.call_id, "function", item.namespace or None)
        case CustomToolCall():
            return CallStart(item.name, item.call_id, "custom", item.namespace or None)
        case _:
            return MessageStart(getattr(item, "phase", None) or None)
