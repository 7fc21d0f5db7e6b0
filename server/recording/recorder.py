"""The recorder thread: engine messages become events, events are committed, committed events are published.

Everything that arrives during a commit goes into the next one. So a slow disk makes commits larger and
not the queue longer; where that is not enough, the engine is paused. Knows nothing of HTTP and nothing of
model formats.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from time import monotonic, thread_time
from typing import Protocol
from uuid import UUID

import msgspec

from engine.stats_snapshot import Distribution
from server.crashpoints import crashpoint
from server.delivery.hub import Hub, Published
from server.generation.output_decoding import DecodingSpec
from server.generation.run import Run, RunFacts
from server.limits.tenant_limits import UnfinishedResponses
from server.protocol.ids import response_id
from server.protocol.responses.events import frames
from server.recording.group_commit import CommitLimits, Committer
from server.recording.inbox import NO_PAUSE, CommitPace, Inbox, Pause
from server.recording.recorder_messages import (
    SERVER_ERROR,
    BuildRun,
    CheckOwnership,
    FailRun,
    RecorderMessage,
    RunUpdate,
    StartRun,
    StopRecorder,
    VerifyCommits,
)
from server.recording.response_traces import ResponseTraces
from server.recording.run_registry import RunRegistry
from server.store.cluster import leases
from server.store.database import Database
from server.store.database_errors import CommitFailure
from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.recorder")
response_log = logging.getLogger("holdfast.responses")

MAX_QUEUED = 4096
"""Deliveries in the inbox beyond which the engine is paused. One is an engine step with at most a token for
each running response, so the memory that waits for an unreachable database stays small."""
_POLL_SECONDS = 0.1


class CommitListener(Protocol):
    """Is called on the recorder's thread. No method waits."""

    def on_commit(self, updates: Sequence[RunUpdate]) -> None:
        """These updates are committed and published."""

    def on_cut_short(self, response: UUID) -> None:
        """A run has ended before its engine request, which has to be cancelled."""

    def on_output_complete(self, engine_request: str) -> None:
        """A stop string has ended the output of an engine request, which need not go on."""

    def on_backlog(self, is_behind: bool) -> None:
        """The database is behind, so that the engine has to pause; or it has caught up."""

    def on_fenced(self) -> None:
        """Ends the process: others have declared it dead, or the thread has failed. Called once."""


@dataclass(frozen=True, slots=True)
class RecorderStats:
    """Counts of the recorder's work, done and to do, for the metrics and the console."""

    commit_seconds: Distribution
    commit_failures: Mapping[CommitFailure, int]
    queued: int
    """Deliveries in the inbox."""
    isolated: int
    """Runs whose last update is committed alone."""
    engine_paused: bool


class Recorder:
    """Starts, advances and ends the runs of this replica; owns the recorder's thread."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        hub: Hub,
        listener: CommitListener,
        *,
        max_queued: int = MAX_QUEUED,
        capacity: UnfinishedResponses | None = None,
        traces: ResponseTraces | None = None,
        clock: Callable[[], float] = monotonic,
        inbox: Inbox | None = None,
        pace: CommitPace | None = None,
        limits: CommitLimits | None = None,
    ) -> None:
        self._hub, self._listener, self._traces = hub, listener, traces or ResponseTraces()
        self._clock, self._max_queued, self._engine_paused = clock, max_queued, False
        self._backpressure = threading.Lock()
        """Orders the calls of `on_backlog`."""
        self._inbox = Inbox() if inbox is None else inbox
        self._registry = RunRegistry()
        self.capacity = capacity if capacity is not None else UnfinishedResponses()
        """The responses that this process generates or is about to, until their end is committed."""
        self._idle = threading.Event()
        self._idle.set()
        self._starting = threading.Lock()
        """Held while a run is started, so that `_idle` is not set just before."""
        self._committer = Committer(database, replica, self._registry, clock, limits)
        self._pause, self._pace = NO_PAUSE, pace or CommitPace()
        self._thread = SupervisedThread(
            "recorder",
            self._turn,
            fatal=(leases.Fenced,),
            on_fatal=listener.on_fenced,
            retry=Retry(max_failures=0),  # the messages of a failed turn have changed their runs already
            on_end=self._committer.close,
        )

    def start(self) -> None:
        self._thread.start()

    def trouble(self) -> str | None:
        """Why nothing is recorded at the moment, for /health/ready; None if all is well. Any thread."""
        return self._committer.trouble() or self._thread.trouble()

    @property
    def stats(self) -> RecorderStats:
        """A snapshot. Any thread."""
        return RecorderStats(
            commit_seconds=self._committer.seconds.values,
            commit_failures=dict(self._committer.failures),
            queued=len(self._inbox),
            isolated=len(self._registry.isolated),
            engine_paused=self._engine_paused,
        )

    def deliver(self, messages: Sequence[RecorderMessage], /) -> None:
        """Puts messages into the inbox; never blocks. Any thread."""
        self._inbox.put(messages)
        with self._backpressure:
            if not self._engine_paused and len(self._inbox) > self._max_queued:
                self._engine_paused = True
                log.warning("the database is behind: the engine is paused")
                self._listener.on_backlog(True)

    def produces(self, response_id: UUID) -> bool:
        """Whether this process generates the response or is about to. Any thread."""
        return response_id in self.capacity

    def remembers(self, response_id: UUID) -> bool:
        """Whether the response runs here, or its last update is retained. Any thread."""
        return self._is_running(response_id) or self._committer.recent.is_over(response_id)

    def answers_for(self, response_id: UUID) -> bool:
        """Whether a response that this replica owns is this process's to bring forward. Any thread.

        Of one that has ended or was released here, the row should say so. The database may have lost that
        commit: then it is written again, and nobody else goes on with the response.
        """
        if not self.remembers(response_id):
            return False
        if not self._is_running(response_id):
            self.deliver([VerifyCommits()])
        return True

    def _is_running(self, response_id: UUID) -> bool:
        return self.produces(response_id) or response_id.hex in self._registry.isolated

    def build_run(
        self, facts: RunFacts, decoding: Callable[[], DecodingSpec], *, announces: bool = False
    ) -> None:
        """Records the run of a response that was just accepted, for which `capacity` has reserved room."""
        self._begin(facts, BuildRun(facts, decoding, announces))

    def start_run(self, run: Run) -> None:
        """Records a run that was rebuilt, which `capacity` counts from now on."""
        self._begin(run.facts, StartRun(run))

    def _begin(self, facts: RunFacts, message: BuildRun | StartRun) -> None:
        with self._starting:
            self._idle.clear()
            if isinstance(message, StartRun):
                self.capacity.add(facts.id, facts.tenant)
            if facts.trace_parent is not None:
                self._traces.begin(facts)
            self._inbox.expect(facts.id.hex)
            self.deliver([message])

    def fail_run(self, response_id: UUID, message: str) -> None:
        """Ends a run as failed where the engine will send no `Failed`."""
        self.deliver([FailRun(response_id, SERVER_ERROR, message)])

    def active_runs(self) -> list[Run]:
        """The runs in progress here, a snapshot. Any thread."""
        return self._registry.runs

    def wait_idle(self, seconds: float) -> bool:
        """Waits until every run has ended or is released; False if that takes longer."""
        return self._idle.wait(seconds)

    def stop(self, seconds: float = inf) -> None:
        """Ends the thread after everything delivered before.

        What cannot be committed in that time is left to other replicas. If the database is unreachable until
        then, the listener's `on_fenced` is called.
        """
        self._committer.give_up_at = self._clock() + seconds
        self.deliver([StopRecorder()])
        self._thread.join()

    # --- the recorder thread ---

    def _turn(self) -> None:
        try:
            with self._thread.idle():
                messages = self._inbox.gather(self._pause, self._committer.seconds_until_retry())
            self._pause = self.process(messages)
            if any(isinstance(message, StopRecorder) for message in messages):
                self._finish_isolated()
                self._thread.request_stop()
        except leases.Fenced:
            log.critical("this replica was declared dead; its %d runs are given up", len(self.active_runs()))
            raise

    def _finish_isolated(self) -> None:
        """Goes on until no update is isolated, as long as there is time."""
        isolated = self._registry.isolated
        while isolated and (seconds := self._committer.give_up_at - self._clock()) > 0:
            self.process(self._inbox.get(min(seconds, _POLL_SECONDS)))
        if isolated:
            log.error("%d responses could not be stored; others go on with them", len(isolated))

    def process(self, messages: Sequence[RecorderMessage]) -> Pause:
        """One turn of the thread: applies, commits, publishes; the pause until the next. Raises Fenced."""
        for message in messages:
            if isinstance(message, VerifyCommits):
                self._committer.recent.is_doubted = True
            elif isinstance(message, CheckOwnership):
                self._check_ownership(message.runs)
        began, computed_before = monotonic(), thread_time()
        updates = [*self._commit(messages), *self._committer.commit_isolated()]
        took = monotonic() - began
        crashpoint("recorder.committed")
        self._end_requests([*updates, *self._registry.isolated.values()])
        if any(update.run.ending is not None for update in updates):
            crashpoint("end.committed")
        self._after_commit([update for update in updates if not update.published], took)
        self._resume_engine()
        self._set_idle()
        computed, tokens = thread_time() - computed_before, [len(update.token_ids) for update in updates]
        pause, now = self._pace.pause(began, took, computed, tokens), monotonic()
        return Pause(now + pause.longest, now + pause.urgent)

    def _check_ownership(self, runs: Sequence[Run]) -> None:
        for run in runs:  # perhaps it has ended meanwhile
            if self._registry.get(run.facts.id) is run and run.facts.id.hex not in self._registry.isolated:
                self._committer.isolate([RunUpdate(run)])

    def _end_requests(self, updates: Sequence[RunUpdate]) -> None:
        """Ends engine requests after a stop string. Their runs end with the engine's counts and times."""
        for update in updates:
            if update.run.has_stopped and not update.is_last:
                self._listener.on_output_complete(update.run.engine_request_id)

    def _after_commit(self, updates: Sequence[RunUpdate], seconds: float) -> None:
        self._publish(updates)
        crashpoint("recorder.published")
        if self._traces.has_active:
            for update in updates:
                self._traces.observe(update.run, bool(update.token_ids), update.is_last, seconds)
        for update in updates:
            facts = update.run.facts
            if update.cut_short:
                self._listener.on_cut_short(facts.id)
            if update.is_last:
                self._inbox.forget(facts.id.hex)
                if update.released:
                    self._hub.release(facts.tenant, facts.id)
                else:
                    _log_end(update.run)
                self.capacity.discard(facts.id)
        if any(update.released for update in updates):
            crashpoint("release.committed")
        self._listener.on_commit(updates)

    def _resume_engine(self) -> None:
        with self._backpressure:
            if self._engine_paused:
                self._engine_paused = False
                log.warning("the database has caught up: the engine is resumed")
                self._listener.on_backlog(False)

    def _set_idle(self) -> None:
        with self._starting:
            if not self._registry and not self._registry.isolated and not self._inbox:
                self._idle.set()

    def _commit(self, messages: Sequence[RecorderMessage]) -> list[RunUpdate]:
        """Applies messages to their runs; returns the committed updates, and those that need no commit."""
        if any(self._registry.needs_commit(message) for message in messages):
            return self._committer.commit(messages)
        updates = self._registry.apply(messages, datetime.now(UTC))
        # If decoding raises, a run ends all the same and has to be metered.
        self._committer.isolate([update for update in updates if update.is_last or update.unwritable])
        return [update for update in updates if not update.is_last and not update.unwritable]

    def _publish(self, updates: Sequence[RunUpdate]) -> None:
        batch = [self._to_published(update) for update in updates if update.events]
        self._hub.publish(published for published in batch if published is not None)

    def _to_published(self, update: RunUpdate) -> Published | None:
        """An update's frames and the final response, if it ends; None if there are no readers, or if the
        update cannot be encoded.

        Only a response that is not stored can fail here: stored ones were encoded for the commit.
        """
        run = update.run
        if not self._hub.has_channel(run.facts.id):
            return None
        try:
            encoded = frames(run.facts.id, update.events, run.facts.attempt if run.stored else None)
            final = msgspec.json.encode(run.final) if run.final is not None else None
            return Published(run.facts.id, update.events[0].sequence_number, encoded, final)
        except Exception:
            name = response_id(run.facts.id)
            log.exception("events of response %s cannot be encoded", name, extra=run.facts.log_fields)
            update.unwritable = True
            self._committer.isolate([update])
            return None


def _log_end(run: Run) -> None:
    """Writes the line of a run whose end is committed: its status, tokens and times since its creation."""
    ending, facts = run.ending, run.facts
    if ending is None or not response_log.isEnabledFor(logging.INFO):
        return
    begun = facts.created_at
    first = ending.first_token_at
    fields = {
        **facts.log_fields,
        "status": ending.status,
        "error_code": ending.error_code or ending.incomplete_reason,
        "model": facts.echo.model,
        "attempt": facts.attempt,
        "input_tokens": ending.input_tokens,
        "cached_tokens": ending.cached_tokens,
        "output_tokens": ending.output_tokens,
        "reasoning_tokens": ending.reasoning_tokens,
        "queue_ms": None if ending.queue_seconds is None else round(ending.queue_seconds * 1000, 1),
        "ttft_ms": None if first is None else round((first - begun).total_seconds() * 1000, 1),
        "ms": round((ending.finished_at - begun).total_seconds() * 1000, 1),
    }
    response_log.info("response %s %s", response_id(facts.id), ending.status, extra=fields)
