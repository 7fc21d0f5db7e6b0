"""A run: one attempt by one replica to produce a response, as a sans-IO object.

Engine messages in, events out; time comes from the caller. Given the same tokens it yields the same events,
so a crash is repaired by feeding the stored tokens to a fresh run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from engine.messages import FinishReason
from engine.messages import Usage as EngineUsage
from server.dialects.base import Delta, Parser, ReasoningDelta, TextDelta
from server.runs.emitter import Emitter
from server.runs.states import Ending, EndStatus
from server.wire.events import Event, Kind
from server.wire.items import Item
from server.wire.response import Echo, Response


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

    @property
    def job_id(self) -> str:
        return self.id.hex


class Run:
    """One response in the making. `ending` and `final` are set by `finish` and `fail`."""

    def __init__(self, facts: RunFacts, parser: Parser) -> None:
        self.facts = facts
        self.ending: Ending | None = None
        self.final: Response | None = None
        self._parser = parser
        self._emitter = Emitter(facts.id, facts.created_at, facts.echo)
        self._first_token_at: datetime | None = None
        self._tokens = 0

    @property
    def stored(self) -> bool:
        return self.facts.echo.store

    @property
    def output(self) -> list[Item]:
        return self._emitter.output

    def begin(self) -> list[Event]:
        return self._emitter.begin()

    def resume(self, token_ids: Sequence[int], next_seq: int) -> list[Event]:
        """Brings a fresh run to where the log ends: the tokens in it, the next number after it.

        Gives what the tokens say now; its deltas are cut otherwise than in the log, its text is the same.
        """
        self.begin()
        events = self.tokens(token_ids, None)
        self._emitter.next_seq = next_seq
        return events

    def resume_told(self, told: Iterable[Event], next_seq: int) -> None:
        """The same from the log's deltas, for tokens that cannot be read again; such a run can only fail."""
        self.begin()
        for event in told:
            if event.kind is not Kind.WHOLE:
                kind = TextDelta if event.kind is Kind.OUTPUT_TEXT_DELTA else ReasoningDelta
                self._emitter.delta(kind(event.body))
        self._emitter.next_seq = next_seq

    def tokens(self, token_ids: Sequence[int], at: datetime | None) -> list[Event]:
        """Events for tokens that the engine gave; none while their text is still uncertain."""
        self._first_token_at = self._first_token_at or at
        self._tokens += len(token_ids)
        return self._emit(self._parser.feed(token_ids))

    def finish(self, reason: FinishReason, usage: EngineUsage, at: datetime) -> list[Event]:
        """The last events, after the engine has ended the job."""
        status: EndStatus
        match reason:
            case "stop":
                status, why = "completed", None
            case "length":
                status, why = "incomplete", "max_output_tokens"
            case "cancelled":
                status, why = "cancelled", None
        rest = self._emit(self._parser.close())
        return rest + self._end(status, usage, at, incomplete_reason=why)

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
        counted = usage or EngineUsage(prompt=self.facts.prompt_tokens, output=self._tokens)
        rest = self._emit(self._parser.close()) if readable else []
        return rest + self._end("failed", counted, at, error_code=code, error_message=message)

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
        self.ending = Ending(
            status=status,
            first_token_at=self._first_token_at,
            finished_at=at,
            input_tokens=usage.prompt,
            cached_tokens=usage.cached,
            output_tokens=usage.output,
            reasoning_tokens=self._parser.reasoning_tokens,
            error_code=error_code,
            error_message=error_message,
            incomplete_reason=incomplete_reason,
        )
        events, self.final = self._emitter.end(self.ending)
        return events

    def _emit(self, deltas: Sequence[Delta]) -> list[Event]:
        return [event for delta in deltas for event in self._emitter.delta(delta)]
