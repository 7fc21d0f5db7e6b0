"""Turns a parser's deltas into OpenAI's stream events, in OpenAI's order, numbered without a gap.

Pure: the same deltas give the same events with the same ids. The state is the open item and the finished
items. Order per item: added, part added, deltas, text done, part done, item done; calls have no parts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from msgspec import UNSET

from server.generation.finish_details import FinishDetails
from server.generation.item_starts import decode_added, decode_done, item_start
from server.generation.reasoning_summary import ReasoningSummary
from server.generation.response_builder import build_response
from server.generation.token_dump import TokenDump
from server.generation.tool_call_events import ToolCallEvents
from server.hosted_tools.offered_tools import DueCall, HostedTools, ToolResult
from server.model_formats.interface import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    MessageStart,
    ReasoningDelta,
    TextDelta,
)
from server.protocol import ids
from server.protocol.responses import events as wire
from server.protocol.responses.events import Event, Kind, event_type
from server.protocol.responses.hosted_items import HostedCall, McpListTools
from server.protocol.responses.items import (
    Compaction,
    CustomToolCall,
    FunctionCall,
    Item,
    ItemStatus,
    Logprob,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    SummaryText,
)
from server.protocol.responses.response import Echo, Response
from server.protocol.responses.states import Ending, EndStatus

_TERMINAL: dict[EndStatus, type[wire.ResponseCompleted | wire.ResponseFailed | wire.ResponseIncomplete]] = {
    "completed": wire.ResponseCompleted,
    "failed": wire.ResponseFailed,
    "incomplete": wire.ResponseIncomplete,
    "cancelled": wire.ResponseIncomplete,
}


@dataclass(slots=True)
class _OpenItem:
    """The item that the current deltas belong to."""

    start: MessageStart | ReasoningDelta | CallStart
    """The delta that opened it; of a ReasoningDelta only the type counts."""
    kind: Kind
    """The kind of its delta events."""
    id: str
    call_id: str
    seal: Callable[[str, str], str] | None = None
    summary: ReasoningSummary | None = None
    text: list[str] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)

    def item(self, status: ItemStatus, text: str | None) -> Item:
        """The item with that text; None gives the item of `response.output_item.added`."""
        match self.start:
            case MessageStart(phase):
                content = [] if text is None else [self._output_text(text)]
                return Message(self.id, status, "assistant", [*content], phase or UNSET)
            case ReasoningDelta():
                return self._reasoning(status, text)
            case CallStart(name, _, "function", namespace):
                return FunctionCall(self.id, status, self.call_id, name, text or "", namespace or UNSET)
            case CallStart(name, _, _, namespace):
                return CustomToolCall(self.id, status, self.call_id, name, text or "", namespace or UNSET)

    def part(self, text: str) -> OutputText | ReasoningText | None:
        """The single part of a message or of reasoning; calls have no parts."""
        match self.start:
            case MessageStart():
                return self._output_text(text)
            case ReasoningDelta():
                return ReasoningText(text)
            case CallStart():
                return None

    def _reasoning(self, status: ItemStatus, text: str | None) -> Reasoning:
        if text is None:
            return Reasoning(self.id, status, [], [])
        sealed = self.seal(self.id, text) if self.seal else UNSET
        summary = [SummaryText(text)] if self.summary else []
        return Reasoning(self.id, status, summary, [ReasoningText(text)], sealed)

    def _output_text(self, text: str) -> OutputText:
        return OutputText(text=text, logprobs=self.logprobs)


class EventEmitter:
    """The events of one response."""

    def __init__(
        self,
        response: UUID,
        created_at: datetime,
        echo: Echo,
        seal: Callable[[str, str], str] | None = None,
        hosted: HostedTools = HostedTools(),  # noqa: B008 - frozen
        *,
        summarizes_reasoning: bool = False,
    ) -> None:
        """`seal` encrypts a reasoning item's text, deterministically, from its id and text.

        In the model's output the label of a server in `hosted` is the namespace of its tools. With
        `summarizes_reasoning` each reasoning text is repeated as its summary.
        """
        self._summarizes_reasoning = summarizes_reasoning
        self.output: list[Item] = []
        """Finished items, and the server's own calls from the moment they are added."""
        self.next_seq = 0
        self._compaction: str | None = None
        """The id of the open compaction item."""
        self._answers = True
        self._tool_calls = ToolCallEvents(response, hosted, self.output, self._new_seq)
        self._response = response
        self._created_at = created_at
        self._echo = echo
        self._seal = seal
        self._open: _OpenItem | None = None
        self._call_ids: set[str] = set()
        """Used ids: a model may repeat one, and then the client could not tell the calls apart."""

    def created(self) -> list[Event]:
        """`response.created`, and `response.queued` in the background."""
        if not self._echo.background:
            return [
                wire.whole_event(
                    wire.ResponseCreated(self._new_seq(), self._unfinished_response("in_progress"))
                )
            ]
        queued = self._unfinished_response("queued")
        return [
            wire.whole_event(wire.ResponseCreated(self._new_seq(), queued)),
            wire.whole_event(wire.ResponseQueued(self._new_seq(), queued)),
        ]

    @property
    def pending_calls(self) -> Sequence[int]:
        """The output indices of the server's calls that have no result yet."""
        return self._tool_calls.pending_calls

    def due_calls(self) -> list[DueCall]:
        """The pending calls, and which of them the request allows."""
        return self._tool_calls.due_calls()

    def in_progress(self) -> list[Event]:
        """`response.in_progress`, then the events of tool lists and approved calls."""
        progress = wire.ResponseInProgress(self._new_seq(), self._unfinished_response("in_progress"))
        return [wire.whole_event(progress), *self._tool_calls.start()]

    def token_ids(self, side: Literal["prompt", "output"], token_ids: Sequence[int]) -> Event:
        """The token ids themselves; the events of their text follow."""
        return wire.whole_event(wire.TokenIdsEvent(self._new_seq(), side, list(token_ids)))

    def delta(self, delta: Delta, logprobs: Sequence[Logprob] = ()) -> list[Event]:
        """The events of one delta, with those of closing and opening an item if its kind is another one.

        `logprobs` are those of the tokens that begin in its text.
        """
        match delta:
            case TextDelta(text):
                events = self._ensure_open(Kind.OUTPUT_TEXT_DELTA, MessageStart())
            case ReasoningDelta(text):
                events = self._ensure_open(Kind.REASONING_TEXT_DELTA, delta)
            case MessageStart():
                return self._open_item(Kind.OUTPUT_TEXT_DELTA, delta)
            case CallStart(namespace=str(label)) if self._tool_calls.serves(label):
                events = self._close(self._cut_off_status) + self._tool_calls.finish_arguments()
                return events + self._tool_calls.start_draft(
                    label, delta.name, is_code=delta.kind == "custom"
                )
            case CallDelta(text) if self._tool_calls.has_draft:
                self._tool_calls.append(text)
                return []
            case CallStart(kind="function"):
                return self._open_item(Kind.FUNCTION_CALL_ARGUMENTS_DELTA, delta)
            case CallStart():
                return self._open_item(Kind.CUSTOM_TOOL_CALL_INPUT_DELTA, delta)
            case CallDelta(text):
                events = []
            case CallEnd():
                return self._close("completed")
        events.append(self._append(text, logprobs))
        if self._open is not None and self._open.summary is not None:
            events += self._open.summary.append(text)
        return events

    def start_compaction(self, *, answers: bool) -> list[Event]:
        """Adds the compaction item. Unless the response `answers`, it is the only output."""
        index = self._index
        self._answers = answers
        self._compaction = ids.item_id("cmp", self._response, "o", index)
        item = Compaction(self._compaction, "in_progress", "")
        return [
            wire.whole_event(wire.OutputItemAdded(self._new_seq(), index, item)),
            wire.whole_event(wire.CompactionCompacting(self._new_seq(), item.id, index)),
        ]

    def end_compaction(self, seal: Callable[[str], str], status: ItemStatus = "completed") -> list[Event]:
        """Finishes the compaction item; `seal` gives its encrypted content from its id."""
        assert self._compaction is not None
        item = Compaction(self._compaction, status, seal(self._compaction))
        events = [wire.whole_event(wire.OutputItemDone(self._new_seq(), self._index, item))]
        self.output.append(item)
        self._compaction = None
        return events

    def close_turn(self) -> list[Event]:
        """Closes the open item at the end of a turn that another turn follows."""
        return self._close(self._cut_off_status) + self._tool_calls.finish_arguments()

    def finish_call(self, index: int, outcome: ToolResult) -> list[Event]:
        """The events of a pending call's result."""
        return self._tool_calls.finish_call(index, outcome)

    def restore(self, events: Iterable[Event]) -> None:
        """Restores the state from logged events, so that an interrupted response can be closed correctly."""
        for event in events:
            if event.kind is not Kind.WHOLE:
                _, text, logprobs = wire.delta_of(event)
                self._append(text, logprobs)
                if self._open is not None and self._open.summary is not None:
                    self._open.summary.append(text)
            elif event_type(event) == "response.output_item.added":
                item = decode_added(event.body).item
                self._close("completed")
                if isinstance(item, Compaction):
                    self._compaction = item.id
                elif not self._tool_calls.restore(item):
                    self._open_item(*item_start(item))
            elif event_type(event) == "response.output_item.done":
                self._open = self._compaction = None
                done = decode_done(event.body)
                if done.output_index < len(self.output):
                    self.output[done.output_index] = done.item
                else:
                    self.output.append(done.item)
                if done.output_index in self._tool_calls.pending_calls:
                    self._tool_calls.pending_calls.remove(done.output_index)

    def end(
        self, ending: Ending, token_dump: TokenDump | None = None, details: FinishDetails | None = None
    ) -> tuple[list[Event], Response]:
        """Closes the open items and emits the terminal event; also returns the final response in it.

        A completed response always has a message or a call: an empty message if the model wrote nothing
        although it was asked for output. A cancelled one ends with `response.incomplete` and status
        `cancelled`, because OpenAI's SDKs have no event of their own for it. `token_dump` and `details`
        add their fields.
        """
        completed = ending.status == "completed"
        events = self._close(self._cut_off_status if completed else "incomplete")
        events += self._tool_calls.finish_arguments() + self._tool_calls.give_up()
        no_answer = Reasoning | Compaction | McpListTools | HostedCall
        lacks_answer = self._answers and all(isinstance(item, no_answer) for item in self.output)
        if completed and ending.output_tokens and lacks_answer:
            events += self._open_item(Kind.OUTPUT_TEXT_DELTA, MessageStart())
            events += self._close("completed")
        final = build_response(
            self._response, self._created_at, self._echo, ending.status, self.output, ending
        )
        if token_dump is not None:
            final = token_dump.add_to(final, ending.turns)
        if details is not None:
            final = details.add_to(final)
        terminal = _TERMINAL[ending.status]
        events.append(wire.whole_event(terminal(self._new_seq(), final)))
        return events, final

    @property
    def _index(self) -> int:
        """The output index of the open item."""
        return len(self.output)

    def _unfinished_response(self, status: Literal["queued", "in_progress"]) -> Response:
        return build_response(self._response, self._created_at, self._echo, status, [])

    def _new_seq(self) -> int:
        number = self.next_seq
        self.next_seq += 1
        return number

    def _append(self, text: str, logprobs: Sequence[Logprob]) -> Event:
        assert self._open is not None, "a delta of a call that has not begun"
        self._open.text.append(text)
        if self._open.kind is Kind.OUTPUT_TEXT_DELTA:
            self._open.logprobs += logprobs
            return wire.text_delta(self._new_seq(), self._index, text, logprobs)
        return Event(self._new_seq(), self._open.kind, self._index, 0, text)

    def _ensure_open(self, kind: Kind, start: MessageStart | ReasoningDelta) -> list[Event]:
        """Opens an item for deltas of this kind, unless the open one is of that kind."""
        if self._open is not None and self._open.kind is kind:
            return []
        return self._open_item(kind, start)

    def _open_item(self, kind: Kind, start: MessageStart | ReasoningDelta | CallStart) -> list[Event]:
        events = self._close(self._cut_off_status)
        call_id = ids.call_id(self._response, self._index)
        if isinstance(start, CallStart):
            if start.call_id and start.call_id not in self._call_ids:
                call_id = start.call_id
            self._call_ids.add(call_id)
        item_id = ids.item_id(wire.ITEM_PREFIX[kind], self._response, "o", self._index)
        self._open = _OpenItem(start, kind, item_id, call_id, self._seal)
        item = self._open.item("in_progress", None)
        events.append(wire.whole_event(wire.OutputItemAdded(self._new_seq(), self._index, item)))
        if (part := self._open.part("")) is not None:
            events.append(
                wire.whole_event(wire.ContentPartAdded(self._new_seq(), item_id, self._index, 0, part))
            )
        if self._summarizes_reasoning and isinstance(start, ReasoningDelta):
            self._open.summary = ReasoningSummary(item_id, self._index, self._new_seq)
            events += self._open.summary.begin()
        return events

    @property
    def _cut_off_status(self) -> ItemStatus:
        """The open item's status if another item begins: a call without a CallEnd is incomplete."""
        in_call = self._open is not None and isinstance(self._open.start, CallStart)
        return "incomplete" if in_call or self._tool_calls.has_draft else "completed"

    def _close(self, status: ItemStatus) -> list[Event]:
        if self._tool_calls.has_draft:
            return self._tool_calls.close_draft(status)
        if self._compaction is not None:
            return self.end_compaction(lambda _id: "", "incomplete")
        if self._open is None:
            return self._tool_calls.finish_arguments()
        text = "".join(self._open.text)
        item = self._open.item(status, text)
        events = [wire.whole_event(self._text_done(item, text))]
        if (part := self._open.part(text)) is not None:
            events.append(
                wire.whole_event(wire.ContentPartDone(self._new_seq(), item.id, self._index, 0, part))
            )
        if self._open.summary is not None:
            events += self._open.summary.end(text)
        events.append(wire.whole_event(wire.OutputItemDone(self._new_seq(), self._index, item)))
        self.output.append(item)
        self._open = None
        return events

    def _text_done(self, item: Item, text: str) -> wire.WholeEvent:
        number = self._new_seq()
        match item:
            case Reasoning():
                return wire.ReasoningTextDone(number, item.id, self._index, 0, text)
            case FunctionCall():
                return wire.FunctionCallArgumentsDone(number, item.id, item.name, self._index, text)
            case CustomToolCall():
                return wire.CustomToolCallInputDone(number, item.id, self._index, text)
            case _:
                assert self._open is not None
                return wire.OutputTextDone(number, item.id, self._index, 0, text, self._open.logprobs)
