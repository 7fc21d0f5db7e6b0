"""Turns a parser's deltas into OpenAI's stream events, from the first after acceptance to the terminal one.

Pure: the same deltas give the same events with the same ids, in OpenAI's order, numbered without a gap. The
state is the open item and the finished items.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

from server.generation.client_tools import client_prefix
from server.generation.hosted_tools_of_response import HostedTools
from server.generation.output_decoding import OutputDecoder
from server.generation.token_dump import TokenDump
from server.generation.tool_call_events import ToolCallEvents
from server.generation.written_item import EventNumbers, ItemStart, WrittenItem, delta_kind, item_start
from server.model_formats.model_format import (
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
from server.protocol.responses.events import FIRST_EVENTS, Event, Kind, decode_added, decode_done, event_type
from server.protocol.responses.items import (
    Compaction,
    HostedItem,
    Item,
    ItemStatus,
    Logprob,
    Reasoning,
    awaits_client,
)
from server.protocol.responses.response import Echo, Ending, EndStatus, Response, build_response

_MESSAGE = MessageStart()
_TERMINAL: dict[EndStatus, type[wire.ResponseEvent]] = {
    "completed": wire.ResponseCompleted,
    "failed": wire.ResponseFailed,
    "incomplete": wire.ResponseIncomplete,
    "cancelled": wire.ResponseIncomplete,
}


class EventEmitter:
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
        """`seal` encrypts a reasoning item's text, deterministically, from its id and text. Labels of
        `hosted` servers are namespaces in the model's output. `summarizes_reasoning` repeats each reasoning
        as its summary.
        """
        self.output: list[Item] = []
        """Finished items, and the server's own calls from the moment they are added."""
        self.numbers = EventNumbers(FIRST_EVENTS)
        self._event = self.numbers.event
        self.tool_calls = ToolCallEvents(response, hosted, self.output, self.numbers)
        self._response = response
        self._created_at = created_at
        self._echo = echo
        self._seal = seal
        self._summarizes_reasoning = summarizes_reasoning
        self._open: WrittenItem | None = None
        self._compaction: str | None = None
        self._answers = True
        self._call_ids: set[str] = set()
        """Used ids: a model may repeat one, and then the client could not tell the calls apart."""

    def in_progress(self) -> Event:
        """`response.in_progress`, which is among the `first_events` of a response in the foreground."""
        response = build_response(self._response, self._created_at, self._echo, "in_progress", [])
        return self._event(wire.ResponseInProgress, response)

    def token_ids(self, side: Literal["prompt", "output"], token_ids: Sequence[int]) -> Event:
        return self._event(wire.TokenIdsEvent, side, list(token_ids))

    def delta(self, delta: Delta, logprobs: Sequence[Logprob] = ()) -> list[Event]:
        """The events of a delta, with its tokens' logprobs, and of the items that it closes and opens."""
        match delta:
            case TextDelta(text):
                events = self._ensure_open(_MESSAGE)
            case ReasoningDelta(text):
                events = self._ensure_open(delta)
            case CallStart() if (label := self.tool_calls.server_of(delta)) is not None:
                is_code = delta.kind == "custom"
                return self.close_turn() + self.tool_calls.start_draft(label, delta.name, is_code=is_code)
            case CallDelta(text) if self.tool_calls.has_draft:
                self.tool_calls.append(text)
                return []
            case MessageStart() | CallStart():
                return self._open_item(delta)
            case CallDelta(text):
                events = []
            case CallEnd():
                return self._close("completed")
        assert self._open is not None, "a delta of a call that has not begun"
        return events + self._open.append(text, logprobs)

    def start_compaction(self, *, answers: bool) -> list[Event]:
        """Adds the compaction item. Unless the response `answers`, it is the only output."""
        index = self._index
        self._answers = answers
        self._compaction = ids.item_id("cmp", self._response, "o", index)
        item = Compaction(self._compaction, "in_progress", "")
        return [
            self._event(wire.OutputItemAdded, index, item),
            self._event(wire.CompactionCompacting, item.id, index),
        ]

    def end_compaction(self, seal: Callable[[str], str], status: ItemStatus = "completed") -> list[Event]:
        """Finishes the compaction item; `seal` gives its encrypted content from its id."""
        assert self._compaction is not None
        item = Compaction(self._compaction, status, seal(self._compaction))
        event = self._event(wire.OutputItemDone, self._index, item)
        self.output.append(item)
        self._compaction = None
        return [event]

    def close_turn(self) -> list[Event]:
        return self._close(self._cut_off_status) + self.tool_calls.finish_arguments()

    def restore(self, events: Iterable[Event]) -> None:
        """Restores the state from logged events, so that an interrupted response can be closed correctly."""
        for event in events:
            if event.kind is not Kind.WHOLE:
                _, text, logprobs = wire.delta_of(event)
                assert self._open is not None, "a delta of an item that has not begun"
                self._open.append(text, logprobs)
            elif event_type(event) == "response.output_item.added":
                item = decode_added(event.body).item
                self._close("completed")
                if isinstance(item, Compaction):
                    self._compaction = item.id
                elif not self.tool_calls.restore(item):
                    self._open_item(item_start(item))
            elif event_type(event) == "response.output_item.done":
                self._open = self._compaction = None
                done = decode_done(event.body)
                if done.output_index < len(self.output):
                    self.output[done.output_index] = done.item
                else:
                    self.output.append(done.item)
                if done.output_index in self.tool_calls.pending_calls:
                    self.tool_calls.pending_calls.remove(done.output_index)

    def end(
        self, ending: Ending, token_dump: TokenDump | None = None, decoder: OutputDecoder | None = None
    ) -> tuple[list[Event], Response]:
        """Closes the open items; returns the events up to the terminal one, and the final response in it. A
        completed response always has a message, perhaps an empty one, or a call. A cancelled one ends with
        `response.incomplete`, because OpenAI's SDKs have no event of its own for it.
        """
        completed = ending.status == "completed"
        events = self._close(self._cut_off_status if completed else "incomplete")
        events += self.tool_calls.finish_arguments() + self.tool_calls.give_up()
        no_answer = Reasoning | Compaction | HostedItem
        is_answer = [awaits_client(item) or not isinstance(item, no_answer) for item in self.output]
        lacks_answer = self._answers and not any(is_answer)
        if completed and ending.output_tokens and lacks_answer:
            events += self._open_item(MessageStart())
            events += self._close("completed")
        final = build_response(
            self._response, self._created_at, self._echo, ending.status, self.output, ending
        )
        if token_dump is not None:
            final = token_dump.add_to(final, ending.turns)
        if decoder is not None:
            final = decoder.add_to(final)
        events.append(self._event(_TERMINAL[ending.status], final))
        return events, final

    @property
    def _index(self) -> int:
        return len(self.output)

    def _ensure_open(self, start: ItemStart) -> list[Event]:
        if self._open is not None and type(self._open.start) is type(start):
            return []
        return self._open_item(start)

    def _open_item(self, start: ItemStart) -> list[Event]:
        events = self._close(self._cut_off_status)
        call_id, is_client_tool = ids.call_id(self._response, self._index), False
        prefix = wire.ITEM_PREFIX[delta_kind(start)]
        if isinstance(start, CallStart):
            if start.call_id and start.call_id not in self._call_ids:
                call_id = start.call_id
            self._call_ids.add(call_id)
            if is_client_tool := self.tool_calls.is_of_client(start):
                prefix = client_prefix(start.name)
        self._open = WrittenItem(
            self.numbers,
            start,
            ids.item_id(prefix, self._response, "o", self._index),
            self._index,
            call_id,
            self._seal,
            self._summarizes_reasoning,
            is_client_tool,
        )
        return events + self._open.open()

    @property
    def _cut_off_status(self) -> ItemStatus:
        """The open item's status if another item begins: a call without a CallEnd is incomplete."""
        return "incomplete" if self.is_in_call else "completed"

    @property
    def is_in_call(self) -> bool:
        """Whether the last call has not been ended."""
        in_call = self._open is not None and isinstance(self._open.start, CallStart)
        return in_call or self.tool_calls.has_draft

    def _close(self, status: ItemStatus) -> list[Event]:
        if self.tool_calls.has_draft:
            return self.tool_calls.close_draft(status)
        if self._compaction is not None:
            return self.end_compaction(lambda _id: "", "incomplete")
        if self._open is None:
            return self.tool_calls.finish_arguments()
        item, events = self._open.close(status)
        self.output.append(item)
        self._open = None
        return events
