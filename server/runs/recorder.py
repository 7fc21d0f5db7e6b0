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
from server.runs.active import SERVER_ERROR, ActiveRuns, Begin, Break, HandBack, Inbound, Step, Stop
from server.runs.capacity import Capacity
from server.runs.run import Run
from server.runs.unflushed import Unflushed
from server.runs.writing import is_written, log_rows, write
from server.store import leases
from server.store.appending import append_alone
from server.store.database import Connection, Database, Duplicate, Unreachable
from server.store.events import Chunk
from server.stream.frames import frames
from server.stream.hub import Hub, Published

log = logging.getLogger("holdfast.recorder")

MOST_WAITING = 4096
"""Deliveries that may wait for a commit; the engine is held while there are more. One is a step of the engine
with at most a token for each running response, so what waits for a database that is away stays small."""
_RETRY_SECONDS = 0.2
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
        on_steps: Callable[[Sequence[Step]], None] = lambda _steps: None,
        hold: Callable[[bool], None] = lambda _held: None,
        most_waiting: int = MOST_WAITING,
        capacity: Capacity | None = None,
    ) -> None:
        """`on_fenced` is called, once, when this replica can write no more: it must end and start anew.

        Other replicas have taken it for dead, or a mistake of ours has stopped the thread, which must not
        leave a server behind that accepts responses and answers none. `on_events` is called after a commit
        with the stored responses that got events. `on_handed_back` is called when there
        are responses that others may go on with. `on_steps` is called with what was
        committed. `hold` stops and starts the engine. `capacity` counts and bounds the responses here.
        """
        self._database = database
        self._replica = replica
        self._hub = hub
        self._on_fenced = on_fenced
        self._on_events = on_events
        self._on_handed_back = on_handed_back
        self._on_steps = on_steps
        self._hold = hold
        self._most_waiting = most_waiting
        self._holding = False
        self._pressure = threading.Lock()
        """So that of a hold and a release the one that was decided last is the last to be said."""
        self._inbox: queue.SimpleQueue[Sequence[Inbound]] = queue.SimpleQueue()
        self._active = ActiveRuns()
        self._held = capacity if capacity is not None else Capacity()
        """Responses that this process is about to begin or producing, until their end is committed."""
        self._idle = threading.Event()
        self._idle.set()
        self._handover = threading.Lock()
        """Held while a run is given in, so that nothing is called idle just before it arrives."""
        self._connection: Connection | None = None
        self._unflushed = Unflushed()
        self._give_up_at = inf
        self._thread = threading.Thread(target=self._loop, name="recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def deliver(self, messages: Sequence[Inbound], /) -> None:
        """Hands messages over; never blocks. Any thread, the engine's above all."""
        self._inbox.put(messages)
        with self._pressure:
            if not self._holding and self._inbox.qsize() > self._most_waiting:
                self._holding = True
                log.warning("the database is behind: the engine is held")
                self._hold(True)

    @property
    def capacity(self) -> Capacity:
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
            self.deliver([Begin(run)])

    def fail(self, response_id: UUID, message: str) -> None:
        """Ends a run from outside the engine."""
        self.deliver([Break(response_id, SERVER_ERROR, message)])

    def running(self) -> list[Run]:
        """The runs in progress here. Any thread; a snapshot."""
        return self._active.runs

    def hand_back(self) -> None:
        """Gives all background responses up for other replicas to go on with."""
        self.deliver([HandBack()])

    def wait_idle(self, seconds: float) -> bool:
        """Whether every run ended or was handed back within that time."""
        return self._idle.wait(seconds)

    def stop(self, seconds: float = inf) -> None:
        """Ends the thread after everything delivered before.

        What cannot be committed in that time is left to other replicas, of which `on_fenced` is told.
        """
        self._give_up_at = monotonic() + seconds
        self.deliver([Stop()])
        self._thread.join()

    # --- the recorder thread ---

    def _loop(self) -> None:
        stopping = False
        next_at = 0.0
        while not stopping:
            messages = self._gather(next_at)
            stopping = any(isinstance(message, Stop) for message in messages)
            try:
                next_at = self.bring_forward(messages)
            except leases.Fenced:
                log.critical("this replica was declared dead; its %d runs are given up", len(self.running()))
                self._on_fenced()
                break
            except Exception:
                log.critical("the recorder cannot go on; other replicas take its runs", exc_info=True)
                self._on_fenced()
                break
        self._disconnect()

    def bring_forward(self, messages: Sequence[Inbound]) -> float:
        """One turn of the thread: commits what the messages mean, then tells of it. Raises Fenced.

        Gives the time at which the next one may begin.
        """
        began = monotonic()
        steps = self._commit(messages)
        took = monotonic() - began
        crashpoint("recorder.committed")
        if any(step.run.ending is not None for step in steps):
            crashpoint("end.committed")
        self._tell(steps)
        crashpoint("recorder.told")
        self._let_go(steps)
        self._on_steps(steps)
        return monotonic() + min(_REST * took, _LONGEST_REST)

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

    def _let_go(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.over:
                self._held.discard(step.run.facts.id)
        if any(step.handed_back for step in steps):
            crashpoint("handback.committed")
            self._on_handed_back()
        with self._pressure:
            if self._holding:
                self._holding = False
                log.warning("the database has caught up: the engine goes on")
                self._hold(False)
        with self._handover:
            if not self._active and self._inbox.empty():
                self._idle.set()

    def _commit(self, messages: Sequence[Inbound]) -> list[Step]:
        """Applies messages to their runs once, and writes what came of it until it is committed.

        A commit whose answer was lost may have happened: the second try looks before it writes. Or it may
        still happen: then the second try, which waits for it, is refused as a duplicate, and the third looks.
        Commits that were answered may be lost too, when Postgres has crashed: they are written again first.
        """
        if not any(self._active.needs_commit(message) for message in messages):
            return self._active.apply(messages, datetime.now(UTC))
        commit = _Commit(self._active, self._replica, messages, self._unflushed)
        while True:
            try:
                steps = commit.make(self._connect())
            except (*Unreachable, Duplicate) as error:
                if not commit.may_be_tried_again(error) or monotonic() > self._give_up_at:
                    raise
                log.warning("commit failed, trying again: %s", type(error).__name__)
                self._disconnect()
                sleep(_RETRY_SECONDS)
            else:
                self._unflushed.committed(steps)
                return steps

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.dedicate(leases.recorder_session(self._replica))
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def _tell(self, steps: Sequence[Step]) -> None:
        self._on_events([step.run.facts.id for step in steps if step.events and step.run.stored])
        self._hub.publish(
            Published(
                step.run.facts.id,
                step.events[0].sequence_number,
                frames(step.run.facts.id, step.events),
                msgspec.json.encode(step.run.final) if step.run.final is not None else None,
            )
            for step in steps
            if step.events and self._hub.follows(step.run.facts.id)
        )


class _Commit:
    """Messages that are applied to their runs once, and written as often as it takes."""

    def __init__(
        self, active: ActiveRuns, replica: UUID, messages: Sequence[Inbound], unflushed: Unflushed
    ) -> None:
        self._unflushed = unflushed
        self._active = active
        self._replica = replica
        self._messages = messages
        self._steps: list[Step] = []
        self._applied = False
        self._in_doubt = False
        """The connection was lost, so Postgres may have crashed."""
        self._rewritten = self._refused = False

    def may_be_tried_again(self, error: Exception) -> bool:
        """After a try that failed. Of a duplicate, once: an earlier try's commit may have come late."""
        self._in_doubt = True
        was_refused, self._refused = self._refused, isinstance(error, Duplicate)
        return not self._refused or (self._rewritten and not was_refused)

    def make(self, connection: Connection) -> list[Step]:
        """What was committed, now or by a try before. Raises Fenced or DatabaseError."""
        if self._may_only_add() and append_alone(connection, self._replica, self._rows):
            return self._steps
        with connection.begin():
            now = leases.fence(connection, self._replica)
            if not self._applied:
                self._restore(connection)
                self._apply(now)
                write(connection, self._replica, self._steps)
            elif is_written(connection, self._replica, self._steps):
                log.warning("a commit that was not answered had happened")
            else:
                self._rewritten = True
                self._restore(connection)
                write(connection, self._replica, self._steps)
            crashpoint("recorder.written")
        return self._steps

    def _restore(self, connection: Connection) -> None:
        """Before anything is added to a log whose end Postgres may have forgotten in a crash."""
        if self._in_doubt and (lost := self._unflushed.restore(connection)):
            log.warning("the database had forgotten %d steps; they are written again", lost)

    def _may_only_add(self) -> bool:
        return not (self._applied or self._in_doubt) and self._active.only_adds(self._messages)

    def _apply(self, now: datetime) -> None:
        self._steps = self._active.apply(self._messages, now)
        self._applied = True

    def _rows(self, now: datetime) -> list[Chunk] | None:
        """All that there is to write; None if a run ended after all, of which there is more to write."""
        self._apply(now)
        if any(step.over for step in self._steps):
            return None
        crashpoint("recorder.written")
        return log_rows(self._steps)
