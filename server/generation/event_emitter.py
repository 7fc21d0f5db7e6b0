"""Deltas become OpenAI's events, in OpenAI's order, numbered without a gap.

Pure: the same deltas give the same events with the same ids. What it keeps is the item that is open and the
items that are done. Order per item: added, part added, deltas, text done, part done, item done; calls have no
parts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from msgspec import UNSET

from server.generation.finish_details import FinishDetails
from server.generation.item_starts import begun_by, decode_added, decode_done
from server.generation.reasoning_summary import Summary
from server.generation.response_builder import assemble
from server.generation.token_dump import TokenDump
from server.generation.tool_call_events import ToolCallEvents
from server.hosted_tools.tool_specs import DueCall, HostedTools, ToolResult
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
    """The item that deltas go to."""

    begun: MessageStart | ReasoningDelta | CallStart
    """What it began with; of reasoning only the type counts."""
    kind: Kind
    """Of its deltas."""
    id: str
    call_id: str
    seal: Callable[[str, str], str] | None = None
    summary: Summary | None = None
    """There if reasoning is its own summary."""
    text: list[str] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)

    def item(self, status: ItemStatus, text: str | None) -> Item:
        """The item with that text; with none, as it is when it is added."""
        match self.begun:
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
        """The only part of a message or of reasoning; a call has none."""
        match self.begun:
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
        summarizes: bool = False,
    ) -> None:
        """`seal` gives the sealed form of a reasoning item's text, always the same one. The tools of each
        server in `hosted` are a group of its name to the model. What `summarizes` tells each reasoning's
        text as its summary, too.
        """
        self._summarizes = summarizes
        self.output: list[Item] = []
        """The items that are done, and the server's calls from their beginning on."""
        self.next_seq = 0
        self._compaction: str | None = None
        """The id of the compaction that is being made."""
        self._answers = True
        self._hosted = ToolCallEvents(response, hosted, self.output, self._number)
        self._response = response
        self._created_at = created_at
        self._echo = echo
        self._seal = seal
        self._open: _OpenItem | None = None
        self._call_ids: set[str] = set()
        """Those that were told: a model may give one twice, which nobody could answer."""

    def begin(self) -> list[Event]:
        """What a stream starts with: it was created, and waits if it is one for the background."""
        if not self._echo.background:
            return [wire.whole_event(wire.ResponseCreated(self._number(), self._unended("in_progress")))]
        queued = self._unended("queued")
        return [
            wire.whole_event(wire.ResponseCreated(self._number(), queued)),
            wire.whole_event(wire.ResponseQueued(self._number(), queued)),
        ]

    @property
    def pending(self) -> Sequence[int]:
        """The places of calls that are to be made, or are being made."""
        return self._hosted.pending

    def due(self) -> list[DueCall]:
        """The pending calls, and which of them the request allows."""
        return self._hosted.due()

    def start(self) -> list[Event]:
        """It is being generated; and what is told before the model says anything."""
        progress = wire.ResponseInProgress(self._number(), self._unended("in_progress"))
        return [wire.whole_event(progress), *self._hosted.begin()]

    def tokens(self, side: Literal["prompt", "output"], token_ids: Sequence[int]) -> Event:
        """They were given or came; what they say is told by the events after this one."""
        return wire.whole_event(wire.TokenIdsEvent(self._number(), side, list(token_ids)))

    def delta(self, delta: Delta, logprobs: Sequence[Logprob] = ()) -> list[Event]:
        """The events of one delta; a change from one kind of item to another closes and opens them.

        The logprobs are those of the tokens that begin in its text.
        """
        match delta:
            case TextDelta(text):
                events = self._open_unless(Kind.OUTPUT_TEXT_DELTA, MessageStart())
            case ReasoningDelta(text):
                events = self._open_unless(Kind.REASONING_TEXT_DELTA, delta)
            case MessageStart():
                return self._change_to(Kind.OUTPUT_TEXT_DELTA, delta)
            case CallStart(namespace=str(label)) if self._hosted.serves(label):
                events = self._close(self._status_when_cut_off) + self._hosted.rest()
                return events + self._hosted.write(label, delta.name, is_code=delta.kind == "custom")
            case CallDelta(text) if self._hosted.writing:
                self._hosted.more(text)
                return []
            case CallStart(kind="function"):
                return self._change_to(Kind.FUNCTION_CALL_ARGUMENTS_DELTA, delta)
            case CallStart():
                return self._change_to(Kind.CUSTOM_TOOL_CALL_INPUT_DELTA, delta)
            case CallDelta(text):
                events = []
            case CallEnd():
                return self._close("completed")
        events.append(self._more(text, logprobs))
        if self._open is not None and self._open.summary is not None:
            events += self._open.summary.more(text)
        return events

    def compacting(self, *, answers: bool) -> list[Event]:
        """A compaction of the context begins; unless the response `answers`, nothing follows it."""
        index = self._index
        self._answers = answers
        self._compaction = ids.item_id("cmp", self._response, "o", index)
        item = Compaction(self._compaction, "in_progress", "")
        return [
            wire.whole_event(wire.OutputItemAdded(self._number(), index, item)),
            wire.whole_event(wire.CompactionCompacting(self._number(), item.id, index)),
        ]

    def compacted(self, seal: Callable[[str], str], status: ItemStatus = "completed") -> list[Event]:
        """It is made; `seal` gives its content by its id."""
        assert self._compaction is not None
        item = Compaction(self._compaction, status, seal(self._compaction))
        events = [wire.whole_event(wire.OutputItemDone(self._number(), self._index, item))]
        self.output.append(item)
        self._compaction = None
        return events

    def rest(self) -> list[Event]:
        """Closes what is open at the end of a turn that more turns follow."""
        return self._close(self._status_when_cut_off) + self._hosted.rest()

    def called(self, index: int, outcome: ToolResult) -> list[Event]:
        """What came of a pending call."""
        return self._hosted.called(index, outcome)

    def retell(self, told: Iterable[Event]) -> None:
        """Takes over what a log says was told, so that its open item can be closed and nothing be lost."""
        for event in told:
            if event.kind is not Kind.WHOLE:
                _, text, logprobs = wire.delta_of(event)
                self._more(text, logprobs)
                if self._open is not None and self._open.summary is not None:
                    self._open.summary.more(text)
            elif event_type(event) == "response.output_item.added":
                item = decode_added(event.body).item
                self._close("completed")
                if isinstance(item, Compaction):
                    self._compaction = item.id
                elif not self._hosted.retell(item):
                    self._change_to(*begun_by(item))
            elif event_type(event) == "response.output_item.done":
                self._open = self._compaction = None
                done = decode_done(event.body)
                if done.output_index < len(self.output):
                    self.output[done.output_index] = done.item
                else:
                    self.output.append(done.item)
                if done.output_index in self._hosted.pending:
                    self._hosted.pending.remove(done.output_index)

    def end(
        self, ending: Ending, raw: TokenDump | None = None, facts: FinishDetails | None = None
    ) -> tuple[list[Event], Response]:
        """Closes what is open, then the terminal event; also the final response that it carries.

        A completed response always has a message or a call, an empty message if the model said nothing,
        unless it was not asked for a token. A
        cancelled one ends with `response.incomplete` whose status says so: OpenAI's SDKs know no other event
        for it. `raw` and `facts` are told with it.
        """
        completed = ending.status == "completed"
        events = self._close(self._status_when_cut_off if completed else "incomplete")
        events += self._hosted.rest() + self._hosted.give_up()
        told = Reasoning | Compaction | McpListTools | HostedCall
        silent = self._answers and all(isinstance(item, told) for item in self.output)
        if completed and ending.output_tokens and silent:
            events += self._change_to(Kind.OUTPUT_TEXT_DELTA, MessageStart())
            events += self._close("completed")
        final = assemble(self._response, self._created_at, self._echo, ending.status, self.output, ending)
        if raw is not None:
            final = raw.add_to(final, ending.turns)
        if facts is not None:
            final = facts.add_to(final)
        terminal = _TERMINAL[ending.status]
        events.append(wire.whole_event(terminal(self._number(), final)))
        return events, final

    @property
    def _index(self) -> int:
        """The output index of the open item."""
        return len(self.output)

    def _unended(self, status: Literal["queued", "in_progress"]) -> Response:
        return assemble(self._response, self._created_at, self._echo, status, [])

    def _number(self) -> int:
        number = self.next_seq
        self.next_seq += 1
        return number

    def _more(self, text: str, logprobs: Sequence[Logprob]) -> Event:
        assert self._open is not None, "more of a call that has not begun"
        self._open.text.append(text)
        if self._open.kind is Kind.OUTPUT_TEXT_DELTA:
            self._open.logprobs += logprobs
            return wire.text_delta(self._number(), self._index, text, logprobs)
        return Event(self._number(), self._open.kind, self._index, 0, text)

    def _open_unless(self, kind: Kind, begun: MessageStart | ReasoningDelta) -> list[Event]:
        """Opens an item for deltas of this kind, unless the open one takes them."""
        if self._open is not None and self._open.kind is kind:
            return []
        return self._change_to(kind, begun)

    def _change_to(self, kind: Kind, begun: MessageStart | ReasoningDelta | CallStart) -> list[Event]:
        events = self._close(self._status_when_cut_off)
        call_id = ids.call_id(self._response, self._index)
        if isinstance(begun, CallStart):
            if begun.call_id and begun.call_id not in self._call_ids:
                call_id = begun.call_id
            self._call_ids.add(call_id)
        item_id = ids.item_id(wire.ITEM_PREFIX[kind], self._response, "o", self._index)
        self._open = _OpenItem(begun, kind, item_id, call_id, self._seal)
        item = self._open.item("in_progress", None)
        events.append(wire.whole_event(wire.OutputItemAdded(self._number(), self._index, item)))
        if (part := self._open.part("")) is not None:
            events.append(
                wire.whole_event(wire.ContentPartAdded(self._number(), item_id, self._index, 0, part))
            )
        if self._summarizes and isinstance(begun, ReasoningDelta):
            self._open.summary = Summary(item_id, self._index, self._number)
            events += self._open.summary.begin()
        return events

    @property
    def _status_when_cut_off(self) -> ItemStatus:
        """Of the open item if something else comes: a call that nobody said the end of is incomplete."""
        in_call = self._open is not None and isinstance(self._open.begun, CallStart)
        return "incomplete" if in_call or self._hosted.writing else "completed"

    def _close(self, status: ItemStatus) -> list[Event]:
        if self._hosted.writing:
            return self._hosted.close(status)
        if self._compaction is not None:
            return self.compacted(lambda _id: "", "incomplete")
        if self._open is None:
            return self._hosted.rest()
        text = "".join(self._open.text)
        item = self._open.item(status, text)
        events = [wire.whole_event(self._text_done(item, text))]
        if (part := self._open.part(text)) is not None:
            events.append(
                wire.whole_event(wire.ContentPartDone(self._number(), item.id, self._index, 0, part))
            )
        if self._open.summary is not None:
            events += self._open.summary.end(text)
        events.append(wire.whole_event(wire.OutputItemDone(self._number(), self._index, item)))
        self.output.append(item)
        self._open = None
        return events

    def _text_done(self, item: Item, text: str) -> wire.WholeEvent:
        number = self._number()
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
