"""The side writer thread: retries updates that could not be committed with the others; finds lost responses.

A locked row, a slow statement or data that Postgres refuses costs its own response time, and no other.
Updates are retried one by one on this thread's own connection, with longer timeouts than the recorder's.
Results go back to the recorder as `SideResult`s: only there are runs advanced and readers informed.
"""

import logging
import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal
from uuid import UUID

from server.generation.event_log import RunLog
from server.generation.output_decoding import no_decoding
from server.generation.run import Run
from server.generation.run_facts import RunFacts
from server.protocol.ids import response_id
from server.recording.messages import EVENTS_LOST, SERVER_ERROR, RunUpdate
from server.recording.persist import (
    EventsLost,
    is_owner,
    is_written,
    read_log,
    write,
    write_earlier_rows,
)
from server.store import log_append
from server.store.cluster import claims, leases
from server.store.content import responses
from server.store.content.responses import Owner, ResponseKey
from server.store.database import Connection, Database, commit_synchronously, set_timeouts
from server.store.database import clock as database_clock
from server.store.database_errors import CommitFailure, classify
from server.supervised_thread import Retry as TurnRetry
from server.supervised_thread import SupervisedThread

log = logging.getLogger("holdfast.recorder")

NOT_STORED = "The server could not store the rest of this response."
LOST = (
    "The database has lost events of this response that were sent before; it has the events up to this one."
)
LOCK_MS, STATEMENT_MS = 300, 5000
"""A locked row must not delay the next update for long; statements have the database's usual limit."""
OWNERSHIP_CHECK_SECONDS = 1.0
"""How often the rows of the active runs are checked for being this replica's."""
MAX_TRIES = 8
"""Blocked tries, after which an update is given up. With pauses and lock timeouts that is about 20 s, longer
than any transaction of ours."""
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 5.0
AWAY_PAUSE_SECONDS = 0.2

Way = Literal["write", "fail", "hand back"]


@dataclass(slots=True, eq=False)
class Retry:
    """An update and how it is written next."""

    update: RunUpdate
    next_at: float
    way: Way = "write"
    tries: int = 0
    """Tries that the database answered, so none during an outage."""
    has_gap: bool = False
    """Events are lost, so the response can only end as failed."""

    @property
    def response(self) -> UUID:
        return self.update.run.facts.id

    @property
    def given_up(self) -> bool:
        return self.way != "write"


@dataclass(slots=True)
class Retries:
    """The updates that are being retried, and when. Pure.

    An update is written as it is until Postgres refuses it or it was blocked too often. From then on the
    response is ended in one of two ways, in turns, until one is committed: as failed, with its stored output;
    or released, for any replica to claim.
    """

    _pending: list[Retry] = field(default_factory=list)

    def add(self, update: RunUpdate, now: float) -> None:
        self._pending.append(Retry(update, now))

    def due(self, now: float) -> Retry | None:
        """The retry that has been due for longest; None if none is due."""
        first = min(self._pending, key=lambda retry: retry.next_at, default=None)
        return first if first is not None and first.next_at <= now else None

    def wait(self, now: float) -> float | None:
        """Seconds until a retry is due; None if there are no retries."""
        times = [retry.next_at for retry in self._pending]
        return max(0.0, min(times) - now) if times else None

    def done(self, retry: Retry) -> None:
        self._pending.remove(retry)

    def give_up(self, response: UUID, now: float) -> None:
        """Ends the response instead of writing its update as it is, if that is still pending."""
        for retry in self._pending:
            if retry.response == response and not retry.given_up:
                _give_up(retry, "timed_out")
                retry.next_at = now

    def failed(self, retry: Retry, trouble: CommitFailure, now: float) -> None:
        """Schedules the next try. An outage, a broken schema and an operator's limit are waited out and count
        as no try.
        """
        if trouble in ("unavailable", "schema_mismatch", "limited"):
            retry.next_at = now + (MAX_PAUSE_SECONDS if trouble == "limited" else AWAY_PAUSE_SECONDS)
            return
        retry.tries += 1
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(retry.tries - 1, 16), MAX_PAUSE_SECONDS)
        if retry.has_gap:
            retry.way, pause = "fail", pause if retry.given_up else 0.0
        elif retry.given_up:
            retry.way = "hand back" if retry.way == "fail" else "fail"
        elif trouble != "timed_out" or retry.tries >= MAX_TRIES:
            _give_up(retry, trouble)
            pause = 0.0
        retry.next_at = now + pause


def _give_up(retry: Retry, trouble: CommitFailure) -> None:
    """A background response whose row was only blocked may succeed on another replica; others fail."""
    elsewhere = trouble == "timed_out" and retry.update.run.facts.background
    retry.way = "hand back" if elsewhere else "fail"


@dataclass(frozen=True, slots=True)
class SideResult:
    """The result for an update, or of an ownership check."""

    update: RunUpdate
    outcome: Literal["committed", "ended", "given up", "left", "doubtful"]
    """`committed`: the update is stored as it was. `ended`: this update, which ends the response, was stored
    in its place. `given up`: nothing is stored yet, but the run will not continue. `left`: the response is
    not this replica's to write any more. `doubtful`: the ownership check suggests that; the update is
    empty."""

    @property
    def response(self) -> UUID:
        return self.update.run.facts.id


class SideWriter:
    """Commits each update in a transaction of its own."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        *,
        on_result: Callable[[SideResult], None],
        active_runs: Callable[[], Sequence[Run]],
        on_fenced: Callable[[], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`on_result` and `on_fenced` are called on the thread. `active_runs` returns the runs in
        progress.
        """
        self._database = database
        self._replica = replica
        self._on_result = on_result
        self._active_runs = active_runs
        self._new: queue.SimpleQueue[RunUpdate | UUID] = queue.SimpleQueue()
        self._retries = Retries()
        self._connection: Connection | None = None
        self._clock = clock
        self._checked_at = clock()
        self.thread = SupervisedThread(
            "side writer",
            self._turn,
            fatal=(leases.Fenced,),
            on_fatal=on_fenced,
            retry=TurnRetry(max_failures=None),
            on_end=self._disconnect,
        )

    def write(self, update: RunUpdate) -> None:
        """Retries this update until there is a result. Any thread."""
        self._new.put(update)
        self.thread.wake()

    def give_up(self, response: UUID) -> None:
        """Ends the response without its update, unless that is committed already. Any thread."""
        self._new.put(response)
        self.thread.wake()

    # --- the side writer's thread ---

    def _turn(self) -> None:
        self.retry_due()
        self.check_ownership()
        now = self._clock()
        wait = self._retries.wait(now)
        check_ownership = max(0.0, self._checked_at + OWNERSHIP_CHECK_SECONDS - now)
        self.thread.wait(check_ownership if wait is None else min(wait, check_ownership))

    def retry_due(self) -> None:
        """Tries each update that is due once. Raises Fenced."""
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

    def check_ownership(self) -> None:
        """Reports runs whose rows belong to another replica or are gone. Raises Fenced."""
        if (now := self._clock()) < self._checked_at + OWNERSHIP_CHECK_SECONDS:
            return
        self._checked_at = now
        # Listed before the query: all of them have rows.
        if not (runs := [run for run in self._active_runs() if run.stored]):
            return
        try:
            with self._database.begin() as connection:
                owned = set(claims.owned_responses(connection, self._replica))
                lost = [run for run in runs if ResponseKey(run.facts.tenant, run.facts.id) not in owned]
        except Exception as error:
            if classify(error) == "rejected":
                raise
            return
        for run in lost:  # perhaps it has ended since `active_runs`, which the recorder knows
            self._on_result(SideResult(RunUpdate(run), "doubtful"))

    def _try(self, retry: Retry) -> None:
        try:
            result = self._commit(self._connect(), retry)
        except leases.Fenced:
            raise
        except Exception as error:  # noqa: BLE001 - of our own code too, it is this response's alone
            self._disconnect()
            self._note_failure(retry, error)
            return
        self._retries.done(retry)
        self._on_result(result)

    def _note_failure(self, retry: Retry, error: Exception) -> None:
        trouble = classify(error)
        was_given_up = retry.given_up
        retry.has_gap |= isinstance(error, EventsLost | log_append.LogGap)
        self._retries.failed(retry, trouble, self._clock())
        details = (response_id(retry.response), type(error).__name__, retry.way)
        fields = retry.update.run.facts.log_fields
        if retry.given_up and not was_given_up:
            log.error("an update of %s cannot be stored (%s); next: %s", *details, extra=fields)
            self._on_result(SideResult(retry.update, "given up"))
        elif trouble != "unavailable":
            log.warning("an update of %s is not stored yet (%s); next: %s", *details, extra=fields)

    def _commit(self, connection: Connection, retry: Retry) -> SideResult:
        """One try. The commit is synchronous, so that no later one of the recorder can outlive it."""
        update, facts = retry.update, retry.update.run.facts
        with connection.begin():
            set_timeouts(connection, lock_ms=LOCK_MS, statement_ms=STATEMENT_MS)
            leases.fence(connection, self._replica)
            commit_synchronously(connection)
            if is_written(connection, self._replica, update):
                return SideResult(update, "committed")
            if not update.run.stored:
                return self._commit_unstored(connection, retry)
            owner = responses.get_owner(connection, facts.tenant, facts.id)
            if owner == Owner(None, facts.attempt - 1, ended=False) and claims.claim_again(
                connection, self._replica, ResponseKey(facts.tenant, facts.id), facts.attempt
            ):
                owner = Owner(self._replica, facts.attempt, ended=False)
            if not is_owner(owner, self._replica, update.run):
                log_append.delete_orphaned_log(connection, facts.tenant, facts.id)
                log.warning(
                    "%s is not this replica's any more; its run is dropped",
                    response_id(facts.id),
                    extra=facts.log_fields,
                )
                return SideResult(update, "left")
            match retry.way:
                case "write":
                    write_earlier_rows(connection, update)
                    write(connection, self._replica, [update])
                    return SideResult(update, "committed")
                case "fail":
                    stored = read_log(connection, facts.tenant, facts.id)
                    last = _fail(connection, facts, stored, has_gap=retry.has_gap)
                    write(connection, self._replica, [last])
                    return SideResult(last, "ended")
                case "hand back":
                    key = ResponseKey(facts.tenant, facts.id)
                    claims.release(connection, self._replica, [key], died=True)
                    return SideResult(update, "left")

    def _commit_unstored(self, connection: Connection, retry: Retry) -> SideResult:
        """Writes the usage, the only thing that is stored; readers get the end even if that fails."""
        update = retry.update
        if retry.given_up and update.run.final is None:
            update = _fail(connection, update.run.facts, RunLog((), update.first_seq, (), None))
        if retry.way == "hand back":
            fields = update.run.facts.log_fields
            log.error("%s is not metered", response_id(retry.response), extra=fields)
        else:
            write(connection, self._replica, [update])
        return SideResult(update, "ended" if retry.given_up else "committed")

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


def _fail(connection: Connection, facts: RunFacts, log: RunLog, *, has_gap: bool = False) -> RunUpdate:
    """The update that ends a response as failed after its last stored event.

    Nothing of its run is used but the facts: the rest may be the reason why it cannot be stored.
    """
    run = Run(facts, no_decoding())
    run.restore_output_only(log)
    update = RunUpdate(run, has_gap=has_gap)
    code, message = (EVENTS_LOST, LOST) if has_gap else (SERVER_ERROR, NOT_STORED)
    update.events += run.fail(code, message, database_clock(connection))
    return update
