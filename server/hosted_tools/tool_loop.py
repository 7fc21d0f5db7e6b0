"""ToolLoop, between two model turns of a response: makes hosted tool calls, then submits the next turn.

Calls run on the thread of the MCP sessions. Next turns are prepared on a thread pool of their own, so that
neither waits for the other. Each result goes to the recorder as a message. When the last result of a turn is
committed, the next turn's engine request is submitted.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from time import monotonic
from uuid import UUID

from engine.request import Engine, RequestRefused
from server.errors import ApiError
from server.generation.hosted_items import used_container
from server.generation.hosted_tools_of_response import DueCall, PendingToolWork, ToolResult
from server.generation.run import Run, RunFacts
from server.hosted_tools.mcp_client import McpServers, failed_result
from server.logs.context import response_fields
from server.prompting.tool_search import find_tools
from server.prompting.turns import TurnBuilder
from server.protocol.responses.items import McpCall
from server.protocol.responses.response import CancelReason
from server.protocol.responses.tools import TOOL_SEARCH
from server.recording.recorder_messages import (
    SERVER_ERROR,
    CancelRequested,
    FailRun,
    RecorderMessage,
    ReleaseRuns,
    RunUpdate,
    StartTurn,
    ToolCallFinished,
)
from server.recording.response_traces import ResponseTraces
from server.tracing.spans import Span

log = logging.getLogger("holdfast.tools")

TURN_THREADS = 4
"""Next turns that are prepared at the same time. That is this process's own work and waits for no server."""
NO_ROOM = "The server is overloaded; try again later."
CANNOT_GO_ON = "The response cannot go on after its tool calls."
BROKE = "The call broke."
STOPPED = "The server stopped during this call. It is not known whether the call was carried out."
NO_MORE = "This response has made as many tool calls as it may; answer without more."


class ToolLoop:
    """The responses on this replica whose tools the server runs. Any thread."""

    def __init__(
        self,
        engine: Engine,
        servers: McpServers,
        deliver: Callable[[Sequence[RecorderMessage]], None],
        on_call: Callable[[McpCall, ToolResult, float], None] = lambda _call, _outcome, _seconds: None,
        traces: ResponseTraces | None = None,
        reserve_turn: Callable[[RunFacts, int], bool] = lambda _facts, _prompt_tokens: True,
        earlier_result: Callable[[str, UUID, McpCall], ToolResult | None] = lambda *_call: None,
    ) -> None:
        """`on_call` gets each call that was made, with its result and its duration in seconds. `reserve_turn`
        says whether the budgets of a response have room for a further turn with so many tokens in its prompt.
        `earlier_result` gives a tenant's response the result of an approved call that another one has made.
        """
        self._earlier_result = earlier_result
        self._reserve_turn = reserve_turn
        self._traces = traces or ResponseTraces()
        self._engine = engine
        self._on_call = on_call
        self.servers = servers
        self._deliver = deliver
        self._lock = threading.Lock()
        self._turn_builders: dict[UUID, TurnBuilder] = {}
        self._engine_requests: dict[UUID, str] = {}
        """The engine request of each response's current turn, from the second turn on."""
        self._cancelled: set[UUID] = set()
        self._turn_pool = ThreadPoolExecutor(TURN_THREADS, "turns")
        self._closed = False
        self._holds_background = False

    def hold_background_turns(self) -> None:
        """Has background responses released where their next turn would begin: another replica begins it."""
        self._holds_background = True

    def register(self, turns: TurnBuilder) -> None:
        """Adds a response before its run starts; `on_committed` removes it at its end."""
        with self._lock:
            self._turn_builders[turns.response] = turns

    def unregister(self, response: UUID) -> None:
        with self._lock:
            self._turn_builders.pop(response, None)
            self._engine_requests.pop(response, None)
            self._cancelled.discard(response)
        self.servers.cancel_calls(response)

    def on_committed(self, updates: Sequence[RunUpdate]) -> None:
        """Begins the tool work of committed runs. The recorder's thread."""
        for update in updates:
            if update.is_last:
                self.unregister(update.run.facts.id)
            elif (tool_work := update.run.take_tool_work()) is not None:
                self.begin(update.run, tool_work)

    def begin(self, run: Run, tool_work: PendingToolWork, *, is_retry: bool = False) -> None:
        """Begins the calls, or the next turn, on other threads. With `is_retry` they may have been made
        before a crash: those that are not repeatable get an error, for the model to decide.
        """
        response = run.facts.id
        with self._lock:
            turns = None if self._closed else self._turn_builders.get(response)
        if turns is None:
            return
        goes_on = used_container(tool_work.output)
        for due in tool_work.calls:
            begin_call = partial(self._begin_call, turns, due, goes_on=goes_on, is_retry=is_retry)
            if due.call.server_label == TOOL_SEARCH or due.call.approval_request_id is not None:
                self._submit(begin_call)  # it takes a moment to know the result
            else:
                begin_call()
        if tool_work.calls:
            return
        if self._holds_background and turns.resolved.request.background:
            self._deliver([ReleaseRuns(frozenset({response}))])
        else:
            self._submit(self._begin_turn, run.facts, turns, tool_work)

    def _submit(self, act: Callable[..., None], *arguments: object) -> None:
        """Runs `act` on the pool; does nothing after `close`, when other replicas continue the response."""
        with self._lock:
            if not self._closed:
                self._turn_pool.submit(act, *arguments)

    def cancel(self, response: UUID, reason: CancelReason | None = None) -> None:
        """Cancels a response in any of its turns, or between two. Without a reason its run has ended here.

        The recorder has the reason before the engine's end, which comes through the same inbox.
        """
        with self._lock:
            has_turns = response in self._turn_builders
            if has_turns:
                self._cancelled.add(response)
            engine_request = self._engine_requests.get(response)
        if reason is not None or has_turns:
            self._deliver([CancelRequested(response, reason)])
        self._engine.cancel(response.hex)
        if engine_request is not None:
            self._engine.cancel(engine_request)

    def close(self) -> None:
        """Begins nothing more, and does not wait for current work, whose results may still be delivered."""
        with self._lock:
            self._closed = True
        self._turn_pool.shutdown(wait=False, cancel_futures=True)

    def _begin_call(self, turns: TurnBuilder, due: DueCall, *, goes_on: bool, is_retry: bool) -> None:
        """Begins a call, unless its result is known; delivers the result, later. The session `goes_on` if the
        response has made calls in it.
        """
        call, began = due.call, monotonic()
        span: Span | None = None

        def deliver(outcome: ToolResult) -> None:
            if span is not None:
                span.end(error=None if outcome.error is None else "tool_error")
            self._deliver([ToolCallFinished(turns.response, due.index, outcome)])

        try:
            known = self._known_result(turns, due, is_retry=is_retry)
            if known is not None:
                deliver(known)
                return
            access = turns.credentials_for(call.server_label)
            if goes_on and access.session is None:
                access = replace(access, session=turns.response.hex)
            span = self._traces.begin_tool(turns.response, call.server_label, call.name)
            future = self.servers.start_call(
                call.server_label,
                call.name,
                call.arguments,
                access,
                tenant=turns.resolved.tenant,
                response=turns.response,
                trace_parent=None if span is None else span.trace_parent,
            )
        except Exception:
            fields = response_fields(turns.response, turns.resolved.tenant)
            log.exception("a tool call of %s broke", fields["response_id"], extra=fields)
            deliver(failed_result(BROKE))
            return

        def end(done: Future[ToolResult]) -> None:
            seconds = monotonic() - began
            deliver(replace(done.result(), seconds=seconds))
            self._on_call(call, done.result(), seconds)

        future.add_done_callback(end)

    def _known_result(self, turns: TurnBuilder, due: DueCall, *, is_retry: bool) -> ToolResult | None:
        """The result of a search, or of a call that is not to be made; None of one that is."""
        call = due.call
        if call.server_label == TOOL_SEARCH:
            return ToolResult(tools=find_tools(turns.resolved.tools, call.arguments))
        if call.approval_request_id is not None:
            earlier = self._earlier_result(turns.resolved.tenant, turns.response, call)
            if earlier is not None:
                return earlier
        if is_retry and not due.repeatable:
            return failed_result(STOPPED)
        if not due.within_limit:
            return failed_result(NO_MORE)
        return None if due.offered else failed_result(f"There is no tool {call.name[:100]!r}.")

    def _begin_turn(self, facts: RunFacts, turns: TurnBuilder, tool_work: PendingToolWork) -> None:
        response = turns.response
        try:
            turn = turns.next_turn(tool_work)
            request = None if turn is None else turn.engine_request
            if request is not None and not self._reserve_turn(facts, len(request.prompt)):
                turn = None
        except ApiError as error:
            if error.retry and turns.resolved.request.background:
                self._deliver([ReleaseRuns(frozenset({response}))])
                return
            # A prompt that leaves no room ends a response as `max_output_tokens` does: incomplete.
            too_long = error.code == "context_length_exceeded"
            end = StartTurn(response, None, 0) if too_long else FailRun(response, SERVER_ERROR, str(error))
            self._deliver([end])
            return
        except Exception:
            fields = response_fields(response, turns.resolved.tenant)
            log.exception("the next turn of %s cannot be prepared", fields["response_id"], extra=fields)
            self._deliver([FailRun(response, SERVER_ERROR, CANNOT_GO_ON)])
            return
        if turn is None or request is None:
            self._deliver([StartTurn(response, None if turn is None else turn.decoding_spec, 0)])
            return
        with self._lock:
            if response not in self._turn_builders:
                return  # it has ended meanwhile
            self._engine_requests[response] = request.request_id
        self._deliver([StartTurn(response, turn.decoding_spec, len(request.prompt))])
        try:
            self._engine.submit(request)
        except RequestRefused as refused:
            self._end_refused(turns, refused)
        with self._lock:
            cancelled = response in self._cancelled or response not in self._turn_builders
        if cancelled:
            self._engine.cancel(request.request_id)

    def _end_refused(self, turns: TurnBuilder, refused: RequestRefused) -> None:
        fields = response_fields(turns.response, turns.resolved.tenant)
        log.warning("the next turn of %s is refused: %s", fields["response_id"], refused, extra=fields)
        no_room = refused.reason in ("overloaded", "share_full", "closed")
        if no_room and turns.resolved.request.background:
            self._deliver([ReleaseRuns(frozenset({turns.response}))])
        else:
            self._deliver([FailRun(turns.response, SERVER_ERROR, NO_ROOM if no_room else CANNOT_GO_ON)])
