"""The thread that commits what the recorder could not commit with the rest, and looks for lost responses.

A locked row, a statement that takes long and data that Postgres refuses cost their own response time, and no
other. The steps are retried one by one on a connection of this thread's, with more time for each statement
than the recorder can spare. What comes of a step goes back to the recorder as a `Settled`: only there are
runs brought forward and readers told.
"""

import logging
import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Literal
from uuid import UUID

from server.generation.run import Run
from server.recording.end_from_log import fail_from_log, fail_unstored
from server.recording.persist import is_owner, is_written, write
from server.recording.retries import Retries, Retry
from server.recording.run_registry import RunUpdate
from server.store.cluster import claims, leases
from server.store.commit_failures import CommitFailure, classify
from server.store.content import responses
from server.store.content.responses import ResponseKey
from server.store.database import Connection, Database, commit_synchronously, set_timeouts
from server.store.log import events
from server.supervised_thread import Retry as TurnRetry
from server.supervised_thread import SupervisedThread

log = logging.getLogger("holdfast.recorder")

LOCK_MS, STATEMENT_MS = 300, 5000
"""A locked row is no reason to keep the next one waiting; a slow statement has what every other has."""
LOOK_SECONDS = 1.0
"""How often it is looked whether the responses that run here are still this replica's."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What came of a step, or of a look at a response's row."""

    step: RunUpdate
    outcome: Literal["committed", "ended", "given up", "left", "doubtful"]
    """`committed`: this step, as it was. `ended`: this one in its place, which ends the response. `given up`:
    nothing yet, but the run will not go on. `left`: the response is no more this replica's to write.
    `doubtful`: that may be so, though nothing of it has failed; the step is empty."""

    @property
    def response(self) -> UUID:
        return self.step.run.facts.id


class SideWriter:
    """Steps that are committed aside from all others, each as soon as it can be."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        *,
        on_settled: Callable[[Settled], None],
        running: Callable[[], Sequence[Run]],
        on_fenced: Callable[[], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`on_settled` and `on_fenced` are called on the thread; `running` gives the runs in progress."""
        self._database = database
        self._replica = replica
        self._on_settled = on_settled
        self._running = running
        self._new: queue.SimpleQueue[RunUpdate | UUID] = queue.SimpleQueue()
        self._retries = Retries()
        self._connection: Connection | None = None
        self._clock = clock
        self._looked_at = clock()
        self.thread = SupervisedThread(
            "side writer",
            self._turn,
            fatal=(leases.Fenced,),
            on_fatal=on_fenced,
            retry=TurnRetry(most_failures=None),
            on_end=self._disconnect,
        )

    def write(self, step: RunUpdate) -> None:
        """Retries this step until it is settled. Any thread."""
        self._new.put(step)
        self.thread.wake()

    def give_up(self, response: UUID) -> None:
        """Brings the response to an end without its step, if that is not committed yet. Any thread."""
        self._new.put(response)
        self.thread.wake()

    # --- the side writer's thread ---

    def _turn(self) -> None:
        self.work()
        self.look()
        now = self._clock()
        wait = self._retries.wait(now)
        look = max(0.0, self._looked_at + LOOK_SECONDS - now)
        self.thread.wait(look if wait is None else min(wait, look))

    def work(self) -> None:
        """One try of each step whose time has come. Raises Fenced."""
        with suppress(queue.Empty):
            while True:
                new = self._new.get_nowait()
                if isinstance(new, UUID):
                    self._retries.give_up(new, self._clock())
                else:
                    self._retries.add(new, self._clock())
        began = self._clock()
        while not self.thread.stopping and (retry := self._retries.due(began)) is not None:
            self._try(retry)
            self.thread.progress()

    def look(self) -> None:
        """Reports runs whose rows are another's or gone: their tokens are nobody's. Raises Fenced."""
        if (now := self._clock()) < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = now
        runs = [run for run in self._running() if run.stored]  # before the look: all of them have rows
        if not runs:
            return
        try:
            with self._database.begin() as connection:
                owned = set(claims.owned_responses(connection, self._replica))
                lost = [run for run in runs if ResponseKey(run.facts.tenant, run.facts.id) not in owned]
        except Exception as error:
            if classify(error) == "rejected":
                raise
            return
        for run in lost:  # or ended since `running` was asked, which the recorder knows
            self._on_settled(Settled(RunUpdate(run), "doubtful"))

    def _try(self, retry: Retry) -> None:
        try:
            settled = self._commit(self._connect(), retry)
        except leases.Fenced:
            raise
        except Exception as error:  # noqa: BLE001 - of our own code too, it is this response's alone
            self._disconnect()
            self._note_failure(retry, error)
            return
        self._retries.done(retry)
        self._on_settled(settled)

    def _note_failure(self, retry: Retry, error: Exception) -> None:
        trouble: CommitFailure = classify(error)
        was_given_up = retry.given_up
        self._retries.failed(retry, trouble, self._clock())
        told = (retry.response, type(error).__name__, retry.way)
        if retry.given_up and not was_given_up:
            log.error("a step of response %s cannot be stored (%s); next: %s", *told)
            self._on_settled(Settled(retry.step, "given up"))
        elif trouble != "unavailable":
            log.warning("a step of response %s is not stored yet (%s); next: %s", *told)

    def _commit(self, connection: Connection, retry: Retry) -> Settled:
        """One try, whose commit waits for the disk: what the recorder may have to restore is its own."""
        step, facts = retry.step, retry.step.run.facts
        with connection.begin():
            set_timeouts(connection, lock_ms=LOCK_MS, statement_ms=STATEMENT_MS)
            leases.fence(connection, self._replica)
            commit_synchronously(connection)
            if is_written(connection, self._replica, step):
                return Settled(step, "committed")
            if not step.run.stored:
                return self._commit_unstored(connection, retry)
            owner = responses.get_owner(connection, facts.tenant, facts.id)
            if not is_owner(owner, self._replica, step.run):
                events.delete_orphaned_log(connection, facts.tenant, facts.id)
                log.warning("response %s is not this replica's any more; its run is dropped", facts.id)
                return Settled(step, "left")
            match retry.way:
                case "write":
                    write(connection, self._replica, [step])
                    return Settled(step, "committed")
                case "fail":
                    last = fail_from_log(connection, facts)
                    write(connection, self._replica, [last])
                    return Settled(last, "ended")
                case "hand back":
                    place = ResponseKey(facts.tenant, facts.id)
                    claims.release(connection, self._replica, [place], died=True)
                    return Settled(step, "left")

    def _commit_unstored(self, connection: Connection, retry: Retry) -> Settled:
        """Only its metering is written; without that its readers get its end all the same."""
        step = retry.step
        if retry.given_up and step.run.final is None:
            step = fail_unstored(connection, step)
        if retry.way == "hand back":
            log.error("response %s is not metered", retry.response)
        else:
            write(connection, self._replica, [step])
        return Settled(step, "ended" if retry.given_up else "committed")

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.dedicated_connection(
                leases.recorder_application_name(self._replica)
            )
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
