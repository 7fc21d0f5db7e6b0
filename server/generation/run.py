"""A run: one attempt by one replica to produce a response, as a sans-IO object.

Engine messages in, events out; time comes from the caller. Given the same tokens it yields the same events,
so a crash is repaired by feeding the stored tokens to a fresh run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from engine.request import FinishReason, StopMatch
from engine.request import TokenLogprobs as EngineLogprobs
from engine.request import Usage as EngineUsage
from server.generation.event_emitter import EventEmitter
from server.generation.finish_details import FinishDetails
from server.generation.logprobs import TokenLogprobs
from server.generation.output_decoding import DecodingSpec
from server.generation.stop_strings import StopStringFilter
from server.generation.token_dump import TokenDump
from server.generation.turn_usage import TurnUsages
from server.hosted_tools.tool_specs import PendingToolWork, ToolResult
from server.model_formats.interface import CallDelta, Delta, ReasoningDelta, TextDelta
from server.protocol.responses.events import Event
from server.protocol.responses.hosted_items import McpApprovalRequest
from server.protocol.responses.items import CustomToolCall, FunctionCall, Item
from server.protocol.responses.response import Echo, Response
from server.protocol.responses.states import Ending, EndStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What stays the same while a response is produced."""

    tenant: str
    id: UUID
    key_id: str | None
    echo: Echo
    created_at: datetime
    attempt: int
    prompt_tokens: int
    generates: bool = True
    """Else it is over when the model has read the prompt, and the token that it draws then is nobody's."""


@dataclass(frozen=True, slots=True)
class Log:
    """What is stored of a run that another replica began."""

    token_ids: Sequence[int]
    next_seq: int
    told: Sequence[Event]
    first_token_at: datetime | None


class Run:
    """One response in the making. `ending` and `final` are set by `finish` and `fail`."""

    def __init__(self, facts: RunFacts, reading: DecodingSpec) -> None:
        self.facts = facts
        self.ending: Ending | None = None
        self.final: Response | None = None
        self.turn = 0
        """How many turns of the model are over, each of which ended in calls that the server makes."""
        self.calling = False
        """A turn is over and the next one has not begun: no engine request is there."""
        self._hosted = reading.hosted
        self._condensing = reading.condensing
        self._written: list[str] = []
        """The summary that the model writes in the first turn of a compaction."""
        self._emitter = EventEmitter(
            facts.id,
            facts.created_at,
            facts.echo,
            reading.seal,
            self._hosted,
            summarizes=reading.summarizes,
        )
        self._started = False
        self._first_token_at: datetime | None = None
        self._spent = TurnUsages()
        self._reasoned = 0
        self._errand: PendingToolWork | None = None
        self._raw: TokenDump | None = None
        self._tokens_of = reading.tokens_of
        self._read_with(reading, facts.prompt_tokens)

    def _read_with(self, reading: DecodingSpec, prompt_tokens: int) -> None:
        """Begins to read the tokens of one engine request."""
        self._parser = reading.parser
        self._stops = StopStringFilter(reading.stops, told=reading.tells_stop)
        self._stopped_kind: type[TextDelta | ReasoningDelta | CallDelta] = TextDelta
        """What the text is a part of that the filter holds back."""
        self._end_facts = FinishDetails(reading)
        self._logprobs = None
        if reading.vocabulary is not None:
            self._logprobs = TokenLogprobs(reading.vocabulary, names_ids=reading.names_ids)
        self._prompt_tokens = prompt_tokens
        if reading.raw is not None:
            self._raw = reading.raw.behind(self._raw)
        self._tokens = 0
        self._resumed_tokens = 0
        self._turn_start = len(self.output)

    @property
    def engine_request_id(self) -> str:
        """The id of the engine request that its tokens come from."""
        return f"{self.facts.id.hex}.{self.turn}" if self.turn else self.facts.id.hex

    @property
    def stored(self) -> bool:
        return self.facts.echo.has_row

    @property
    def started(self) -> bool:
        """The stream says that the response is in progress."""
        return self._started

    @property
    def next_seq(self) -> int:
        """The number of the next event."""
        return self._emitter.next_seq

    @property
    def output(self) -> list[Item]:
        return self._emitter.output

    def begin(self) -> list[Event]:
        """The events that exist from the response's acceptance on."""
        return self._emitter.begin()

    def start(self) -> list[Event]:
        """What is told when it begins to be generated; nothing if that was told before."""
        if self._started:
            return []
        self._started = True
        events = [] if self._tokens_of is None else [self._emitter.tokens("prompt", self._tokens_of)]
        events += self._emitter.start()
        if self._emitter.pending:
            self._wait()
        if self._condensing is None:
            return events
        events += self._emitter.compacting(answers=self._condensing.answers)
        return events if self._condensing.by_model else events + self._emitter.compacted(self._sealed)

    @property
    def sums_up(self) -> bool:
        """Its tokens are a summary, which nobody is told of."""
        return self.turn == 0 and self._condensing is not None and self._condensing.by_model

    def _sealed(self, place: str) -> str:
        assert self._condensing is not None
        return self._condensing.seal(place, "".join(self._written))

    def resume(self, log: Log) -> list[Event]:
        """Brings a fresh run to where the log ends: the tokens in it, the next number after it.

        Gives what the tokens say now; its deltas are cut otherwise than in the log, its text is the same.
        """
        self.catch_up_to(log)
        events = self.read_again(log)
        self._emitter.next_seq = log.next_seq
        return events

    def read_again(self, log: Log) -> list[Event]:
        """What the log's tokens say, which are all of one engine request."""
        if self._logprobs is not None:
            self._logprobs.remember(log.told)
        events = self.tokens(log.token_ids, log.first_token_at)
        self._resumed_tokens = len(log.token_ids)
        return events

    def go_on_at(self, next_seq: int) -> None:
        """Every event from now on is numbered from there."""
        self._emitter.next_seq = next_seq

    def resume_told(self, log: Log) -> None:
        """The same from the log's deltas, for tokens that cannot be read again; such a run can only fail."""
        self.catch_up_to(log)
        self._first_token_at = log.first_token_at
        self._tokens = self._resumed_tokens = len(log.token_ids)
        self._emitter.retell(log.told)
        self._emitter.next_seq = log.next_seq

    def catch_up_to(self, log: Log) -> None:
        """Tells again what is told before the first token."""
        begun = self.begin()
        if log.next_seq > len(begun):
            self.start()

    def tokens(
        self,
        token_ids: Sequence[int],
        at: datetime | None,
        logprobs: Sequence[EngineLogprobs] | None = None,
    ) -> list[Event]:
        """Events for tokens that the engine gave; none while their text is still uncertain."""
        if not self.facts.generates:
            return []
        self._first_token_at = self._first_token_at or at
        if self._logprobs is not None and logprobs is not None:
            self._logprobs.take(self._tokens, token_ids, logprobs)
        self._tokens += len(token_ids)
        if self._raw is not None:
            self._raw.take(token_ids)
        told = [] if self._tokens_of is None else [self._emitter.tokens("output", token_ids)]
        return told + self._emit(self._parser.feed(self._end_facts.take(token_ids, logprobs)))

    def prompt_logprobs(self, logprobs: Sequence[EngineLogprobs]) -> list[Event]:
        """Takes note of those of the prompt's next tokens; they are told with the end."""
        if self._raw is not None:
            self._raw.take_of_prompt(logprobs)
        return []

    def finish(
        self, reason: FinishReason, usage: EngineUsage, at: datetime, stop_match: StopMatch | None = None
    ) -> list[Event]:
        """The last events, after the engine has ended the engine request."""
        status: EndStatus
        if not self.facts.generates:
            usage = replace(usage, output=0)
        match reason:
            case "stop":
                status, why = "completed", None
            case "length" if not self.facts.generates:
                status, why = "completed", None
            case "length":
                status, why = "incomplete", "max_output_tokens"
            case "cancelled":
                status, why = "cancelled", None
        if reason == "stop":
            self._end_facts.stop(stop_match)
        rest = self._emit(self._parser.close()) + self._release(stop_match)
        if self.sums_up and status != "cancelled":
            return self._end_summary(usage, at)
        if status == "completed" and self._emitter.pending:
            return rest + self._end_turn(usage)
        return rest + self._end(status, usage, at, incomplete_reason=why)

    def _end_summary(self, usage: EngineUsage, at: datetime) -> list[Event]:
        """The context is short now; the model answers from that, if it is to answer."""
        assert self._condensing is not None
        events = self._emitter.compacted(self._sealed)
        if not self._condensing.answers:
            return events + self._end("completed", usage, at)
        self._spend(usage)
        self._wait()
        return events

    def _end_turn(self, usage: EngineUsage) -> list[Event]:
        """The model waits for calls of the server's."""
        self._spend(usage)
        events = self._emitter.rest()  # what is open is over: its last word was said before the turn's end
        self._wait()
        return events

    def _wait(self) -> None:
        """For its calls, or, if there are none, for its next turn."""
        self.calling = True
        self._errand = PendingToolWork(
            tuple(self._emitter.due()), tuple(self.output), self.turn, self._spent.output
        )

    def take_errand(self) -> PendingToolWork | None:
        """What is to be done for the run outside, told once."""
        errand, self._errand = self._errand, None
        return errand

    @property
    def waits_for_calls(self) -> bool:
        """Its next step is calls of the server's, or the turn behind them: no engine request is there."""
        return self.calling or (not self._started and bool(self._hosted.approved))

    @property
    def calls_due(self) -> bool:
        """The model has asked for calls of the server's that are not made yet."""
        return bool(self._emitter.pending)

    def called(self, index: int, outcome: ToolResult, at: datetime) -> list[Event]:
        """The events of a call that was made; after the last, the model's next turn is due, or the end.

        A call that is the client's to make, or to allow, ends the response as always.
        """
        if index not in self._emitter.pending:
            return []
        events = self._emitter.called(index, outcome)
        if self._emitter.pending:
            return events
        own = self.output[self._turn_start :]
        if any(isinstance(item, FunctionCall | CustomToolCall | McpApprovalRequest) for item in own):
            return events + self._end("completed", EngineUsage(), at)
        self._wait()
        return events

    def next_turn(self, reading: DecodingSpec | None, prompt_tokens: int, at: datetime) -> list[Event]:
        """The model goes on, behind its calls; without a reading there is no token left for that."""
        if reading is None:
            return self._end("incomplete", EngineUsage(), at, incomplete_reason="max_output_tokens")
        self.turn += 1
        self.calling = False
        self._read_with(reading, prompt_tokens)
        return []

    def interrupt(self, at: datetime) -> list[Event]:
        """Its end is asked for, which the engine hears of too: said here if no engine has the response."""
        return self.cancel(at) if self.calling else []

    def _spend(self, usage: EngineUsage) -> None:
        sums_up = self._condensing is not None and self._condensing.by_model
        self._spent.add(usage, self._resumed_tokens, sums_up_first=sums_up)
        self._reasoned += self._parser.reasoning_tokens
        self._resumed_tokens = 0

    def cancel(self, at: datetime) -> list[Event]:
        """The last events of a response whose end was asked for while no engine had it."""
        return self.finish("cancelled", self._own_usage(), at)

    def fail(
        self,
        code: str,
        message: str,
        at: datetime,
        usage: EngineUsage | None = None,
        *,
        readable: bool = True,
    ) -> list[Event]:
        """The last events of a response that cannot be finished; what there is of its output is kept.

        A parser that has raised is not `readable`: what it held back is lost.
        """
        readable = readable and not self.calling
        rest = self._emit(self._parser.close()) + self._release(None) if readable else []
        counted = usage or self._own_usage()
        return rest + self._end("failed", counted, at, error_code=code, error_message=message)

    def _own_usage(self) -> EngineUsage:
        """What the engine would say of the tokens that came, had it been asked."""
        if self.calling:
            return EngineUsage()
        resumed = self._resumed_tokens
        return EngineUsage(self._prompt_tokens + resumed, output=self._tokens - resumed)

    def _end(
        self,
        status: EndStatus,
        usage: EngineUsage,
        at: datetime,
        *,
        error_code: str | None = None,
        error_message: str | None = None,
        incomplete_reason: str | None = None,
    ) -> list[Event]:
        if not self.calling:
            self._spend(usage)
        self.calling = False
        self._errand = None
        self.ending = Ending(
            status=status,
            first_token_at=self._first_token_at,
            finished_at=at,
            input_tokens=self._spent.prompt,
            cached_tokens=self._spent.cached,
            output_tokens=self._spent.output,
            reasoning_tokens=self._reasoned,
            turns=tuple(self._spent.turns),
            error_code=error_code,
            error_message=error_message,
            incomplete_reason=incomplete_reason,
        )
        events, self.final = self._emitter.end(self.ending, self._raw, self._end_facts)
        return events

    def _emit(self, deltas: Sequence[Delta]) -> list[Event]:
        if self.sums_up:
            self._written += [delta.text for delta in deltas if isinstance(delta, TextDelta)]
            return []
        return [event for delta in deltas for event in self._emit_one(delta)]

    def _emit_one(self, delta: Delta) -> list[Event]:
        """The events of one delta, but for text that may belong to a stop string."""
        if not isinstance(delta, TextDelta | ReasoningDelta | CallDelta):
            return self._release(None) + self._emitter.delta(delta)
        events = self._release(None) if type(delta) is not self._stopped_kind else []
        self._stopped_kind = type(delta)
        told = self._logprobs.of(delta.tokens) if self._logprobs and isinstance(delta, TextDelta) else []
        text = self._stops.feed(delta.text)
        if text or told:
            events += self._emitter.delta(self._stopped_kind(text), told)
        return events

    def _release(self, stop_match: StopMatch | None) -> list[Event]:
        """Tells what was held back, up to the stop string that ended the answer."""
        text = self._stops.close(stop_match)
        return self._emitter.delta(self._stopped_kind(text)) if text else []
