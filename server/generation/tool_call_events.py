"""The events of what the server itself does for a response: lists of tools, calls, requests for approval.

Pure; a part of the emitter, whose output and numbers it shares. Order per call: added, in progress, its
arguments, and, whenever that is, how it ended and done. A call that somebody must allow is told when it is
complete, and nothing is made of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from server.hosted_tools.call_items import (
    IN_PROGRESS_EVENTS,
    ITEM_TYPES,
    FinalStatus,
    end_event,
    finished_item,
    started_item,
    with_arguments,
)
from server.hosted_tools.tool_specs import CallType, DueCall, HostedTools, ListedServer, ToolResult
from server.protocol import ids
from server.protocol.responses import events as wire
from server.protocol.responses.events import Event
from server.protocol.responses.hosted_items import (
    HOSTED,
    CodeInterpreterCall,
    HostedItem,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    ServedCall,
    WebSearchCall,
)
from server.protocol.responses.items import Item, ItemStatus


@dataclass(slots=True)
class _Draft:
    """A call that the model is writing."""

    label: str
    name: str
    asks: bool
    is_code: bool
    text: list[str] = field(default_factory=list)


class ToolCallEvents:
    """Those of one response."""

    def __init__(
        self, response: UUID, hosted: HostedTools, output: list[Item], number: Callable[[], int]
    ) -> None:
        self.pending: list[int] = []
        """The places of calls that are to be made, or are being made."""
        self._response = response
        self._hosted = hosted
        self._output = output
        self._number = number
        self._draft: _Draft | None = None
        self._calls: dict[int, McpCall] = {}
        """The calls to be made, by place, whatever their items are."""
        self._undone: int | None = None
        """The place of a call whose arguments are told, but not that they are complete."""

    @property
    def writing(self) -> bool:
        """A call is being written, which is, or will be, the last of the output."""
        return self._draft is not None

    def due(self) -> list[DueCall]:
        """The pending calls, as their servers are asked, and which of them the request allows."""
        most = self._hosted.max_calls
        made = sum(isinstance(item, ServedCall) for item in self._output) - len(self.pending)
        return [
            DueCall(
                index,
                call,
                within_limit=most is None or made + place < most,
                offered=self._hosted.offers(call),
                repeatable=self._hosted.repeatable(call),
            )
            for place, index in enumerate(self.pending)
            for call in [self._calls[index]]
        ]

    def serves(self, label: str | None) -> bool:
        return label in self._hosted.by_label

    def begin(self) -> list[Event]:
        """What is told before the model says anything."""
        events = [event for listed in self._hosted.servers if listed.is_new for event in self._list(listed)]
        for request in self._hosted.approved_calls:
            events += self._begin(request.server_label, request.name, request.id)
            events += self._arguments(request.arguments) + self.rest()
            self.pending.append(len(self._output) - 1)
        return events

    def _list(self, listed: ListedServer) -> list[Event]:
        item = McpListTools(self._id(McpListTools), listed.label)
        index = len(self._output)
        end = wire.McpListToolsCompleted if listed.error is None else wire.McpListToolsFailed
        tool_list = McpListTools(item.id, listed.label, list(listed.tools), listed.error)
        self._output.append(tool_list)
        return [
            wire.whole(wire.OutputItemAdded(self._number(), index, item)),
            wire.whole(wire.McpListToolsInProgress(self._number(), item.id, index)),
            wire.whole(end(self._number(), item.id, index)),
            wire.whole(wire.OutputItemDone(self._number(), index, tool_list)),
        ]

    def write(self, label: str, name: str, *, is_code: bool) -> list[Event]:
        """The model begins a call, with bare code as its arguments, or with JSON."""
        asks = self._hosted.needs_approval(label, name)
        self._draft = _Draft(label, name, asks, is_code)
        return [] if asks else self._begin(label, name)

    def more(self, text: str) -> None:
        """Of the arguments. OpenAI sends them in one piece, so they are told at their end."""
        assert self._draft is not None
        self._draft.text.append(text)

    def close(self, status: ItemStatus) -> list[Event]:
        """The arguments are complete, and the call is to be made; or it was cut off, and is not.

        That they are complete is told with what comes next, or with the end of the turn: so a log that has it
        for a turn's last call has the whole turn, and tells that the call was perhaps made.
        """
        draft, self._draft = self._draft, None
        assert draft is not None
        arguments = "".join(draft.text)
        if draft.is_code:
            arguments = msgspec.json.encode({"code": arguments}).decode()
        if draft.asks and status == "completed":
            return self._ask(draft, arguments)
        start_events = self._begin(draft.label, draft.name) if draft.asks else []
        events = [*start_events, *self._arguments(arguments)]
        if status == "completed":
            self.pending.append(len(self._output) - 1)
            return events
        return [*events, *self.rest(), self._done(len(self._output) - 1, "incomplete", ToolResult())]

    def rest(self) -> list[Event]:
        """What was kept back of the last call."""
        index, self._undone = self._undone, None
        if index is None:
            return []
        match self._output[index]:
            case McpCall(name, arguments=arguments):
                return [wire.whole(wire.McpCallArgumentsDone(self._number(), name, index, arguments))]
            case CodeInterpreterCall(name, code=code):
                return [
                    wire.whole(wire.CodeDone(self._number(), name, index, code or "")),
                    wire.whole(wire.CodeInterpreting(self._number(), name, index)),
                ]
            case item:
                return [wire.whole(wire.SearchSearching(self._number(), item.id, index))]

    def called(self, index: int, outcome: ToolResult) -> list[Event]:
        """What came of a pending call."""
        self.pending.remove(index)
        item, failed = self._output[index], outcome.error is not None
        end = end_event(self._form(self._calls[index].server_label), failed=failed)
        return [
            wire.whole(end(self._number(), item.id, index)),
            self._done(index, "failed" if failed else "completed", outcome),
        ]

    def give_up(self) -> list[Event]:
        """The response ends before its calls."""
        events = [self._done(index, "incomplete", ToolResult()) for index in self.pending]
        self.pending = []
        return events

    def retell(self, item: Item) -> bool:
        """Takes an added item over from a log, if it is one of these."""
        if isinstance(item, HostedItem):
            self._output.append(item)
            if isinstance(item, ServedCall):
                self.pending.append(len(self._output) - 1)
            return True
        return False

    def _begin(self, label: str, name: str, allowed_by: str | None = None) -> list[Event]:
        index = len(self._output)
        form = self._form(label)
        call = McpCall("", "in_progress", label, name, "", approval_request_id=allowed_by)
        item = started_item(form, self._id(ITEM_TYPES[form]), self._response, call)
        self._calls[index] = call
        self._output.append(item)
        return [
            wire.whole(wire.OutputItemAdded(self._number(), index, item)),
            wire.whole(IN_PROGRESS_EVENTS[form](self._number(), item.id, index)),
        ]

    def _arguments(self, arguments: str) -> list[Event]:
        index = len(self._output) - 1
        item = self._output[index]
        assert isinstance(item, ServedCall)
        self._calls[index] = call = msgspec.structs.replace(self._calls[index], arguments=arguments)
        self._output[index] = item = with_arguments(item, call)
        self._undone = index
        match item:
            case McpCall():
                return [wire.whole(wire.McpCallArgumentsDelta(self._number(), item.id, index, arguments))]
            case CodeInterpreterCall():
                return [wire.whole(wire.CodeDelta(self._number(), item.id, index, item.code or ""))]
            case WebSearchCall():
                return []

    def _form(self, label: str) -> CallType:
        listed = self._hosted.by_label.get(label)
        return listed.call_type if listed is not None else "mcp"

    def _ask(self, draft: _Draft, arguments: str) -> list[Event]:
        index = len(self._output)
        item = McpApprovalRequest(self._id(McpApprovalRequest), draft.label, draft.name, arguments)
        if self._hosted.tag_approval is not None:
            item = self._hosted.tag_approval(item)
        self._output.append(item)
        return [
            wire.whole(wire.OutputItemAdded(self._number(), index, item)),
            wire.whole(wire.OutputItemDone(self._number(), index, item)),
        ]

    def _done(self, index: int, status: FinalStatus, outcome: ToolResult) -> Event:
        item = self._output[index]
        assert isinstance(item, ServedCall)
        left = finished_item(item, status, outcome, tells_sources=self._hosted.include_sources)
        self._output[index] = left
        return wire.whole(wire.OutputItemDone(self._number(), index, left))

    def _id(self, kind: type[HostedItem]) -> str:
        return ids.item_id(HOSTED[kind], self._response, "o", len(self._output))
