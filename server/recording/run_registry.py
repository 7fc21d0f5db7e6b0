"""The runs in progress on this replica: applies the recorder's messages to them and collects one update for
each.

Pure: no thread, no clock, no database. An exception in one run fails that run only.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from engine.request import Failed, Finished, PromptLogprobs, Tokens
from server.generation.run import Run
from server.protocol.responses.events import Event
from server.recording.messages import (
    SERVER_ERROR,
    CancelRequested,
    CancelRun,
    FailRun,
    RecorderMessage,
    ReleaseRuns,
    RunUpdate,
    StartRun,
    StartTurn,
    StopRecorder,
    ToolCallFinished,
    coalesce_tokens,
    response_id_of,
)

log = logging.getLogger("holdfast.runs")

ENGINE_FAILED = "The model could not finish this response."
UNREADABLE = "The model's output could not be read."


class RunRegistry:
    """The runs in progress. Only the recorder's thread changes it."""

    def __init__(self) -> None:
        self._runs: dict[UUID, Run] = {}
        self._tokens_without_event: dict[UUID, list[int]] = {}
        """Tokens that have produced no event yet. They are stored with the next event."""
        self.paused: set[UUID] = set()
        """Runs whose last update is not committed yet. `SuspendedRuns` retains the messages to them."""

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def runs(self) -> list[Run]:
        """A snapshot. Any thread."""
        return list(self._runs.values())

    def get(self, response: UUID) -> Run | None:
        return self._runs.get(response)

    def needs_commit(self, message: RecorderMessage) -> bool:
        """Tokens of a response that is not stored need no commit; its end does, for the metering.

        A run that is not known yet may start in the same batch.
        """
        match message:
            case Tokens(engine_request_id):
                run = self._runs.get(response_id_of(engine_request_id))
                return run is None or run.stored
            case StartRun(run, starts):
                return starts and not run.started
            case StartTurn(_, decoding):
                return decoding is None
            case CancelRequested(response):
                run = self._runs.get(response)
                return run is not None and run.awaiting_tools
            case StopRecorder() | PromptLogprobs():
                return False
            case _:
                return True

    def only_appends(self, messages: Sequence[RecorderMessage]) -> bool:
        """Whether these messages only append to event logs: no run starts or ends, unless decoding raises."""
        return all(isinstance(message, Tokens) or not self.needs_commit(message) for message in messages)

    def apply(self, messages: Sequence[RecorderMessage], now: datetime) -> list[RunUpdate]:
        """Applies the messages to their runs; one update for each run that they reach.

        Runs that ended or were released leave the registry.
        """
        updates: dict[UUID, RunUpdate] = {}
        for message in coalesce_tokens(messages):
            self._apply(message, updates, now)
        for response, update in updates.items():
            if update.is_last:
                self._runs.pop(response, None)
                self._tokens_without_event.pop(response, None)
        return list(updates.values())

    def remove(self, response: UUID) -> None:
        """Removes a run that does not continue on this replica."""
        self._runs.pop(response, None)
        self._tokens_without_event.pop(response, None)
        self.paused.discard(response)

    def _apply(self, message: RecorderMessage, updates: dict[UUID, RunUpdate], now: datetime) -> None:
        match message:
            case StartRun(run, starts):
                self._runs[run.facts.id] = run
                if starts:
                    self._advance(updates, run.facts.id, now, Run.start)
            case FailRun(response, code, reason):
                self._advance(updates, response, now, partial(Run.fail, code=code, message=reason, at=now))
            case CancelRun(response):
                self._advance(updates, response, now, partial(Run.cancel, at=now))
            case ReleaseRuns(responses):
                self._release(updates, responses)
            case ToolCallFinished() | StartTurn() | CancelRequested():
                self._apply_tool_message(message, updates, now)
            case Tokens() | PromptLogprobs():
                self._apply_tokens(updates, message, now)
            case Finished(engine_request_id, reason, usage, stop_match):
                act = partial(Run.finish, reason=reason, usage=usage, at=now, stop_match=stop_match)
                self._finish(updates, response_id_of(engine_request_id), now, act)
            case Failed(request_id, "engine_dead") if self._is_background(response_id_of(request_id)):
                self._release(updates, frozenset({response_id_of(request_id)}), engine_died=True)
            case Failed(engine_request_id, code, cause, usage):
                log.error("engine request %s failed: %s: %s", engine_request_id, code, cause)
                act = partial(Run.fail, code=SERVER_ERROR, message=ENGINE_FAILED, at=now, usage=usage)
                self._advance(updates, response_id_of(engine_request_id), now, act)
            case StopRecorder():
                pass

    def _is_background(self, response: UUID) -> bool:
        run = self._runs.get(response)
        return run is not None and run.facts.echo.background

    def _apply_tool_message(
        self,
        message: ToolCallFinished | StartTurn | CancelRequested,
        updates: dict[UUID, RunUpdate],
        now: datetime,
    ) -> None:
        match message:
            case ToolCallFinished(response, index, outcome):
                act = partial(Run.finish_call, index=index, outcome=outcome, at=now)
            case StartTurn(response, decoding, prompt_tokens):
                act = partial(Run.next_turn, decoding=decoding, prompt_tokens=prompt_tokens, at=now)
            case CancelRequested(response):
                act = partial(Run.request_cancel, at=now)
        self._advance(updates, response, now, act)

    def _release(
        self,
        updates: dict[UUID, RunUpdate],
        responses: frozenset[UUID] | None,
        *,
        engine_died: bool = False,
    ) -> None:
        for response, run in self._runs.items():
            if responses is None:
                wanted = run.facts.echo.background and response not in self.paused
            else:
                wanted = response in responses
            if wanted and run.ending is None:
                update = updates.setdefault(response, RunUpdate(run))
                update.released, update.engine_died = True, engine_died

    def _apply_tokens(
        self, updates: dict[UUID, RunUpdate], message: Tokens | PromptLogprobs, now: datetime
    ) -> None:
        response = response_id_of(message.request_id)
        if isinstance(message, PromptLogprobs):
            self._advance(updates, response, now, partial(Run.add_prompt_logprobs, logprobs=message.logprobs))
            return
        self._tokens_without_event.setdefault(response, []).extend(message.token_ids)
        act = partial(Run.tokens, token_ids=message.token_ids, at=now, logprobs=message.logprobs)
        update = self._advance(updates, response, now, act)
        if update is not None and update.events:
            update.token_ids += self._tokens_without_event.pop(response)

    def _finish(
        self,
        updates: dict[UUID, RunUpdate],
        response: UUID,
        now: datetime,
        act: Callable[[Run], list[Event]],
    ) -> None:
        """The engine request has ended, and with it one turn of the run, or the run."""
        update = self._advance(updates, response, now, act)
        tokens = self._tokens_without_event.pop(response, [])
        if update is not None and update.events and update.run.ending is None:
            update.token_ids += tokens

    def _advance(
        self,
        updates: dict[UUID, RunUpdate],
        response: UUID,
        now: datetime,
        act: Callable[[Run], list[Event]],
    ) -> RunUpdate | None:
        """Applies one message to a run and returns its update; an exception fails this run and no other.

        None if the run is unknown, has ended or was released.
        """
        run = self._runs.get(response)
        if run is None or run.ending is not None or (response in updates and updates[response].released):
            self._tokens_without_event.pop(response, None)
            return None
        update = updates.setdefault(response, RunUpdate(run))
        try:
            update.events += act(run)
        except Exception:
            log.exception("run %s failed while reading its tokens", response)
            self._fail_undecodable(update, now)
        return update

    def _fail_undecodable(self, update: RunUpdate, now: datetime) -> None:
        """Ends a run that raised. Its output up to now may be the reason, so this may raise again."""
        update.undecodable = True
        try:
            update.events += update.run.fail(SERVER_ERROR, UNREADABLE, now, readable=False)
        except Exception:
            log.exception("run %s cannot be ended with what it has", update.run.facts.id)
            update.unwritable = True
