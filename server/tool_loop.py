"""Between two turns of a response: makes the calls that its model asked for, and begins the next turn.

Calls run on the thread that talks to MCP servers, next turns are prepared on threads of their own, so that
one does not wait for the other. Each result goes to the recorder as one more message; when the last of a
turn's is committed, the next turn's engine request is given to the engine.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol
from uuid import UUID

from engine.request import Engine, RequestRefused
from server.errors import ApiError
from server.generation.run import Run
from server.hosted_tools.mcp.client import McpServers, failed_result
from server.hosted_tools.tool_specs import DueCall, PendingToolWork, ToolResult
from server.prompting.next_turn import TurnBuilder
from server.recording.messages import (
    SERVER_ERROR,
    CancelRequested,
    FailRun,
    Inbound,
    ReleaseRuns,
    RunUpdate,
    StartTurn,
    ToolCallFinished,
)

log = logging.getLogger("holdfast.tools")

TURN_THREADS = 4
"""Next turns prepared at the same time: that is work of this process, and waits for no server."""
NO_ROOM = "The server is overloaded; try again later."
CANNOT_GO_ON = "The response cannot go on after its tool calls."
STOPPED = "The server stopped during this call. It is not known whether the call was carried out."
NO_MORE = "This response has made as many tool calls as it may; answer without more."


class ToolLoop:
    """The responses whose tools the server runs. Any thread."""

    def __init__(self, engine: Engine, servers: McpServers, deliver: "Deliver") -> None:
        self._engine = engine
        self.servers = servers
        self._deliver = deliver
        self._lock = threading.Lock()
        self._turns: dict[UUID, TurnBuilder] = {}
        self._engine_requests: dict[UUID, str] = {}
        self._cancelled: set[UUID] = set()
        self._turn_pool = ThreadPoolExecutor(TURN_THREADS, "turns")
        self._closed = False

    def expect(self, turns: TurnBuilder) -> None:
        """A response is about to begin here; `look` forgets it at its end."""
        with self._lock:
            self._turns[turns.response] = turns

    def forget(self, response: UUID) -> None:
        with self._lock:
            self._turns.pop(response, None)
            self._engine_requests.pop(response, None)
            self._cancelled.discard(response)
        self.servers.cancel_calls(response)

    def look(self, steps: Sequence[RunUpdate]) -> None:
        """What the recorder has committed: begins what the runs now wait for."""
        for step in steps:
            if step.over:
                self.forget(step.run.facts.id)
            elif (tool_work := step.run.take_tool_work()) is not None:
                self.carry_on(step.run, tool_work)

    def carry_on(self, run: Run, tool_work: PendingToolWork, *, again: bool = False) -> None:
        """Begins the calls, or the next turn, on other threads.

        `again` says that the calls may have been made before, by a replica that was stopped: those whose
        tools do not say that this does no harm are told as failed, for the model to decide.
        """
        response = run.facts.id
        with self._lock:
            turns = None if self._closed else self._turns.get(response)
        if turns is None:
            return
        for due in tool_work.calls:
            if again and not due.repeatable:
                self._deliver([ToolCallFinished(response, due.index, failed_result(STOPPED))])
            else:
                self._call(turns, due)
        if not tool_work.calls:
            self._submit(self._begin_turn, turns, tool_work)

    def _submit(self, act: Callable[..., None], *arguments: object) -> None:
        """Has a thread of the pool do it; nothing once `close` was called: others go on with the response."""
        with self._lock:
            if not self._closed:
                self._turn_pool.submit(act, *arguments)

    def cancel(self, response: UUID) -> None:
        """Ends a response early, whichever of its turns is generated, or none."""
        self._engine.cancel(response.hex)
        with self._lock:
            if response not in self._turns:
                return
            self._cancelled.add(response)
            engine_request = self._engine_requests.get(response)
        if engine_request is not None:
            self._engine.cancel(engine_request)
        self._deliver([CancelRequested(response)])

    def close(self) -> None:
        """Begins nothing more; what is under way is not waited for. Its results may still be delivered."""
        with self._lock:
            self._closed = True
        self._turn_pool.shutdown(wait=False, cancel_futures=True)

    def _call(self, turns: TurnBuilder, due: DueCall) -> None:
        """Begins a call, whose outcome is delivered when it is there. Waits for nothing."""

        def deliver(outcome: ToolResult) -> None:
            self._deliver([ToolCallFinished(turns.response, due.index, outcome)])

        if not due.within_limit:
            deliver(failed_result(NO_MORE))
            return
        call = due.call
        if not due.offered:
            deliver(failed_result(f"There is no tool {call.name[:100]!r}."))
            return
        try:
            access = turns.credentials_for(call.server_label)
            made = self.servers.start_call(
                call.server_label,
                call.name,
                call.arguments,
                access,
                tenant=turns.resolved.tenant,
                response=turns.response,
            )
        except Exception:
            log.exception("a tool call of response %s broke", turns.response)
            deliver(failed_result("The call broke."))
            return
        made.add_done_callback(lambda done: deliver(done.result()))

    def _begin_turn(self, turns: TurnBuilder, tool_work: PendingToolWork) -> None:
        response = turns.response
        try:
            turn = turns.next_turn(tool_work.output, tool_work.turn, tool_work.output_tokens)
        except ApiError as error:
            # A prompt that leaves no room ends a response as a limit of tokens does: incomplete.
            too_long = error.code == "context_length_exceeded"
            end = StartTurn(response, None, 0) if too_long else FailRun(response, SERVER_ERROR, str(error))
            self._deliver([end])
            return
        except Exception:
            log.exception("the next turn of response %s cannot be prepared", response)
            self._deliver([FailRun(response, SERVER_ERROR, CANNOT_GO_ON)])
            return
        if turn is None:
            self._deliver([StartTurn(response, None, 0)])
            return
        with self._lock:
            self._engine_requests[response] = turn.engine_request.request_id
        self._deliver([StartTurn(response, turn.decoding_spec, len(turn.engine_request.prompt))])
        try:
            self._engine.submit(turn.engine_request)
        except RequestRefused as refused:
            self._refused(turns, refused)
        with self._lock:
            unwanted = response in self._cancelled or response not in self._turns
        if unwanted:
            self._engine.cancel(turn.engine_request.request_id)

    def _refused(self, turns: TurnBuilder, refused: RequestRefused) -> None:
        log.warning("the next turn of response %s is refused: %s", turns.response, refused)
        no_room = refused.reason in ("overloaded", "share_full", "closed")
        if no_room and turns.resolved.request.background:
            self._deliver([ReleaseRuns(frozenset({turns.response}))])
        else:
            self._deliver([FailRun(turns.response, SERVER_ERROR, NO_ROOM if no_room else CANNOT_GO_ON)])


class Deliver(Protocol):
    def __call__(self, messages: Sequence[Inbound], /) -> None: ...
