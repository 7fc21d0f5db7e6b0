"""The runs in progress here: messages of the engine and of handlers become steps, one for each run.

Pure: no thread, no clock, no database. Whatever goes wrong with one run stays with that run.
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
    DropRun,
    FailRun,
    Inbound,
    ReleaseRuns,
    RunUpdate,
    StartRun,
    StartTurn,
    StopRecorder,
    ToolCallFinished,
    _coalesce_tokens,
    response_of,
)

log = logging.getLogger("holdfast.runs")

ENGINE_FAILED = "The model could not finish this response."
UNREADABLE = "The model's output could not be read."


class RunRegistry:
    """What the recorder's thread brings forward."""

    def __init__(self) -> None:
        self._runs: dict[UUID, Run] = {}
        self._untold: dict[UUID, list[int]] = {}
        """Tokens that have given no event yet; stored with the first event that they lead to."""
        self.paused: set[UUID] = set()
        """Runs whose last step is not committed yet; whoever paused them retains the messages to them."""

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def runs(self) -> list[Run]:
        """A snapshot. Any thread."""
        return list(self._runs.values())

    def get(self, response: UUID) -> Run | None:
        """The run in progress of that response."""
        return self._runs.get(response)

    def needs_commit(self, message: Inbound) -> bool:
        """Tokens of a response that is not stored need no commit; its end does, for the metering.

        A run that is not known yet may begin in the same batch.
        """
        match message:
            case Tokens(engine_request_id):
                run = self._runs.get(response_of(engine_request_id))
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

    def only_adds(self, messages: Sequence[Inbound]) -> bool:
        """Whether no run begins or ends by these messages, unless by a mistake of ours."""
        return all(isinstance(message, Tokens) or not self.needs_commit(message) for message in messages)

    def apply(self, messages: Sequence[Inbound], now: datetime) -> list[RunUpdate]:
        """Lets the runs take the messages. Runs that are over are forgotten."""
        steps: dict[UUID, RunUpdate] = {}
        for message in _coalesce_tokens(messages):
            self._take(message, steps, now)
        for response, step in steps.items():
            if step.over:
                self._runs.pop(response, None)
                self._untold.pop(response, None)
        return list(steps.values())

    def forget(self, response: UUID) -> None:
        """Drops a run that this replica does not bring forward any more."""
        self._runs.pop(response, None)
        self._untold.pop(response, None)
        self.paused.discard(response)

    def _take(self, message: Inbound, steps: dict[UUID, RunUpdate], now: datetime) -> None:
        match message:
            case StartRun(run, starts):
                self._runs[run.facts.id] = run
                if starts:
                    self._advance(steps, run.facts.id, now, Run.start)
            case FailRun(response, code, told):
                self._advance(steps, response, now, partial(Run.fail, code=code, message=told, at=now))
            case DropRun(response):
                self._advance(steps, response, now, partial(Run.cancel, at=now))
            case ReleaseRuns(responses):
                self._hand_back(steps, responses)
            case ToolCallFinished() | StartTurn() | CancelRequested():
                self._take_from_tools(message, steps, now)
            case Tokens() | PromptLogprobs():
                self._take_tokens(steps, message, now)
            case Finished(engine_request_id, reason, usage, stop_match):
                act = partial(Run.finish, reason=reason, usage=usage, at=now, stop_match=stop_match)
                self._finish(steps, response_of(engine_request_id), now, act)
            case Failed(engine_request_id, "engine_dead") if self._goes_on(response_of(engine_request_id)):
                self._hand_back(steps, frozenset({response_of(engine_request_id)}), died=True)
            case Failed(engine_request_id, code, cause, usage):
                log.error("engine_request %s failed: %s: %s", engine_request_id, code, cause)
                act = partial(Run.fail, code=SERVER_ERROR, message=ENGINE_FAILED, at=now, usage=usage)
                self._advance(steps, response_of(engine_request_id), now, act)
            case StopRecorder():
                pass

    def _goes_on(self, response: UUID) -> bool:
        """Whether an engine's death is not its end."""
        run = self._runs.get(response)
        return run is not None and run.facts.echo.background

    def _take_from_tools(
        self,
        message: ToolCallFinished | StartTurn | CancelRequested,
        steps: dict[UUID, RunUpdate],
        now: datetime,
    ) -> None:
        match message:
            case ToolCallFinished(response, index, outcome):
                act = partial(Run.finish_call, index=index, outcome=outcome, at=now)
            case StartTurn(response, decoding, prompt_tokens):
                act = partial(Run.next_turn, decoding=decoding, prompt_tokens=prompt_tokens, at=now)
            case CancelRequested(response):
                act = partial(Run.request_cancel, at=now)
        self._advance(steps, response, now, act)

    def _hand_back(
        self, steps: dict[UUID, RunUpdate], responses: frozenset[UUID] | None, *, died: bool = False
    ) -> None:
        for response, run in self._runs.items():
            if responses is None:
                wanted = run.facts.echo.background and response not in self.paused
            else:
                wanted = response in responses
            if wanted and run.ending is None:
                step = steps.setdefault(response, RunUpdate(run))
                step.handed_back, step.died = True, died

    def _take_tokens(
        self, steps: dict[UUID, RunUpdate], given: Tokens | PromptLogprobs, now: datetime
    ) -> None:
        response = response_of(given.request_id)
        if isinstance(given, PromptLogprobs):
            self._advance(steps, response, now, partial(Run.add_prompt_logprobs, logprobs=given.logprobs))
            return
        self._untold.setdefault(response, []).extend(given.token_ids)
        act = partial(Run.tokens, token_ids=given.token_ids, at=now, logprobs=given.logprobs)
        step = self._advance(steps, response, now, act)
        if step is not None and step.events:
            step.token_ids += self._untold.pop(response)

    def _finish(
        self, steps: dict[UUID, RunUpdate], response: UUID, now: datetime, act: Callable[[Run], list[Event]]
    ) -> None:
        """The engine request has ended, and with it the run or one turn of it."""
        step = self._advance(steps, response, now, act)
        untold = self._untold.pop(response, [])
        if step is not None and step.events and step.run.ending is None:
            step.token_ids += untold

    def _advance(
        self, steps: dict[UUID, RunUpdate], response: UUID, now: datetime, act: Callable[[Run], list[Event]]
    ) -> RunUpdate | None:
        """Lets a run take one message; a mistake of ours in it fails that run and no other."""
        run = self._runs.get(response)
        if run is None or run.ending is not None or (response in steps and steps[response].handed_back):
            self._untold.pop(response, None)
            return None
        step = steps.setdefault(response, RunUpdate(run))
        try:
            step.events += act(run)
        except Exception:
            log.exception("run %s failed while decoding its tokens", response)
            self._fail_unreadable(step, now)
        return step

    def _fail_unreadable(self, step: RunUpdate, now: datetime) -> None:
        """The end of a run that raised; its output so far may be what it cannot tell of."""
        step.unreadable = True
        try:
            step.events += step.run.fail(SERVER_ERROR, UNREADABLE, now, readable=False)
        except Exception:
            log.exception("run %s cannot be ended with what it has", step.run.facts.id)
            step.broken = True
