"""The recorder thread: engine messages become events, events are committed, then readers are told.

One wake-up per engine step or commit. Whatever gathered while the last commit ran is the next commit, so a
slow disk makes bigger commits, not a longer queue; and where even that is not enough, the engine is held.
Knows nothing of HTTP and nothing of how a model writes.
"""

import logging
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from time import monotonic, sleep
from uuid import UUID

import msgspec

from server.crashpoints import crashpoint
from server.delivery.event_frames import frames
from server.delivery.hub import Hub, Published
from server.generation.run import Run
from server.limits.unfinished_responses import UnfinishedResponses
from server.recording.committer import Committer
from server.recording.messages import (
    SERVER_ERROR,
    FailRun,
    Inbound,
    ReleaseRuns,
    RunUpdate,
    StartRun,
    StopRecorder,
)
from server.recording.run_registry import RunRegistry
from server.recording.side_writer import Settled, SideWriter
from server.recording.suspended import Suspended
from server.store.cluster import leases
from server.store.database import Database
from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.recorder")

MOST_WAITING = 4096
"""Deliveries that may wait for a commit; the engine is held while there are more. One is a step of the engine
with at most a token for each running response, so what waits for a database that is away stays small."""
_LONGEST_SLEEP = 0.1
_LONGEST_END = 60.0
"""In the end, while steps are retried aside; an outage may be waited for longer."""
_REST = 6.0
"""Times as long as a commit took, the next one is waited for. So commits, which take turns with the engine,
have a seventh of the time where they are short, and longer deltas carry what gathers."""
_LONGEST_REST = 0.012
_LONGEST_WAIT = 0.004
"""Seconds after a rest in which the next commit may wait for a delivery to begin with. Then the engine has
just begun a step, beside which there is time for the commit and for the telling, which takes longer. Rest and
wait together are how much later than it could be a token may be told while commits follow each other."""


class Recorder:
    """Runs in progress, and the thread that brings them forward."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        hub: Hub,
        *,
        on_fenced: Callable[[], None],
        on_events: Callable[[Collection[UUID]], None] = lambda _responses: None,
        on_handed_back: Callable[[], None] = lambda: None,
        on_steps: Callable[[Sequence[RunUpdate]], None] = lambda _steps: None,
        cancel: Callable[[UUID], None] = lambda _response: None,
        hold: Callable[[bool], None] = lambda _held: None,
        most_waiting: int = MOST_WAITING,
        capacity: UnfinishedResponses | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`on_fenced` is called, once, when this replica can write no more: it must end and start anew.

        Other replicas have taken it for dead, or a mistake of ours has stopped the thread, which must not
        leave a server behind that accepts responses and answers none. `on_events` is called after a commit
        with the stored responses that got events. `on_handed_back` is called when there
        are responses that others may go on with. `on_steps` is called with what was
        committed. `cancel` is called with responses that are not brought forward any more. `hold` stops and
        starts the engine. `capacity` counts and bounds the responses here.
        """
        self._database = database
        self._replica = replica
        self._hub = hub
        self._on_events = on_events
        self._on_handed_back = on_handed_back
        self._on_steps = on_steps
        self._cancel = cancel
        self._hold = hold
        self._clock = clock
        self._most_waiting = most_waiting
        self._holding = False
        self._pressure = threading.Lock()
        """So that of a hold and a release the one that was decided last is the last to be said."""
        self._inbox: queue.SimpleQueue[Sequence[Inbound]] = queue.SimpleQueue()
        self._active = RunRegistry()
        self._held = capacity if capacity is not None else UnfinishedResponses()
        """Responses that this process is about to begin or producing, until their end is committed."""
        self._idle = threading.Event()
        self._idle.set()
        self._handover = threading.Lock()
        """Held while a run is given in, so that nothing is called idle just before it arrives."""
        self._committer = Committer(database, replica, self._active, clock)
        self._settled: queue.SimpleQueue[Settled] = queue.SimpleQueue()
        self._suspended = Suspended()
        self._side = SideWriter(
            database,
            replica,
            on_settled=self._settle_later,
            running=self.running,
            on_fenced=self._fence,
            clock=clock,
        )
        self._fenced = False
        self._next_at = 0.0
        self._thread = self._make_thread(on_fenced)

    def _make_thread(self, on_fatal: Callable[[], None]) -> SupervisedThread:
        """No turn of it is repeated that fails: its messages have changed their runs already."""
        return SupervisedThread(
            "recorder",
            self._turn,
            fatal=(leases.Fenced,),
            on_fatal=on_fatal,
            retry=Retry(most_failures=0),
            on_end=self._committer.close,
        )

    def start(self) -> None:
        self._thread.start()
        self._side.thread.start()

    def trouble(self) -> str | None:
        """Why nothing is recorded at the moment, for /health/ready; None if all is well. Any thread."""
        return self._committer.trouble() or self._thread.trouble() or self._side.thread.trouble()

    def deliver(self, messages: Sequence[Inbound], /) -> None:
        """Hands messages over; never blocks. Any thread, the engine's above all."""
        self._inbox.put(messages)
        with self._pressure:
            if not self._holding and self._inbox.qsize() > self._most_waiting:
                self._holding = True
                log.warning("the database is behind: the engine is held")
                self._hold(True)

    @property
    def capacity(self) -> UnfinishedResponses:
        """What bounds the responses that are begun here."""
        return self._held

    def expect(self, response_id: UUID, tenant: str) -> None:
        """A response is about to be written down as this replica's; its run follows, or `forget`."""
        self._held.add(response_id, tenant)

    def forget(self, response_id: UUID) -> None:
        """There will be no run of it after all."""
        self._held.discard(response_id)

    def holds(self, response_id: UUID) -> bool:
        """Whether this process is producing it, or is about to. Any thread."""
        return response_id in self._held

    @property
    def load(self) -> int:
        """How many responses this process is producing or about to. Any thread."""
        return len(self._held)

    def begin(self, run: Run) -> None:
        with self._handover:
            self._idle.clear()
            self._held.add(run.facts.id, run.facts.tenant)
            self.deliver([StartRun(run)])

    def fail(self, response_id: UUID, message: str) -> None:
        """Ends a run from outside the engine."""
        self.deliver([FailRun(response_id, SERVER_ERROR, message)])

    def running(self) -> list[Run]:
        """The runs in progress here. Any thread; a snapshot."""
        return self._active.runs

    def hand_back(self) -> None:
        """Gives all background responses up for other replicas to go on with."""
        self.deliver([ReleaseRuns()])

    def wait_idle(self, seconds: float) -> bool:
        """Whether every run ended or was handed back within that time."""
        return self._idle.wait(seconds)

    def stop(self, seconds: float = inf) -> None:
        """Ends the thread after everything delivered before.

        What cannot be committed in that time is left to other replicas; if that is more than single
        responses, `on_fenced` is told of it.
        """
        self._committer.give_up_at = self._clock() + seconds
        self.deliver([StopRecorder()])
        self._thread.join()
        self._side.thread.stop()

    # --- the side writer's thread ---

    def _settle_later(self, settled: Settled) -> None:
        self._settled.put(settled)
        self.deliver([])

    def _fence(self) -> None:
        self._fenced = True
        self.deliver([])

    # --- the recorder thread ---

    def _turn(self) -> None:
        try:
            with self._thread.idle():
                messages = self._gather(self._next_at)
            self._next_at = self.bring_forward(messages)
            if any(isinstance(message, StopRecorder) for message in messages):
                self._bring_to_rest()
                self._thread.request_stop()
        except leases.Fenced:
            log.critical("this replica was declared dead; its %d runs are given up", len(self.running()))
            raise

    def _bring_to_rest(self) -> None:
        """Waits for the steps that are retried aside, as long as there is time."""
        until = min(self._committer.give_up_at, self._clock() + _LONGEST_END)
        while self._suspended and (left := until - self._clock()) > 0:
            messages: Sequence[Inbound] = []
            with suppress(queue.Empty):
                messages = self._inbox.get(timeout=min(left, _LONGEST_SLEEP))
            self.bring_forward(messages)
        if self._suspended:
            log.error("%d responses could not be stored; others go on with them", self._suspended.count)

    def bring_forward(self, messages: Sequence[Inbound]) -> float:
        """One turn of the thread: commits what the messages mean, then tells of it. Raises Fenced.

        Gives the time at which the next one may begin.
        """
        if self._fenced:
            raise leases.Fenced
        retained = self._take_settled()
        for response in self._suspended.overfull():
            self._side.give_up(response)
            self._abandon(response)
        began = monotonic()
        steps = self._commit([*retained, *self._suspended.divert(messages)])
        took = monotonic() - began
        crashpoint("recorder.committed")
        if any(step.run.ending is not None for step in steps):
            crashpoint("end.committed")
        self._finish(steps)
        self._relax()
        return monotonic() + min(_REST * took, _LONGEST_REST)

    def _finish(self, steps: Sequence[RunUpdate]) -> None:
        """What follows from committed steps."""
        self._tell(steps)
        crashpoint("recorder.told")
        for step in steps:
            if step.unreadable:
                self._cancel(step.run.facts.id)
        self._let_go(steps)
        self._on_steps(steps)

    def _take_settled(self) -> list[Inbound]:
        """Finishes what the side writer has settled; the messages that were retained for it."""
        retained: list[Inbound] = []
        with suppress(queue.Empty):
            while True:
                retained += self._settle(self._settled.get_nowait())
        return retained

    def _settle(self, settled: Settled) -> list[Inbound]:
        response, step = settled.response, settled.step
        match settled.outcome:
            case "doubtful":
                if self._active.get(response) is step.run and response not in self._suspended:
                    self._suspend([step])
                return []
            case "given up":
                self._abandon(response)
                return []
            case "left":
                step = RunUpdate(step.run, handed_back=True)
                self._abandon(response)
            case "ended":
                self._abandon(response)
        retained = self._suspended.release(response)
        if settled.outcome == "committed":
            self._active.paused.discard(response)
        else:
            self._active.forget(response)
        self._finish([step])
        if settled.outcome == "left" and step.run.stored:
            self._hub.release(step.run.facts.tenant, response)
        return retained

    def _suspend(self, steps: Sequence[RunUpdate]) -> None:
        """Others do not wait for these."""
        for step in steps:
            response = step.run.facts.id
            self._active.paused.add(response)
            self._suspended.add(step)
            self._side.write(step)

    def _abandon(self, response: UUID) -> None:
        """Its run will not go on here."""
        if self._suspended.give_up(response):
            self._cancel(response)

    def _gather(self, next_at: float = 0.0) -> list[Inbound]:
        """What is to be committed next: all there is, once there is something and that time has come."""
        messages = list(self._inbox.get())
        if (rest := next_at - monotonic()) > 0:
            sleep(rest)
            messages += self._waiting()
            with suppress(queue.Empty):
                messages += self._inbox.get(timeout=_LONGEST_WAIT)
        return messages + self._waiting()

    def _waiting(self) -> list[Inbound]:
        """All that has been delivered by now."""
        messages: list[Inbound] = []
        with suppress(queue.Empty):
            while True:
                messages += self._inbox.get_nowait()
        return messages

    def _let_go(self, steps: Sequence[RunUpdate]) -> None:
        for step in steps:
            if step.over:
                self._held.discard(step.run.facts.id)
        if any(step.handed_back for step in steps):
            crashpoint("handback.committed")
            self._on_handed_back()

    def _relax(self) -> None:
        """Everything that was delivered is committed or retried aside."""
        with self._pressure:
            if self._holding:
                self._holding = False
                log.warning("the database has caught up: the engine goes on")
                self._hold(False)
        with self._handover:
            if not self._active and not self._suspended and self._inbox.empty():
                self._idle.set()

    def _commit(self, messages: Sequence[Inbound]) -> list[RunUpdate]:
        """Applies messages to their runs; the steps that are committed. Others do not wait for the rest."""
        if not any(self._active.needs_commit(message) for message in messages):
            return self._without_commit(self._active.apply(messages, datetime.now(UTC)))
        committed, failed = self._committer.commit(messages)
        self._suspend(failed)
        return committed

    def _without_commit(self, steps: Sequence[RunUpdate]) -> list[RunUpdate]:
        """Those that need none. By a mistake of ours a run may have ended, which is to be metered."""
        ended = [step for step in steps if step.over or step.broken]
        self._suspend(ended)
        return [step for step in steps if step not in ended] if ended else list(steps)

    def _tell(self, steps: Sequence[RunUpdate]) -> None:
        self._on_events([step.run.facts.id for step in steps if step.events and step.run.stored])
        told = [self._published(step) for step in steps if step.events]
        self._hub.publish(published for published in told if published is not None)

    def _published(self, step: RunUpdate) -> Published | None:
        """What readers are told of a step; None if there are none, or if it cannot be told.

        That can only be one that is not stored: what is stored has been encoded before.
        """
        response = step.run.facts.id
        if not self._hub.follows(response):
            return None
        try:
            told = frames(response, step.events)
            final = msgspec.json.encode(step.run.final) if step.run.final is not None else None
        except Exception:
            log.exception("response %s cannot be told", response)
            step.broken = True
            self._suspend([step])
            return None
        return Published(response, step.events[0].sequence_number, told, final)
