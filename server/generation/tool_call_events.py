"""The events of hosted tools: lists of MCP tools, the server's own calls, requests for approval. Pure. Part
of the event emitter, whose output and numbers it shares. A call that needs approval becomes an approval
request once its arguments are complete, and is not made.
"""

from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from server.generation.hosted_items import (
    CALL_EVENTS,
    CallEvents,
    FinalStatus,
    finished_item,
    shell_output,
    started_item,
    with_arguments,
)
from server.generation.hosted_tools_of_response import DueCall, HostedTools, ListedServer, ToolResult
from server.generation.written_item import EventNumbers, command_events
from server.model_formats.model_format import CallStart
from server.protocol import ids
from server.protocol.responses import events as wire
from server.protocol.responses.events import Event
from server.protocol.responses.items import (
    ID_PREFIXES,
    AnsweredByItem,
    CodeInterpreterCall,
    HostedCall,
    HostedItem,
    Item,
    ItemStatus,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    ShellAction,
    ShellCall,
    ShellCallOutput,
    ToolSearchCall,
    ToolSearchOutput,
    WebSearchCall,
    awaits_client,
)
from server.protocol.responses.tools import TOOL_SEARCH


@dataclass(slots=True)
class _Draft:
    label: str
    name: str
    needs_approval: bool
    is_code: bool
    text: list[str] = field(default_factory=list)


class ToolCallEvents:
    def __init__(
        self, response: UUID, hosted: HostedTools, output: list[Item], numbers: EventNumbers
    ) -> None:
        self.pending_calls: list[int] = []
        """The output indices of calls that have no result yet."""
        self._response = response
        self._hosted = hosted
        self._output = output
        self._numbers = numbers
        self._event = numbers.event
        self._draft: _Draft | None = None
        self._calls: dict[int, McpCall] = {}
        """Every call as its tool server gets it, by output index."""
        self._unfinished_arguments: int | None = None
        """The output index of a call whose arguments were emitted without their `done` event."""

    @property
    def has_draft(self) -> bool:
        """The model is writing a call; its item is the last of the output, or will be."""
        return self._draft is not None

    def due_calls(self) -> list[DueCall]:
        """The pending calls as their tool servers get them, and which of them `max_tool_calls` allows."""
        limit = self._hosted.max_calls
        done = sum(isinstance(item, HostedCall) for item in self._output) - len(self.pending_calls)
        return [
            DueCall(
                index,
                call,
                within_limit=limit is None or done + position < limit,
                offered=tool is not None,
                repeatable=tool is not None and tool.repeatable,
            )
            for position, index in enumerate(self.pending_calls)
            for call in [self._calls[index]]
            for tool in [self._hosted.tool_of(call)]
        ]

    def server_of(self, call: CallStart) -> str | None:
        """The label of the called tool's server; that of a search for tools is its name. None for others."""
        label = call.namespace or (call.name if call.name == TOOL_SEARCH else None)
        return label if label in self._hosted.by_label else None

    def is_of_client(self, call: CallStart) -> bool:
        """Whether the call is of one of OpenAI's tools that the client runs."""
        return call.namespace is None and call.name in self._hosted.of_client

    def start(self) -> list[Event]:
        """The events of new tool lists, and of calls that the request's input approves."""
        events = [
            event for listed in self._hosted.servers if listed.is_new for event in self._list_tools(listed)
        ]
        for request in self._hosted.approved_calls:
            events += self._start_call(request.server_label, request.name, request.id)
            events += self._set_arguments(request.arguments) + self.finish_arguments()
            self.pending_calls.append(len(self._output) - 1)
        return events

    def _list_tools(self, listed: ListedServer) -> list[Event]:
        item = McpListTools(self._id(McpListTools), listed.label)
        index = len(self._output)
        end = wire.McpListToolsCompleted if listed.error is None else wire.McpListToolsFailed
        tool_list = McpListTools(item.id, listed.label, list(listed.tools), listed.error)
        self._output.append(tool_list)
        return [
            self._event(wire.OutputItemAdded, index, item),
            self._event(wire.McpListToolsInProgress, item.id, index),
            self._event(end, item.id, index),
            self._event(wire.OutputItemDone, index, tool_list),
        ]

    def start_draft(self, label: str, name: str, *, is_code: bool) -> list[Event]:
        """The model begins a call. Its arguments are JSON, or bare code if `is_code`."""
        needs_approval = name in self._hosted.by_label[label].approval_required
        self._draft = _Draft(label, name, needs_approval, is_code)
        return [] if needs_approval else self._start_call(label, name)

    def append(self, text: str) -> None:
        """Adds text to the draft's arguments. OpenAI streams them in one delta, so this emits nothing."""
        assert self._draft is not None
        self._draft.text.append(text)

    def close_draft(self, status: ItemStatus) -> list[Event]:
        """Ends the draft: a completed call becomes pending, one that was cut off is done as incomplete.
        `arguments.done` is delayed to the next event or the turn's end: if the log has it for the last call,
        the turn was finished, and the call may have been executed.
        """
        draft, self._draft = self._draft, None
        assert draft is not None
        arguments = "".join(draft.text)
        if draft.is_code:
            arguments = msgspec.json.encode({"code": arguments}).decode()
        if draft.needs_approval and status == "completed":
            return self._request_approval(draft, arguments)
        start_events = self._start_call(draft.label, draft.name) if draft.needs_approval else []
        events = [*start_events, *self._set_arguments(arguments)]
        index = len(self._output) - 1
        item = self._output[index]
        if status == "completed":
            self.pending_calls += [] if awaits_client(item) else [index]
            return events
        if isinstance(item, AnsweredByItem):
            self._unfinished_arguments = None
        return [*events, *self.finish_arguments(), self._done(index, "incomplete", ToolResult())]

    def finish_arguments(self) -> list[Event]:
        """The delayed `done` event of the last call's arguments."""
        index, self._unfinished_arguments = self._unfinished_arguments, None
        if index is None:
            return []
        match self._output[index]:
            case McpCall(item_id, arguments=arguments):
                return [self._event(wire.McpCallArgumentsDone, item_id, index, arguments)]
            case CodeInterpreterCall(item_id, code=code):
                return [
                    self._event(wire.CodeDone, item_id, index, code or ""),
                    self._event(wire.CodeInterpreting, item_id, index),
                ]
            case ToolSearchCall() | ShellCall() as call:
                events = command_events(self._numbers, index, call)
                return [*events, self._done(index, "completed", ToolResult())]
            case item:
                return [self._event(wire.SearchSearching, item.id, index)]

    def finish_call(self, index: int, outcome: ToolResult) -> list[Event]:
        self.pending_calls.remove(index)
        item, failed = self._output[index], outcome.error is not None
        if isinstance(item, AnsweredByItem):
            return self._add_output(item, outcome)
        events = self._events(self._calls[index].server_label)
        return [
            self._event(events.failed if failed else events.completed, item.id, index),
            self._done(index, "failed" if failed else "completed", outcome),
        ]

    def _add_output(self, call: AnsweredByItem, outcome: ToolResult) -> list[Event]:
        index, ran = len(self._output), []
        output: ToolSearchOutput | ShellCallOutput
        if isinstance(call, ToolSearchCall):
            item_id = self._id(ToolSearchOutput)
            output = ToolSearchOutput(item_id, "completed", [*outcome.tools], "server", call.call_id)
            added: Item = msgspec.structs.replace(output, status="in_progress", tools=[])
        else:
            item_id, ran = self._id(ShellCallOutput), shell_output(outcome)
            longest = call.action.max_output_length
            output = ShellCallOutput(item_id, "completed", call.call_id, ran, longest)
            added = msgspec.structs.replace(output, status="in_progress", output=[])
        self._output.append(output)
        events = [self._event(wire.OutputItemAdded, index, added)]
        for position, written in enumerate(ran):
            streams = {"stdout": written.stdout, "stderr": written.stderr}
            events.append(self._event(wire.ShellOutputDelta, item_id, index, position, streams))
            events.append(self._event(wire.ShellOutputDone, item_id, index, position, [written]))
        return [*events, self._event(wire.OutputItemDone, index, output)]

    def give_up(self) -> list[Event]:
        """The response ends before its pending calls have results: they are incomplete, but for those that
        are done before their result is an item.
        """
        pending, self.pending_calls = self.pending_calls, []
        calls = [index for index in pending if not isinstance(self._output[index], AnsweredByItem)]
        return [self._done(index, "incomplete", ToolResult()) for index in calls]

    def restore(self, item: Item) -> bool:
        """Takes an added item from the log; returns False if it is not a hosted tool's."""
        if isinstance(item, HostedItem) and not (isinstance(item, ShellCall) and awaits_client(item)):
            self._output.append(item)
            if isinstance(item, HostedCall):
                self.pending_calls.append(len(self._output) - 1)
            return True
        return False

    def _start_call(self, label: str, name: str, allowed_by: str | None = None) -> list[Event]:
        index = len(self._output)
        call = McpCall("", "in_progress", label, name, "", approval_request_id=allowed_by)
        self._calls[index] = call
        listed, call_id = self._hosted.by_label.get(label), ids.call_id(self._response, index)
        container = f"cntr_{(listed and listed.container) or self._response.hex}"
        item: HostedCall
        if label == TOOL_SEARCH and self._hosted.search is not None:
            item = ToolSearchCall(self._id(ToolSearchCall), "in_progress", {}, self._hosted.search, call_id)
        elif listed is not None and listed.call_type == "shell":
            reference = {"type": "container_reference", "container_id": container}
            item = ShellCall(self._id(ShellCall), "in_progress", call_id, ShellAction(commands=[]), reference)
        else:
            kind = self._events(label).item
            item = started_item(kind, self._id(kind), container, call)
        self._output.append(item)
        added = self._event(wire.OutputItemAdded, index, item)
        if isinstance(item, AnsweredByItem):
            return [added]
        return [added, self._event(self._events(label).in_progress, item.id, index)]

    def _set_arguments(self, arguments: str) -> list[Event]:
        index = len(self._output) - 1
        item = self._output[index]
        assert isinstance(item, HostedCall)
        self._calls[index] = call = msgspec.structs.replace(self._calls[index], arguments=arguments)
        self._output[index] = item = with_arguments(item, call)
        if isinstance(item, ShellCall) and item.action.commands:
            read = msgspec.json.encode(item.action).decode()
            self._calls[index] = msgspec.structs.replace(call, arguments=read)
        self._unfinished_arguments = index
        match item:
            case McpCall():
                return [self._event(wire.McpCallArgumentsDelta, item.id, index, arguments)]
            case CodeInterpreterCall():
                return [self._event(wire.CodeDelta, item.id, index, item.code or "")]
            case WebSearchCall() | ToolSearchCall() | ShellCall():
                return []

    def _events(self, label: str) -> CallEvents:
        listed = self._hosted.by_label.get(label)
        return CALL_EVENTS[listed.call_type if listed is not None else "mcp"]

    def _request_approval(self, draft: _Draft, arguments: str) -> list[Event]:
        index = len(self._output)
        item = McpApprovalRequest(self._id(McpApprovalRequest), draft.label, draft.name, arguments)
        if self._hosted.tag_approval is not None:
            item = self._hosted.tag_approval(item)
        self._output.append(item)
        return [self._event(wire.OutputItemAdded, index, item), self._event(wire.OutputItemDone, index, item)]

    def _done(self, index: int, status: FinalStatus, outcome: ToolResult) -> Event:
        item = self._output[index]
        assert isinstance(item, HostedCall)
        done = finished_item(item, status, outcome, tells_sources=self._hosted.include_sources)
        self._output[index] = done
        return self._event(wire.OutputItemDone, index, done)

    def _id(self, kind: type[HostedItem]) -> str:
        return ids.item_id(ID_PREFIXES[kind], self._response, "o", len(self._output))
