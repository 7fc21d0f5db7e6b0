"""The recorder thread: engine messages become events, events are committed, committed events are published.

Everything that arrives during a commit goes into the next one. So a slow disk makes commits larger and
not the queue longer; where that is not enough, the engine is paused. Knows nothing of HTTP and nothing of
model formats.
"""

import logging
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from time import monotonic, thread_time
from uuid import UUID

from server.crashpoints import crashpoint
from server.delivery.hub import Hub, Published
from server.generation.output_decoding import DecodingSpec
from server.generation.run import Run
from server.generation.run_facts import RunFacts
from server.limits.shared_limit import UnfinishedResponses
from server.protocol.ids import response_id
from server.recording.commit_pace import NO_PAUSE, CommitPace, Pause
from server.recording.committer import Committer
from server.recording.end_log import log_end
from server.recording.inbox import Inbox
from server.recording.messages import (
    SERVER_ERROR,
    BuildRun,
    FailRun,
    RecorderMessage,
    ReleaseRuns,
    RunUpdate,
    StartRun,
    StopRecorder,
    VerifyCommits,
)
from server.recording.publication import published
from server.recording.recorder_stats import RecorderStats
from server.recording.run_registry import RunRegistry
from server.recording.side_writer import SideResult, SideWriter
from server.store.cluster import leases
from server.store.database import Database
from server.supervised_thread import Retry, SupervisedThread
from server.tracing.response_traces import ResponseTraces

log = logging.getLogger("holdfast.recorder")

MAX_QUEUED = 4096
"""Deliveries in the inbox beyond which the engine is paused. One is an engine step with at most a token for
each running response, so the memory that waits for an unreachable database stays small."""
_POLL_SECONDS = 0.1
_MAX_DRAIN_SECONDS = 60.0
"""For the side writer's retries at shutdown; an outage may be waited for longer."""


class Recorder:
    """Starts, advances and ends the runs of this replica; owns the recorder and the side writer thread."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        hub: Hub,
        *,
        on_fenced: Callable[[], None],
        on_events: Callable[[Collection[UUID]], None] = lambda _responses: None,
        on_released: Callable[[], None] = lambda: None,
        on_committed: Callable[[Sequence[RunUpdate]], None] = lambda _updates: None,
        cancel: Callable[[UUID], None] = lambda _response: None,
        end_request: Callable[[str], None] = lambda _request: None,
        pause_engine: Callable[[bool], None] = lambda _pause: None,
        max_queued: int = MAX_QUEUED,
        capacity: UnfinishedResponses | None = None,
        traces: ResponseTraces | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`on_fenced` is called once, when this replica can write no more: the process must end.

        Either other replicas have declared it dead, or the thread has failed. After each commit `on_events`
        gets the stored responses with new events, and `on_committed` all updates. `on_released` is called
        when responses are left for other replicas. `cancel` gets responses whose run ends here, `end_request`
        engine requests whose output is complete.
        """
        self._hub, self._traces = hub, traces or ResponseTraces()
        self._on_events, self._on_released = on_events, on_released
        self._on_committed = on_committed
        self._cancel, self._end_request = cancel, end_request
        self._pause_engine = pause_engine
        self._clock, self._max_queued, self._engine_paused = clock, max_queued, False
        self._backpressure = threading.Lock()
        """Orders the calls of `pause_engine`."""
        self._inbox = Inbox()
        self._registry = RunRegistry()
        self.capacity = capacity if capacity is not None else UnfinishedResponses()
        """The responses that this process generates or is about to, until their end is committed."""
        self._idle = threading.Event()
        self._idle.set()
        self._starting = threading.Lock()
        """Held while a run is started, so that `_idle` is not set just before."""
        self._committer = Committer(database, replica, self._registry, clock)
        self._side_results: queue.SimpleQueue[SideResult] = queue.SimpleQueue()
        self._side = SideWriter(
            database,
            replica,
            on_result=self._queue_side_result,
            active_runs=self.active_runs,
            on_fenced=self._fence,
            clock=clock,
        )
        self._fenced, self._pause, self._pace = False, NO_PAUSE, CommitPace()
        self._thread = SupervisedThread(
            "recorder",
            self._turn,
            fatal=(leases.Fenced,),
            on_fatal=on_fenced,
            retry=Retry(max_failures=0),  # the messages of a failed turn have changed their runs already
            on_end=self._committer.close,
        )

    def start(self) -> None:
        self._thread.start()
        self._side.thread.start()

    def trouble(self) -> str | None:
        """Why nothing is recorded at the moment, for /health/ready; None if all is well. Any thread."""
        return self._committer.trouble() or self._thread.trouble() or self._side.thread.trouble()

    @property
    def stats(self) -> RecorderStats:
        """A snapshot. Any thread."""
        return RecorderStats(
            commit_seconds=self._committer.seconds.values,
            commit_failures=dict(self._committer.failures),
            queued=len(self._inbox),
            suspended=len(self._registry.suspended),
            engine_paused=self._engine_paused,
        )

    def deliver(self, messages: Sequence[RecorderMessage], /) -> None:
        """Puts messages into the inbox; never blocks. Any thread."""
        self._inbox.put(messages)
        with self._backpressure:
            if not self._engine_paused and len(self._inbox) > self._max_queued:
                self._engine_paused = True
                log.warning("the database is behind: the engine is paused")
                self._pause_engine(True)

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
        return self.produces(response_id) or response_id in self._registry.suspended

    @property
    def load(self) -> int:
        """The number of responses that this process generates or is about to. Any thread."""
        return len(self.capacity)

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

    def release_background_runs(self) -> None:
        """Gives up all background runs, for other replicas to claim."""
        self.deliver([ReleaseRuns()])

    def wait_idle(self, seconds: float) -> bool:
        """Waits until every run has ended or is released; False if that takes longer."""
        return self._idle.wait(seconds)

    def stop(self, seconds: float = inf) -> None:
        """Ends the thread after everything delivered before.

        What cannot be committed in that time is left to other replicas. If the database is unreachable until
        then, `on_fenced` is called.
        """
        self._committer.give_up_at = self._clock() + seconds
        self.deliver([StopRecorder()])
        self._thread.join()
        self._side.thread.stop()

    # --- the side writer's thread ---

    def _queue_side_result(self, result: SideResult) -> None:
        self._side_results.put(result)
        self.deliver([])

    def _fence(self) -> None:
        self._fenced = True
        self.deliver([])

    # --- the recorder thread ---

    def _turn(self) -> None:
        try:
            with self._thread.idle():
                messages = self._inbox.gather(self._pause)
            self._pause = self.process(messages)
            if any(isinstance(message, StopRecorder) for message in messages):
                self._await_side_writer()
                self._thread.request_stop()
        except leases.Fenced:
            log.critical("this replica was declared dead; its %d runs are given up", len(self.active_runs()))
            raise

    def _await_side_writer(self) -> None:
        """Waits until no run is suspended, as long as there is time."""
        until = min(self._committer.give_up_at, self._clock() + _MAX_DRAIN_SECONDS)
        while self._registry.suspended and (left := until - self._clock()) > 0:
            self.process(self._inbox.get(min(left, _POLL_SECONDS)))
        if self._registry.suspended:
            log.error(
                "%d responses could not be stored; others go on with them", len(self._registry.suspended)
            )

    def process(self, messages: Sequence[RecorderMessage]) -> Pause:
        """One turn of the thread: applies the messages, commits, publishes. Raises Fenced.

        Returns the pause until the next turn, as times of `monotonic`.
        """
        if self._fenced:
            raise leases.Fenced
        if any(isinstance(message, VerifyCommits) for message in messages):
            self._committer.recent.is_doubted = True
        retained = self._apply_side_results()
        for response in self._registry.suspended.over_limit():
            self._side.give_up(response)
            self._give_up(response)
        began, computed_before = monotonic(), thread_time()
        updates = self._commit([*retained, *self._registry.suspended.divert(messages)])
        took = monotonic() - began
        crashpoint("recorder.committed")
        if any(update.run.ending is not None for update in updates):
            crashpoint("end.committed")
        self._after_commit(updates, took)
        self._resume_engine()
        self._set_idle()
        computed, tokens = thread_time() - computed_before, [len(update.token_ids) for update in updates]
        pause, now = self._pace.pause(began, took, computed, tokens), monotonic()
        return Pause(now + pause.longest, now + pause.urgent)

    def _after_commit(self, updates: Sequence[RunUpdate], seconds: float = 0.0) -> None:
        self._end_requests(updates)
        self._publish(updates)
        crashpoint("recorder.published")
        if self._traces.has_active:
            for update in updates:
                self._traces.observe(update.run, bool(update.token_ids), update.is_last, seconds)
        for update in updates:
            if update.undecodable:
                self._cancel(update.run.facts.id)
            if update.is_last:
                self._inbox.forget(update.run.facts.id.hex)
                if not update.released:
                    log_end(update.run)
                self.capacity.discard(update.run.facts.id)
        if any(update.released for update in updates):
            crashpoint("release.committed")
            self._on_released()
        self._on_committed(updates)

    def _apply_side_results(self) -> list[RecorderMessage]:
        """Applies what the side writer has reported; returns the messages that were retained meanwhile."""
        retained: list[RecorderMessage] = []
        with suppress(queue.Empty):
            while True:
                retained += self._apply_side_result(self._side_results.get_nowait())
        return retained

    def _apply_side_result(self, result: SideResult) -> list[RecorderMessage]:
        response, update = result.response, result.update
        match result.outcome:
            case "doubtful":
                if self._registry.get(response) is update.run and response not in self._registry.suspended:
                    self._suspend([RunUpdate(update.run)])  # the run may have gone on since
                return []
            case "given up":
                self._give_up(response)
                return []
            case "left":
                update = RunUpdate(update.run, released=True)
                self._give_up(response)
            case "ended":
                self._give_up(response)
        retained = self._registry.suspended.resume(response)
        if result.outcome != "committed":
            self._registry.remove(response)
        if result.outcome != "left":
            self._committer.recent.add([update])
        if not update.acknowledged:
            self._after_commit([update])
        if result.outcome == "left" and update.run.stored:
            self._hub.release(update.run.facts.tenant, response)
        return retained

    def _end_requests(self, updates: Sequence[RunUpdate]) -> None:
        """Ends engine requests after a stop string. Their runs end with the engine's counts and times."""
        for update in updates:
            if update.run.has_stopped and not update.is_last:
                self._end_request(update.run.engine_request_id)

    def _suspend(self, updates: Sequence[RunUpdate]) -> None:
        """Leaves these updates to the side writer, so that no other run waits for them."""
        self._end_requests(updates)
        earlier = self._committer.recent.take({update.run.facts.id for update in updates})
        for update in updates:
            if (before := earlier.get(update.run.facts.id)) is not None:
                update.earlier_rows = before.earlier_rows
            self._registry.suspended.add(update)
            self._side.write(update)

    def _give_up(self, response: UUID) -> None:
        """The suspended run does not continue here: its engine request is cancelled."""
        if self._registry.suspended.give_up(response):
            self._cancel(response)

    def _resume_engine(self) -> None:
        with self._backpressure:
            if self._engine_paused:
                self._engine_paused = False
                log.warning("the database has caught up: the engine is resumed")
                self._pause_engine(False)

    def _set_idle(self) -> None:
        with self._starting:
            if not self._registry and not self._registry.suspended and not self._inbox:
                self._idle.set()

    def _commit(self, messages: Sequence[RecorderMessage]) -> list[RunUpdate]:
        """Applies messages to their runs; returns the committed updates and suspends the others."""
        if any(self._registry.needs_commit(message) for message in messages):
            result = self._committer.commit(messages)
            self._suspend([*result.failed, *self._committer.take_lost(result)])
            if not result.unapplied:
                return list(result.committed)
            return self._commit(self._registry.suspended.divert(result.unapplied))
        committed = self._registry.apply(messages, datetime.now(UTC))
        # If decoding raises, a run ends all the same and has to be metered.
        failed = [update for update in committed if update.is_last or update.unwritable]
        if failed:
            committed = [update for update in committed if update not in failed]
        self._suspend(failed)
        return committed

    def _publish(self, updates: Sequence[RunUpdate]) -> None:
        self._on_events([update.run.facts.id for update in updates if update.events and update.run.stored])
        batch = [self._to_published(update) for update in updates if update.events]
        self._hub.publish(published for published in batch if published is not None)

    def _to_published(self, update: RunUpdate) -> Published | None:
        """An update's frames; None if there are no readers, or if it cannot be encoded.

        Only a response that is not stored can fail here: stored ones were encoded for the commit.
        """
        response = update.run.facts.id
        if not self._hub.has_channel(response):
            return None
        try:
            return published(update)
        except Exception:
            log.exception(
                "events of response %s cannot be encoded",
                response_id(response),
                extra=update.run.facts.log_fields,
            )
            update.unwritable = True
            self._suspend([update])
            return None
