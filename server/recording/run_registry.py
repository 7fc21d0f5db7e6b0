"""The runs in progress: applies the recorder's messages to them.

Pure: no thread, no clock, no database. An exception in one run fails that run only.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from engine.request import Failed, Finished, PromptLogprobs, Tokens
from server.generation.output_decoding import no_decoding
from server.generation.run import Run
from server.logs.context import response_fields
from server.protocol.ids import response_id
from server.protocol.responses.events import Event
from server.recording.recorder_messages import (
    SERVER_ERROR,
    BuildRun,
    CancelRequested,
    CancelRun,
    CheckOwnership,
    FailRun,
    RecorderMessage,
    ReleaseRuns,
    RunUpdate,
    StartRun,
    StartTurn,
    StopRecorder,
    ToolCallFinished,
    VerifyCommits,
    coalesce_tokens,
    response_hex_of,
)

log = logging.getLogger("holdfast.runs")

ENGINE_FAILED = "The model could not finish this response."
UNREADABLE = "The model's output could not be read."
_UNDECODABLE = "resp_%s failed while its tokens were read"


class RunRegistry:
    """The runs in progress. Only the recorder's thread changes it."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        """Runs by the response's id in hexadecimal, as engine requests name it: a string is looked up without
        a call of Python code, which a UUID is not."""
        self._tokens_without_event: dict[str, list[int]] = {}
        """Tokens that have produced no event yet, by response. They are stored with the next event."""
        self.isolated: dict[str, RunUpdate] = {}
        """Updates that are committed alone, because they could not be with the others, by response. Later
        messages extend them. Changed by the recorder's thread; any thread may ask whether one is in it."""

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def runs(self) -> list[Run]:
        """A snapshot. Any thread."""
        return list(self._runs.values())

    def get(self, response: UUID) -> Run | None:
        return self._runs.get(response.hex)

    def needs_commit(self, message: RecorderMessage) -> bool:
        """Tokens of a response that is not stored need no commit; its end does, for the metering.

        A run that is not known yet may start in the same batch.
        """
        match message:
            case Tokens(engine_request_id):
                run = self._runs.get(engine_request_id.partition(".")[0])
                return run is None or run.stored
            case BuildRun(_, _, announces):
                return announces
            case StartRun(run, starts):
                return starts and not run.started
            case StartTurn(_, decoding):
                return decoding is None or decoding.compaction is not None
            case CancelRequested(response):
                run = self._runs.get(response.hex)
                return run is not None and run.awaiting_tools
            case StopRecorder() | PromptLogprobs() | CheckOwnership():
                return False
            case _:
                return True

    def only_appends(self, messages: Sequence[RecorderMessage]) -> bool:
        """Whether these messages only append to event logs: no run starts or ends, unless decoding raises."""
        return all(isinstance(message, Tokens) or not self.needs_commit(message) for message in messages)

    def apply(self, messages: Sequence[RecorderMessage], now: datetime) -> list[RunUpdate]:
        """Applies the messages to their runs; one update for each run that they reach.

        Those of isolated runs are extended, and not among the updates. Runs that ended or were released leave
        the registry.
        """
        updates: dict[str, RunUpdate] = {}
        for message in coalesce_tokens(messages):
            if isinstance(message, Tokens):
                self._apply_tokens(updates, message, now)
            else:
                self._apply(message, updates, now)
        for update in updates.values():
            if update.is_last:
                self.remove(update.run.facts.id)
        return [update for key, update in updates.items() if self.isolated.get(key) is not update]

    def remove(self, response: UUID) -> None:
        """Removes a run that has ended or does not continue on this replica."""
        self._runs.pop(response.hex, None)
        self._tokens_without_event.pop(response.hex, None)

    def _apply(self, message: RecorderMessage, updates: dict[str, RunUpdate], now: datetime) -> None:
        key = response_hex_of(message)
        match message:
            case BuildRun():
                self._build(updates, message, now)
            case StartRun(run, starts):
                self._runs[key] = run
                if starts:
                    self._advance(updates, key, now, Run.start)
            case ReleaseRuns(responses):
                self._release(updates, responses)
            case Finished():
                self._finish(updates, message, now)
            case Failed(_, "engine_dead") if self._is_background(key):
                self._release(updates, frozenset({UUID(hex=key)}), engine_died=True)
            case Failed(_, code, cause, usage, times):
                fields = response_fields(UUID(hex=key))
                log.error("%s failed in the engine: %s: %s", fields["response_id"], code, cause, extra=fields)
                act = partial(
                    Run.fail, code=SERVER_ERROR, message=ENGINE_FAILED, at=now, usage=usage, times=times
                )
                self._advance(updates, key, now, act)
            case Tokens() | StopRecorder() | VerifyCommits() | CheckOwnership():
                pass
            case _:
                self._advance(updates, key, now, _action(message, now))

    def _build(self, updates: dict[str, RunUpdate], message: BuildRun, now: datetime) -> None:
        """Builds a run and starts it; a run whose tokens cannot be decoded fails."""
        key, facts = message.facts.id.hex, message.facts
        try:
            self._runs[key] = Run(facts, message.decoding())
        except Exception:
            log.exception("%s cannot begin", response_id(facts.id), extra=facts.log_fields)
            self._runs[key] = Run(facts, no_decoding())
            updates[key] = RunUpdate(self._runs[key])
            self._fail_undecodable(updates[key], now)
            return
        self._advance(updates, key, now, Run.start)

    def _is_background(self, key: str) -> bool:
        run = self._runs.get(key)
        return run is not None and run.facts.background

    def _release(
        self, updates: dict[str, RunUpdate], responses: frozenset[UUID] | None, *, engine_died: bool = False
    ) -> None:
        for key, run in self._runs.items():
            is_released = run.facts.background if responses is None else run.facts.id in responses
            if is_released and (update := self._update_of(updates, key)) is not None:
                update.released, update.engine_died = True, engine_died

    def _apply_tokens(self, updates: dict[str, RunUpdate], message: Tokens, now: datetime) -> None:
        """`_advance` with `Run.tokens`, written out because nearly all messages come this way."""
        key = message.request_id.partition(".")[0]
        update = self._update_of(updates, key)
        if update is None:
            return
        try:
            update.events += update.run.tokens(message.token_ids, now, message.logprobs)
        except Exception:
            log.exception(_UNDECODABLE, key, extra=update.run.facts.log_fields)
            self._fail_undecodable(update, now)
        if not update.events:
            self._tokens_without_event.setdefault(key, []).extend(message.token_ids)
            return
        if self._tokens_without_event:
            update.token_ids += self._tokens_without_event.pop(key, ())
        update.token_ids += message.token_ids

    def _finish(self, updates: dict[str, RunUpdate], message: Finished, now: datetime) -> None:
        """The engine request has ended, and with it one turn of the run, or the run."""
        key = response_hex_of(message)
        reason, usage, times = message.reason, message.usage, message.times
        act = partial(Run.finish, reason=reason, usage=usage, at=now, times=times)
        update = self._advance(updates, key, now, act)
        tokens = self._tokens_without_event.pop(key, [])
        if update is not None and update.events and update.run.ending is None:
            update.token_ids += tokens

    def _advance(
        self, updates: dict[str, RunUpdate], key: str, now: datetime, act: Callable[[Run], list[Event]]
    ) -> RunUpdate | None:
        """Applies one message to a run and returns its update; an exception fails this run and no other.

        None if the run is unknown, has ended or was released.
        """
        update = self._update_of(updates, key)
        if update is not None:
            try:
                update.events += act(update.run)
            except Exception:
                log.exception(_UNDECODABLE, key, extra=update.run.facts.log_fields)
                self._fail_undecodable(update, now)
        return update

    def _update_of(self, updates: dict[str, RunUpdate], key: str) -> RunUpdate | None:
        """The run's update in this commit, a new one for its first message; None where `_advance` says so."""
        run, update = self._runs.get(key), updates.get(key)
        if update is None and key in self.isolated and self.isolated[key].run is run:
            update = updates[key] = self.isolated[key]
            update.log_rows = None  # more events come
        if run is None or run.ending is not None or (update is not None and update.released):
            self._tokens_without_event.pop(key, None)
            return None
        if update is None:
            update = updates[key] = RunUpdate(run)
        return update

    def _fail_undecodable(self, update: RunUpdate, now: datetime) -> None:
        """Ends a run that raised. Its output up to now may be the reason, so this may raise again."""
        update.cut_short = True
        try:
            update.events += update.run.fail(SERVER_ERROR, UNREADABLE, now, readable=False)
        except Exception:
            name, fields = response_id(update.run.facts.id), update.run.facts.log_fields
            log.exception("%s cannot be ended with what it has", name, extra=fields)
            update.unwritable = True


def _action(
    message: PromptLogprobs | FailRun | CancelRun | ToolCallFinished | StartTurn | CancelRequested,
    now: datetime,
) -> Callable[[Run], list[Event]]:
    """The action on a run that a message asks for which neither starts it nor ends its engine request."""
    match message:
        case PromptLogprobs():
            return partial(Run.add_prompt_logprobs, logprobs=message.logprobs)
        case FailRun(_, code, text):
            return partial(Run.fail, code=code, message=text, at=now)
        case CancelRun(_, reason):
            return partial(Run.cancel, at=now, reason=reason)
        case ToolCallFinished(_, index, outcome):
            return partial(Run.finish_call, index=index, outcome=outcome, at=now)
        case StartTurn(_, decoding, prompt_tokens):
            return partial(Run.next_turn, decoding=decoding, prompt_tokens=prompt_tokens, at=now)
        case CancelRequested(_, reason):
            return partial(Run.request_cancel, at=now, reason=reason)
