"""One attempt by one replica to generate a response: engine messages in, events out (sans-IO). The same
tokens always give the same events, so a crashed run is rebuilt by feeding the logged tokens to a fresh one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from engine.request import FinishReason, TokenLogprobs, TokenUsage
from engine.stats_snapshot import NOT_MEASURED, RequestTimes
from server.generation.event_emitter import EventEmitter
from server.generation.hosted_tools_of_response import PendingToolWork, ToolResult
from server.generation.output_decoding import DecodingSpec, OutputDecoder
from server.generation.run_log import RunLog
from server.generation.token_dump import TokenDump
from server.logs.context import ResponseFields, response_fields
from server.model_formats.model_format import Delta, TextDelta
from server.protocol.responses.events import FIRST_EVENTS, Event
from server.protocol.responses.items import Item, Logprob, awaits_client
from server.protocol.responses.response import (
    CancelReason,
    Echo,
    Ending,
    EndStatus,
    Response,
    ResponseFacts,
    TurnUsage,
)

_ENDS: dict[FinishReason, tuple[EndStatus, str | None]] = {
    "stop": ("completed", None),
    "length": ("incomplete", "max_output_tokens"),
    "cancelled": ("cancelled", None),
}
"""The status and `incomplete_details.reason` of a response whose engine request ended so."""

NO_CALL = "The output ended before the tool call that tool_choice requires was complete."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(ResponseFacts):
    """The facts of a response that do not change while it is generated in one attempt."""

    echo: Echo
    attempt: int
    prompt_tokens: int
    wants_output: bool = True
    """If False, only the prompt is prefilled; the single sampled token is discarded."""

    @property
    def stored(self) -> bool:
        """Whether the response has a row."""
        return self.echo.store or self.background

    @property
    def log_fields(self) -> ResponseFields:
        """`extra` of a log line about this response."""
        return response_fields(self.id, self.tenant, self.key_id, self.request_id)


class Run:
    """One response in progress. `finish`, `fail` and `cancel` set `ending` and `final`."""

    def __init__(self, facts: RunFacts, decoding: DecodingSpec) -> None:
        self.facts = facts
        self.stored = facts.stored
        self.ending: Ending | None = None
        self.final: Response | None = None
        self.turn = 0
        """The number of finished model turns that were followed by another one."""
        self.awaiting_tools = False
        """One turn is over and the next has not begun: the engine has no request of this run."""
        self._hosted_tools = decoding.hosted
        self._emitter = EventEmitter(
            facts.id,
            facts.created_at,
            facts.echo,
            decoding.seal,
            self._hosted_tools,
            summarizes_reasoning=decoding.summarizes_reasoning,
        )
        self.started = False
        """All events before the first token were emitted."""
        self._cancel_reason: CancelReason | None = None
        self._first_token_at: datetime | None = None
        self.call_seconds: dict[int, float] = {}
        """How long calls took that the server made in this attempt, by the output index of their items."""
        self._turn_usages: list[TurnUsage] = []
        self._reasoning_tokens = 0
        self._times = NOT_MEASURED
        """Sums over the turns of what the engine has measured."""
        self._tool_work: PendingToolWork | None = None
        self._token_dump: TokenDump | None = None
        self._streamed_prompt_ids = decoding.streamed_prompt_ids
        self._prompt_grows = False
        """The current turn's prompt is the previous one with its tokens and what its tools gave."""
        self._begin_decoding(decoding, facts.prompt_tokens)

    def _begin_decoding(self, decoding: DecodingSpec, prompt_tokens: int) -> None:
        self._decoder = OutputDecoder(decoding)
        self._prompt_tokens = prompt_tokens
        self._dropped_items = decoding.dropped_items
        self._compaction = decoding.compaction
        self._summary_text: list[str] = []
        """The summary that the model writes in a turn of a compaction."""
        if decoding.token_dump is not None:
            self._token_dump = decoding.token_dump.after_turns(self._token_dump)
        self._resumed_tokens = 0
        self._turn_start = len(self.output)

    @property
    def engine_request_id(self) -> str:
        """The id of the current turn's engine request: the response's id in hexadecimal, `.turn` after it."""
        return f"{self.facts.id.hex}.{self.turn}" if self.turn else self.facts.id.hex

    @property
    def next_seq(self) -> int:
        return self._emitter.numbers.next_seq

    @property
    def output(self) -> list[Item]:
        return self._emitter.output

    def start(self) -> list[Event]:
        """All events between the `first_events` and the first token; none if started before."""
        if self.started:
            return []
        self.started = True
        events = [self._emitter.in_progress()] if self.facts.background else []
        if self._streamed_prompt_ids is not None:
            events.append(self._emitter.token_ids("prompt", self._streamed_prompt_ids))
        events += self._emitter.tool_calls.start()
        if self._emitter.tool_calls.pending_calls:
            self._await_tools()
        return events + self._begin_compaction()

    def _begin_compaction(self) -> list[Event]:
        if self._compaction is None:
            return []
        events = self._emitter.start_compaction(answers=self._compaction.answers)
        if self._compaction.by_model:
            return events
        return events + self._emitter.end_compaction(self._sealed_summary)

    @property
    def writes_summary(self) -> bool:
        """The current turn is a compaction's alone: its tokens, if any, are a summary and not streamed."""
        return self._compaction is not None and (self._compaction.by_model or self.turn > 0)

    def _sealed_summary(self, item_id: str) -> str:
        assert self._compaction is not None
        return self._compaction.seal(item_id, "".join(self._summary_text))

    def feed_logged_tokens(
        self, token_ids: Sequence[int], events: Sequence[Event], first_token_at: datetime | None
    ) -> list[Event]:
        """The events that a turn's logged tokens give now; `events` are those that they gave then.

        Their deltas may be cut differently from the logged ones; their text is the same.
        """
        self._decoder.restore_logprobs(events)
        emitted = self.tokens(token_ids, first_token_at)
        self._resumed_tokens = self._decoder.token_count if self.has_stopped else len(token_ids)
        return emitted

    def set_next_seq(self, next_seq: int) -> None:
        self._emitter.numbers.next_seq = next_seq

    def restore_output_only(self, log: RunLog) -> None:
        """Restores the output from logged events, only to end a run whose tokens can no longer be decoded."""
        self.emit_start_events(log)
        self._first_token_at = log.first_token_at
        self._decoder.token_count = self._resumed_tokens = len(log.token_ids)
        self._emitter.restore(log.events)
        self.set_next_seq(log.next_seq)

    def emit_start_events(self, log: RunLog) -> None:
        """Repeats the state changes of `start`, if the log shows them."""
        if log.next_seq > FIRST_EVENTS:
            self.start()

    def tokens(
        self, token_ids: Sequence[int], at: datetime | None, logprobs: Sequence[TokenLogprobs] | None = None
    ) -> list[Event]:
        """The events of new tokens; none while their text is incomplete or may belong to a stop string."""
        if not self.facts.wants_output:
            return []
        self._first_token_at = self._first_token_at or at
        before = self._decoder.token_count
        decoded = self._decoder.feed(token_ids, logprobs)
        output = token_ids[: self._decoder.token_count - before]
        if self._token_dump is not None:
            self._token_dump.append(output)
        streamed = self._streamed_prompt_ids is not None and output
        events = [self._emitter.token_ids("output", output)] if streamed else []
        return events + self._emit(decoded)

    def add_prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> list[Event]:
        """Collects those of the prompt's next tokens for the final response; no event."""
        if self._token_dump is not None:
            self._token_dump.add_prompt_logprobs(logprobs)
        return []

    def finish(
        self, reason: FinishReason, usage: TokenUsage, at: datetime, times: RequestTimes = NOT_MEASURED
    ) -> list[Event]:
        """The last events of the turn or response; after a stop string that is complete in any case."""
        self._add_times(times)
        stopped = self.has_stopped
        rest = self._emit(self._decoder.close())
        if stopped:
            usage = replace(usage, output=self._decoder.token_count - self._resumed_tokens)
        if not self.facts.wants_output:
            usage = replace(usage, output=0)
        if (reason == "length" and (self.has_stopped or not self.facts.wants_output)) or stopped:
            reason = "stop"
        status, incomplete_reason = _ENDS[reason]
        if reason == "stop":
            self._decoder.stop()
        if self.writes_summary and status != "cancelled":
            return self._end_summary(usage, at)
        if status == "completed" and self.facts.wants_output and self._decoder.lacks_call:
            return rest + self._end("failed", usage, at, error_code="server_error", error_message=NO_CALL)
        if status == "completed" and self._emitter.tool_calls.pending_calls:
            return rest + self._end_turn(usage)
        if status == "completed" and not stopped and self._emitter.is_in_call:
            status, incomplete_reason = _ENDS["length"]  # a client must not take half a call for a whole one
        return rest + self._end(status, usage, at, incomplete_reason=incomplete_reason)

    def _end_summary(self, usage: TokenUsage, at: datetime) -> list[Event]:
        """The compaction is done; the response continues with the short context, if it is to answer."""
        assert self._compaction is not None
        events = self._emitter.end_compaction(self._sealed_summary)
        if not self._compaction.answers:
            return events + self._end("completed", usage, at)
        self._add_usage(usage)
        self._await_tools()
        return events

    def _end_turn(self, usage: TokenUsage) -> list[Event]:
        self._add_usage(usage)
        events = self._emitter.close_turn()
        self._await_tools()
        return events

    def _await_tools(self) -> None:
        """Waits for the turn's calls, or, if there are none, for the next turn."""
        self.awaiting_tools = True
        self._tool_work = PendingToolWork(
            tuple(self._emitter.tool_calls.due_calls()),
            tuple(self.output),
            self.turn,
            sum(turn.output for turn in self._turn_usages),
            self._dropped_items,
        )

    def take_tool_work(self) -> PendingToolWork | None:
        """The next work of the tool loop for this run; returned once."""
        tool_work, self._tool_work = self._tool_work, None
        return tool_work

    @property
    def next_step_is_tools(self) -> bool:
        """Tool calls, or the turn after them, come next, and no engine request."""
        return self.awaiting_tools or (not self.started and bool(self._hosted_tools.approved_calls))

    @property
    def has_stopped(self) -> bool:
        """A stop string has ended the current turn. What the engine still generates is no output."""
        return self._decoder.stop_string is not None and not self.awaiting_tools

    @property
    def has_pending_calls(self) -> bool:
        return bool(self._emitter.tool_calls.pending_calls)

    def finish_call(self, index: int, outcome: ToolResult, at: datetime) -> list[Event]:
        """The events of a call's result; after the last one the next turn is due, or the client's call."""
        if index not in self._emitter.tool_calls.pending_calls:
            return []
        if outcome.seconds is not None:
            self.call_seconds[index] = outcome.seconds
        events = self._emitter.tool_calls.finish_call(index, outcome)
        if self._emitter.tool_calls.pending_calls:
            return events
        turn_items = self.output[self._turn_start :]
        if any(map(awaits_client, turn_items)):
            return events + self._end("completed", TokenUsage(), at)
        self._await_tools()
        return events

    def next_turn(self, decoding: DecodingSpec | None, prompt_tokens: int, at: datetime) -> list[Event]:
        """Begins the next turn; one that compacts without the model is over at once. Without `decoding` there
        is no token left for it: the response ends.
        """
        if decoding is None:
            return self._end("incomplete", TokenUsage(), at, incomplete_reason="max_output_tokens")
        self._prompt_grows = decoding.compaction is None and not self.writes_summary
        self.turn += 1
        self.awaiting_tools = False
        self._begin_decoding(decoding, prompt_tokens)
        events = self._begin_compaction()
        if self._compaction is not None and not self._compaction.by_model:
            self._await_tools()
        return events

    def request_cancel(self, at: datetime, reason: CancelReason | None = None) -> list[Event]:
        """Ends the run between two turns, else the engine's end does. The first reason stays."""
        self._cancel_reason = self._cancel_reason or reason
        return self.cancel(at) if self.awaiting_tools else []

    def _add_usage(self, usage: TokenUsage) -> None:
        """Adds a turn. Resumed tokens are output, not prompt; tool output is what the prompt has beyond the
        previous turn's tokens, unless the context was compacted between them.
        """
        prompt, tools = usage.prompt - self._resumed_tokens, 0
        if self._turn_usages and self._prompt_grows:
            before = self._turn_usages[-1]
            tools = max(0, prompt - before.input - before.output)
        self._turn_usages.append(
            TurnUsage(
                prompt,
                min(usage.cached, prompt),
                usage.output + self._resumed_tokens,
                tools,
                self._dropped_items,
            )
        )
        self._reasoning_tokens += self._decoder.reasoning_tokens
        self._resumed_tokens = 0

    def _add_times(self, times: RequestTimes) -> None:
        """Adds those of a turn; what no turn has is not known."""
        self._times = RequestTimes(*map(_sum_of_known, self._times, times))

    def cancel(self, at: datetime, reason: CancelReason | None = None) -> list[Event]:
        """The last events of a response that is cancelled while the engine has no request of it."""
        self._cancel_reason = self._cancel_reason or reason
        return self.finish("cancelled", self.counted_usage, at)

    def fail(
        self,
        code: str,
        message: str,
        at: datetime,
        usage: TokenUsage | None = None,
        *,
        times: RequestTimes = NOT_MEASURED,
        readable: bool = True,
    ) -> list[Event]:
        """The last events of a failed response; after the parser has raised pass `readable=False`."""
        if self.has_stopped:
            return self.finish("stop", usage or self.counted_usage, at, times)
        self._add_times(times)
        readable = readable and not self.awaiting_tools
        rest = self._emit(self._decoder.close()) if readable else []
        usage = usage or self.counted_usage
        return rest + self._end("failed", usage, at, error_code=code, error_message=message)

    @property
    def counted_usage(self) -> TokenUsage:
        """The current turn's usage as counted here, where the engine reports none."""
        if self.awaiting_tools:
            return TokenUsage()
        resumed = self._resumed_tokens
        return TokenUsage(self._prompt_tokens + resumed, output=self._decoder.token_count - resumed)

    def _end(
        self,
        status: EndStatus,
        usage: TokenUsage,
        at: datetime,
        *,
        error_code: str | None = None,
        error_message: str | None = None,
        incomplete_reason: str | None = None,
    ) -> list[Event]:
        if not self.awaiting_tools:
            self._add_usage(usage)
        self.awaiting_tools = False
        self._tool_work = None
        turns = tuple(self._turn_usages)
        self.ending = Ending(
            status=status,
            first_token_at=self._first_token_at,
            finished_at=at,
            input_tokens=sum(turn.input for turn in turns),
            cached_tokens=sum(turn.cached for turn in turns),
            output_tokens=sum(turn.output for turn in turns),
            reasoning_tokens=self._reasoning_tokens,
            queue_seconds=self._times.queue,
            prefill_seconds=self._times.prefill,
            turns=turns,
            error_code=error_code,
            error_message=error_message,
            incomplete_reason=incomplete_reason,
            cancel_reason=self._cancel_reason if status == "cancelled" else None,
        )
        events, self.final = self._emitter.end(self.ending, self._token_dump, self._decoder)
        return events

    def _emit(self, decoded: Sequence[tuple[Delta, Sequence[Logprob]]]) -> list[Event]:
        if self.writes_summary:
            self._summary_text += [delta.text for delta, _ in decoded if isinstance(delta, TextDelta)]
            return []
        return [event for delta, logprobs in decoded for event in self._emitter.delta(delta, logprobs)]


def _sum_of_known(total: float | None, seconds: float | None) -> float | None:
    return total if seconds is None else (total or 0.0) + seconds
