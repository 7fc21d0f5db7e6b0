"""The recorder thread: engine messages become events, events are committed, then readers are told.

One wake-up per engine step or commit. Whatever gathered while the last commit ran is the next commit, so a
slow disk makes bigger commits, not a longer queue. Knows nothing of HTTP and nothing of how a model writes.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import msgspec

from engine.messages import Failed, Finished, Outbound, Tokens
from server.runs.run import Run
from server.runs.states import Ending
from server.store import deletion, events, leases, responses
from server.store.database import Connection, Database, Unreachable, durable
from server.store.responses import NewItem
from server.stream.frames import frame
from server.stream.hub import Hub, Published
from server.wire.events import Event, render
from server.wire.items import Item, Message

log = logging.getLogger("holdfast.recorder")

SERVER_ERROR = "server_error"
ENGINE_FAILED = "The model could not finish this response."
UNREADABLE = "The model's output could not be read."
_RETRY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Begin:
    """A run whose response has been accepted; its engine messages follow."""

    run: Run


@dataclass(frozen=True, slots=True)
class Break:
    """End this run as failed; sent by whoever knows that no engine will."""

    response_id: UUID
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The thread ends after what it was given before this."""


Inbound = Begin | Break | Stop | Outbound


@dataclass(slots=True)
class Step:
    """What one commit does for one run."""

    run: Run
    events: list[Event] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


class Recorder:
    """Runs in progress, and the thread that brings them forward."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        hub: Hub,
        *,
        on_fenced: Callable[[], None],
        on_events: Callable[[Collection[UUID]], None],
    ) -> None:
        """`on_events` is called after a commit with the stored responses that got events.

        `on_fenced` is called, once, when this replica can write no more: it must end and start anew.

        Other replicas have taken it for dead, or a mistake of ours has stopped the thread, which must not
        leave a server behind that accepts responses and answers none.
        """
        self._database = database
        self._replica = replica
        self._hub = hub
        self._on_fenced = on_fenced
        self._on_events = on_events
        self._inbox: queue.SimpleQueue[Sequence[Inbound]] = queue.SimpleQueue()
        self._runs: dict[str, Run] = {}
        self._untold: dict[str, list[int]] = {}
        """Tokens that have given no event yet; stored with the first event that they lead to."""
        self._idle = threading.Event()
        self._idle.set()
        self._handover = threading.Lock()
        """Held while a run is given in, so that nothing is called idle just before it arrives."""
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._loop, name="recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def deliver(self, messages: Sequence[Inbound], /) -> None:
        """Hands messages over; never blocks. Any thread, the engine's above all."""
        self._inbox.put(messages)

    def begin(self, run: Run) -> None:
        with self._handover:
            self._idle.clear()
            self.deliver([Begin(run)])

    def fail(self, response_id: UUID, message: str) -> None:
        """Ends a run from outside the engine."""
        self.deliver([Break(response_id, SERVER_ERROR, message)])

    def running(self) -> list[UUID]:
        """The responses in progress here. Any thread; a snapshot."""
        return [run.facts.id for run in list(self._runs.values())]

    def runs(self, response_id: UUID) -> bool:
        """Whether this response is in progress here. Any thread."""
        return response_id.hex in self._runs

    def wait_idle(self, seconds: float) -> bool:
        """Whether every run ended within that time."""
        return self._idle.wait(seconds)

    def stop(self) -> None:
        """Ends the thread after everything delivered before."""
        self.deliver([Stop()])
        self._thread.join()

    # --- the recorder thread ---

    def _loop(self) -> None:
        stopping = False
        while not stopping:
            messages = self._gather()
            stopping = any(isinstance(message, Stop) for message in messages)
            try:
                steps = self._commit(messages)
            except leases.Fenced:
                log.critical("this replica was declared dead; its %d runs are given up", len(self._runs))
                self._on_fenced()
                break
            except Exception:
                log.critical("the recorder cannot go on; other replicas take its runs", exc_info=True)
                self._on_fenced()
                break
            self._tell(steps)
            with self._handover:
                if not self._runs and self._inbox.empty():
                    self._idle.set()
        self._disconnect()

    def _gather(self) -> list[Inbound]:
        messages = list(self._inbox.get())
        while True:
            try:
                messages += self._inbox.get_nowait()
            except queue.Empty:
                return messages

    def _commit(self, messages: Sequence[Inbound]) -> list[Step]:
        """Applies messages to their runs once, and writes what came of it until it is committed.

        A commit whose answer was lost may have happened: the second try looks before it writes.
        """
        if not any(self._concerns_store(message) for message in messages):
            return self._apply(messages, datetime.now(UTC))
        steps: list[Step] | None = None
        while True:
            try:
                connection = self._connect()
                with connection.begin():
                    now = leases.fence(connection, self._replica)
                    if steps is None:
                        steps = self._apply(messages, now)
                        self._write(connection, steps)
                    elif not self._written(connection, steps):
                        self._write(connection, steps)
            except Unreachable as error:
                log.warning("commit failed, trying again: %s", type(error).__name__)
                self._disconnect()
                time.sleep(_RETRY_SECONDS)
            else:
                return steps

    def _concerns_store(self, message: Inbound) -> bool:
        """Tokens of a response that is not stored need no commit; its end does, for the metering.

        A run that is not known yet may begin in the same batch.
        """
        if isinstance(message, Tokens):
            run = self._runs.get(message.job_id)
            return run is None or run.stored
        return not isinstance(message, Begin | Stop)

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.dedicate("recorder")
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    # --- messages to events ---

    def _apply(self, messages: Sequence[Inbound], now: datetime) -> list[Step]:
        steps: dict[str, Step] = {}
        for message in messages:
            match message:
                case Begin(run):
                    self._runs[run.facts.job_id] = run
                case Break(response_id, code, told):
                    act = partial(Run.fail, code=code, message=told, at=now)
                    self._advance(steps, response_id.hex, now, act)
                case Tokens(job_id, token_ids):
                    self._take_tokens(steps, job_id, token_ids, now)
                case Finished(job_id, reason, usage):
                    act = partial(Run.finish, reason=reason, usage=usage, at=now)
                    self._advance(steps, job_id, now, act)
                case Failed(job_id, code, cause, usage):
                    log.error("job %s failed: %s: %s", job_id, code, cause)
                    act = partial(Run.fail, code=SERVER_ERROR, message=ENGINE_FAILED, at=now, usage=usage)
                    self._advance(steps, job_id, now, act)
                case Stop():
                    pass
        for step in steps.values():
            if step.run.ending is not None:
                self._runs.pop(step.run.facts.job_id, None)
                self._untold.pop(step.run.facts.job_id, None)
        return list(steps.values())

    def _take_tokens(
        self, steps: dict[str, Step], job_id: str, token_ids: Sequence[int], now: datetime
    ) -> None:
        self._untold.setdefault(job_id, []).extend(token_ids)
        step = self._advance(steps, job_id, now, lambda run: run.tokens(token_ids, now))
        if step is not None and step.events:
            step.token_ids += self._untold.pop(job_id)

    def _advance(
        self, steps: dict[str, Step], job_id: str, now: datetime, act: Callable[[Run], list[Event]]
    ) -> Step | None:
        """Lets a run take one message; a mistake of ours in it fails that run and no other."""
        run = self._runs.get(job_id)
        if run is None or run.ending is not None:
            self._untold.pop(job_id, None)
            return None
        step = steps.setdefault(job_id, Step(run))
        try:
            step.events += act(run)
        except Exception:
            log.exception("run %s failed while reading its tokens", job_id)
            step.events += run.fail(SERVER_ERROR, UNREADABLE, now, readable=False)
        return step

    # --- events to rows ---

    def _write(self, connection: Connection, steps: Sequence[Step]) -> None:
        ended = [step.run for step in steps if step.run.ending is not None]
        if ended:
            durable(connection)
        chunks = [
            chunk
            for step in steps
            if step.run.stored
            for chunk in events.pack(
                step.run.facts.tenant, step.run.facts.id, step.run.facts.attempt, step.events, step.token_ids
            )
        ]
        if chunks:
            events.append(connection, chunks)
        for run in ended:
            assert run.ending is not None
            self._write_end(connection, run, run.ending)

    def _write_end(self, connection: Connection, run: Run, ending: Ending) -> None:
        facts = run.facts
        if run.stored:
            responses.insert_items(
                connection,
                facts.tenant,
                facts.id,
                responses.OUTPUT,
                [stored_item(item) for item in run.output],
            )
            events.compact(connection, facts.tenant, facts.id)
            if responses.finish(connection, facts.tenant, facts.id, self._replica, ending):
                deletion.purge(connection, facts.tenant, facts.id)
        responses.record_usage(
            connection,
            tenant=facts.tenant,
            response_id=facts.id,
            key_id=facts.key_id,
            model=facts.echo.model,
            stored=run.stored,
            started_at=facts.created_at,
            ending=ending,
        )

    def _written(self, connection: Connection, steps: Sequence[Step]) -> bool:
        """Whether a commit that was answered by an error had happened after all."""
        for step in steps:
            facts = step.run.facts
            if step.run.ending is not None:
                return responses.is_metered(connection, facts.tenant, facts.id)
            if step.run.stored and step.events:
                _, next_seq = events.progress(connection, facts.tenant, facts.id)
                return next_seq > step.events[0].sequence_number
        return True

    # --- rows to readers ---

    def _tell(self, steps: Sequence[Step]) -> None:
        self._on_events([step.run.facts.id for step in steps if step.events and step.run.stored])
        self._hub.publish(
            Published(
                step.run.facts.id,
                step.events[0].sequence_number,
                tuple(frame(event, render(step.run.facts.id, event)) for event in step.events),
                msgspec.json.encode(step.run.final) if step.run.final is not None else None,
            )
            for step in steps
            if step.events and self._hub.follows(step.run.facts.id)
        )


def stored_item(item: Item) -> NewItem:
    """An item with the columns that its row shows."""
    return NewItem(
        id=item.id,
        type="message" if isinstance(item, Message) else "reasoning",
        role=item.role if isinstance(item, Message) else None,
        status=item.status,
        payload=msgspec.json.encode(item).decode(),
    )
