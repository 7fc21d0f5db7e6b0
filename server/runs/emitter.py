"""Deltas become OpenAI's events, in OpenAI's order, numbered without a gap.

Pure: the same deltas give the same events with the same ids. What it keeps is the item that is open and the
items that are done. Order per item: added, part added, deltas, text done, part done, item done.
"""

from datetime import datetime
from uuid import UUID

from server.dialects.base import Delta, ReasoningDelta, TextDelta
from server.runs.assemble import assemble
from server.runs.states import Ending, EndStatus
from server.wire import events as wire
from server.wire import ids
from server.wire.events import Event, Kind
from server.wire.items import Item, ItemStatus, Message, OutputText, Reasoning, ReasoningText
from server.wire.response import Echo, Response

_TERMINAL: dict[EndStatus, type[wire.ResponseCompleted | wire.ResponseFailed | wire.ResponseIncomplete]] = {
    "completed": wire.ResponseCompleted,
    "failed": wire.ResponseFailed,
    "incomplete": wire.ResponseIncomplete,
    "cancelled": wire.ResponseIncomplete,
}


class Emitter:
    """The events of one response."""

    def __init__(self, response: UUID, created_at: datetime, echo: Echo) -> None:
        self.output: list[Item] = []
        """The items that are done."""
        self.next_seq = 0
        self._response = response
        self._created_at = created_at
        self._echo = echo
        self._open: type[Delta] | None = None
        self._text: list[str] = []

    def begin(self) -> list[Event]:
        """The two events that every stream starts with."""
        running = assemble(self._response, self._created_at, self._echo, "in_progress", [])
        return [
            wire.whole(wire.ResponseCreated(self._number(), running)),
            wire.whole(wire.ResponseInProgress(self._number(), running)),
        ]

    def delta(self, delta: Delta) -> list[Event]:
        """The events for more text; a change from reasoning to answer closes the one and opens the other."""
        events: list[Event] = []
        if self._open is not type(delta):
            events += self._close_item("completed")
            events += self._open_item(type(delta))
        kind = Kind.OUTPUT_TEXT_DELTA if isinstance(delta, TextDelta) else Kind.REASONING_TEXT_DELTA
        self._text.append(delta.text)
        events.append(Event(self._number(), kind, self._index, 0, delta.text))
        return events

    def end(self, ending: Ending) -> tuple[list[Event], Response]:
        """Closes what is open, then the terminal event; also the final response that it carries.

        A completed response always has a message, an empty one if the model said nothing. A cancelled one
        ends with `response.incomplete` whose status says so: OpenAI's SDKs know no other event for it.
        """
        events: list[Event] = []
        completed = ending.status == "completed"
        events += self._close_item("completed" if completed else "incomplete")
        if completed and not any(isinstance(item, Message) for item in self.output):
            events += self._open_item(TextDelta)
            events += self._close_item("completed")
        final = assemble(self._response, self._created_at, self._echo, ending.status, self.output, ending)
        terminal = _TERMINAL[ending.status]
        events.append(wire.whole(terminal(self._number(), final)))
        return events, final

    @property
    def _index(self) -> int:
        """The output index of the open item."""
        return len(self.output)

    def _number(self) -> int:
        number = self.next_seq
        self.next_seq += 1
        return number

    def _item_id(self) -> str:
        prefix = "msg" if self._open is TextDelta else "rs"
        return ids.item_id(prefix, self._response, "o", self._index)

    def _item(self, status: ItemStatus, text: str | None) -> Item:
        """The open item; without text, as it is when it is added."""
        if self._open is TextDelta:
            return Message(
                self._item_id(), status, "assistant", [] if text is None else [OutputText(text=text)]
            )
        return Reasoning(self._item_id(), status, [], [] if text is None else [ReasoningText(text)])

    def _part(self, text: str) -> OutputText | ReasoningText:
        return OutputText(text=text) if self._open is TextDelta else ReasoningText(text)

    def _open_item(self, kind: type[Delta]) -> list[Event]:
        self._open, self._text = kind, []
        item = self._item("in_progress", None)
        return [
            wire.whole(wire.OutputItemAdded(self._number(), self._index, item)),
            wire.whole(wire.ContentPartAdded(self._number(), item.id, self._index, 0, self._part(""))),
        ]

    def _close_item(self, status: ItemStatus) -> list[Event]:
        if self._open is None:
            return []
        text = "".join(self._text)
        item = self._item(status, text)
        done = wire.ReasoningTextDone if self._open is ReasoningDelta else wire.OutputTextDone
        events = [
            wire.whole(done(self._number(), item.id, self._index, 0, text)),
            wire.whole(wire.ContentPartDone(self._number(), item.id, self._index, 0, self._part(text))),
            wire.whole(wire.OutputItemDone(self._number(), self._index, item)),
        ]
        self.output.append(item)
        self._open = None
        return events
