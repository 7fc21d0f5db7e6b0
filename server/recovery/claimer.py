"""The claimer thread: claims background responses and responses of dead replicas, and resumes or ends them.
New and recovered ones take the same path: claimed, rebuilt from the store, started, submitted to the engine.
With the role api it claims only what is to be ended, so that a fleet without workers can still do that.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from uuid import UUID

from engine.request import RequestRefused
from server.crashpoints import crashpoint
from server.hosted_tools.tool_loop import ToolLoop
from server.prompting.served_model import LoadedModel
from server.protocol.ids import response_id
from server.recording.recorder import Recorder
from server.recording.recorder_messages import SERVER_ERROR, CancelRun, FailRun, ReleaseRuns, StartRun
from server.recovery.rebuild_run import Rebuilt, read_stored_run, rebuild
from server.store.cluster import claims, leases
from server.store.content.responses import ResponseKey, StoredResponse
from server.store.database import Connection, Database
from server.store.database_errors import DatabaseError, ReadFailure, classify_read, first_line, is_unavailable
from server.supervised_thread import SupervisedThread, Worker

log = logging.getLogger("holdfast.claimer")

POLL_SECONDS = 1.0
THOROUGH_POLLS = 5
"""Every so many polls a replica looks for responses that are to be ended, even if another one should."""
MAX_BATCH = 64
IDLE_SHARE, FEW_IDLE = 8, 4
"""An eighth of the most responses may be such with a completion window, or half if that is fewer than four.
On a CPU, steps of 8 rows take a third of the time of 32, at three quarters of the tokens per second."""
MOST_FAILURES = 3
"""Rows in a row that cannot be read, from which on a wrong release or environment must be the cause."""
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
CHECK_SECONDS = 60.0
MAX_COUNTED = 1000
MAX_MODELS = 5
STOPPED = "The server stopped while it was generating this response."
GIVEN_UP = "The server stopped several times while it was generating this response; it was given up."
CHANGED = "The server's model has changed since this response began, so it cannot be finished."
CANNOT_GO_ON = "The server could not go on with this response."


@dataclass(slots=True)
class ClaimCounts:
    """Responses that this replica has claimed. The claimer's thread writes."""

    new: int = 0
    """Responses that no replica had begun."""
    after_death: int = 0
    """Responses that another replica, or an engine, had begun before it died."""
    handed_over: int = 0
    """Responses that another replica had begun and released."""
    given_up: Counter[bool] = field(default_factory=Counter)
    """Responses that ended as failed because their replica died, by whether they were in the background."""

    def count_start(self, stored: StoredResponse) -> None:
        if stored.deaths:
            self.after_death += 1
        elif stored.attempt > 1:
            self.handed_over += 1
        else:
            self.new += 1


class ClaimPauses:
    """Growing pauses while nothing can be read, in monotonic seconds. Other threads only read `trouble`."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        """Why claiming pauses, or has paused without a row that could be read since."""
        self._failures = 0
        self._seconds = 0.0
        self._until = 0.0

    def is_on(self, now: float) -> bool:
        return now < self._until

    def failed(self, failure: ReadFailure, reason: str, now: float) -> bool:
        """Counts a failure; returns whether a pause begins, as it does at once for one of the environment."""
        self._failures += 1
        if failure != "environment" and self._failures < MOST_FAILURES:
            return False
        self._seconds = min(max(FIRST_PAUSE_SECONDS, 2 * self._seconds), MAX_PAUSE_SECONDS)
        self._until = now + self._seconds
        self.trouble = f"what is queued cannot be read: {reason}"
        return True

    def succeeded(self) -> None:
        """A row was read, or none waits."""
        if self._failures:
            self._failures, self._seconds, self._until, self.trouble = 0, 0.0, 0.0, None


class QueueCheck:
    """Looks at the whole queue once a minute, on the claimer's thread of every replica, whatever its role."""

    def __init__(self, database: Database, clock: Callable[[], float] = monotonic) -> None:
        self._database = database
        self._clock = clock
        self._next_check = clock() + CHECK_SECONDS

    def check(self) -> None:
        """If a check is due, ends what has run out of its completion window, and logs a warning for each
        model without a worker. Raises DatabaseError.
        """
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        with self._database.begin() as connection:
            claims.end_windows(connection)
            unserved = claims.count_unserved(connection, MAX_COUNTED)
        for model, count in unserved[:MAX_MODELS]:
            log.warning(
                "%d background responses stay queued: no living replica with the role all or worker serves "
                "their model %r",
                count,
                model,
            )


class _NoRoom(Exception):
    """The engine refuses new requests at the moment."""


class _Unreadable(Exception):
    """Queued responses cannot be read at the moment, whichever they are."""


class Claimer(Worker):
    """Claims no more responses than this replica can run."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        served: LoadedModel,
        recorder: Recorder,
        tool_loop: ToolLoop,
        *,
        max_running: int,
        max_deaths: int,
        generates: bool = True,
        on_left_over: Callable[[], None] = lambda: None,
        on_fatal: Callable[[], None] = lambda: None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """A response is given up after `max_deaths`; `on_left_over`: more is queued than can run here."""
        self._database = database
        self._replica = replica
        self._served = served
        self._recorder = recorder
        self._tool_loop = tool_loop
        self._max_running = max_running
        self._max_deaths = max_deaths
        self._generates = generates
        self._on_left_over = on_left_over
        self._poll_seconds = poll_seconds
        self._queue_check = QueueCheck(database)
        self._has_queued = True
        self._has_ends = True
        """The first claim is thorough: responses may have waited for a replica to start."""
        self._is_first = False
        self._polls = 0
        self._pauses = ClaimPauses()
        self._postponed: list[StoredResponse] = []
        """Claimed responses that cannot be read now; the round ends with their release."""
        self._attempts: dict[UUID, int] = {}
        """The attempts of responses that were claimed here and that the recorder still answers for."""
        self._idle: set[UUID] = set()
        """Responses with a completion window that were claimed here."""
        self.counts = ClaimCounts()
        self.thread = SupervisedThread("claimer", self._turn, fatal=(leases.Fenced,), on_fatal=on_fatal)

    def start(self) -> None:
        """The first claim follows at once."""
        self.thread.wake()
        super().start()

    def wake(self) -> None:
        """Starts a round for responses that this replica has queued, some only to be ended. Any thread."""
        self._has_ends = True
        self.queued()

    def queued(self) -> None:
        """Starts a round for a new response of this replica, which it runs if it can. Any thread."""
        self._has_queued = True
        self.thread.wake()

    def hint(self) -> None:
        """Starts a round for a response that another replica has queued and cannot run. Any thread."""
        self.thread.wake()

    def ended(self, response: UUID) -> None:
        """Starts a round if the place of a response with a completion window has become free. Any thread."""
        if response in self._idle:
            self.thread.wake()

    def set_first(self, is_first: bool) -> None:
        """Whether this replica is the one that looks for responses to be ended at every poll."""
        self._is_first = is_first

    def trouble(self) -> str | None:
        """Why nothing is claimed at the moment, for /health/ready; None if all is well. Any thread."""
        return self._pauses.trouble

    def _turn(self) -> None:
        if self.thread.wait(self._poll_seconds) or self._pauses.is_on(monotonic()):
            return
        self._polls += 1
        queued, self._has_queued = self._has_queued, False
        ends, self._has_ends = self._has_ends, False
        try:
            if self._database.autocommit(claims.is_waiting):
                thorough = ends or self._is_first or self._polls % THOROUGH_POLLS == 0
                if self.claim_all(ends=thorough) and queued:
                    self._on_left_over()
            else:
                self._pauses.succeeded()
            self._queue_check.check()
        except DatabaseError as error:
            self._has_queued |= queued
            self._has_ends |= ends
            if is_unavailable(error) or not self._note_failure(error):
                log.warning("nothing can be claimed at the moment: %s", first_line(error))

    def claim_all(self, *, ends: bool = True) -> bool:
        """Claims until nothing is left that this replica can run; returns whether others may find more.
        Raises Fenced or DatabaseError. With `ends`, responses that are only to be ended come first, for which
        the whole queue is read: one replica does that every time, the others now and then.
        """
        try:
            return self._claim_round(ends=ends)
        except _Unreadable:
            return True
        finally:
            self._release_postponed()

    def _claim_round(self, *, ends: bool) -> bool:
        to_end = partial(claims.claim_to_end, me=self._replica, most_deaths=self._max_deaths)
        while ends and (claimed := self._claim(partial(to_end, limit=self._batch))):
            self._handle(claimed, self._end)
        if self._room <= 0:
            return True
        full = self._recorder.capacity.full_tenants()
        try:
            for idle in (False, True):
                while claimed := self._claim(partial(self._claim_waiting, full=full, idle=idle)):
                    self._handle(claimed, partial(self._resume, full=full))
        except _NoRoom:
            return True
        return self._room <= 0 or bool(full)

    def _claim(self, claim: Callable[[Connection], list[StoredResponse]]) -> list[StoredResponse]:
        if self.thread.stopping:
            return []
        claimed: list[StoredResponse] = []
        try:
            with self._database.begin() as connection:
                leases.fence(connection, self._replica)
                every = claim(connection)
                run_before = [stored for stored in every if self._has_run(stored)]
                new = [stored for stored in every if stored not in run_before]
                claimed = self._without_unsettled(connection, new)
                for stored in claimed:
                    # Those with a completion window take nothing from what their tenant may have at a time.
                    tenant = "" if stored.id in self._idle else stored.tenant
                    self._recorder.capacity.add(stored.id, tenant)
                if claimed:
                    crashpoint("claim.written")
        except BaseException:
            self._release(claimed)
            raise
        for stored in run_before:
            self._recorder.answers_for(stored.id)  # which verifies it, now that the claim is committed
        if claimed:
            crashpoint("claim.committed")
            self._note_attempts(claimed)
        if taken_over := sum(stored.attempt > 1 for stored in claimed):
            log.warning("took over %d responses that other replicas had begun", taken_over)
        return claimed

    def _without_unsettled(
        self, connection: Connection, claimed: list[StoredResponse]
    ) -> list[StoredResponse]:
        """Puts those back that the recorder still has to forget, so that their runs are not mixed up."""
        unsettled = [stored for stored in claimed if stored.id in self._recorder.capacity]
        keys = [ResponseKey(stored.tenant, stored.id) for stored in unsettled]
        claims.release(connection, self._replica, keys)
        return [stored for stored in claimed if stored not in unsettled]

    def _has_run(self, stored: StoredResponse) -> bool:
        """Whether the same attempt was claimed here before, and the database lost that. Its run goes on, or
        the recorder writes its end again: another run would write the same numbers.
        """
        before = self._attempts.get(stored.id, 0)
        return before >= stored.attempt and self._recorder.remembers(stored.id)

    def _note_attempts(self, claimed: Sequence[StoredResponse]) -> None:
        before, remembers = self._attempts, self._recorder.remembers
        self._attempts = {response: before[response] for response in before if remembers(response)}
        self._attempts |= {stored.id: stored.attempt for stored in claimed}

    def _release(self, claimed: Iterable[StoredResponse]) -> None:
        """Leaves responses that this replica owns to the heartbeat thread, which releases them."""
        for stored in claimed:
            self._recorder.capacity.discard(stored.id)

    @property
    def _batch(self) -> int:
        """The most responses to claim together: one, as long as the last one could not be read."""
        return 1 if self._pauses.trouble else MAX_BATCH

    @property
    def _room(self) -> int:
        """The number of further responses that this replica can run."""
        if not self._generates or not self._served.engine.stats().alive:
            return 0
        return self._max_running - len(self._recorder.capacity)

    @property
    def _idle_room(self) -> int:
        """The number of further responses with a completion window that this replica can run: while no other
        response runs here, few of what it can run, as another may come at any time and waits for their step.
        """
        self._idle = {response for response in self._idle if response in self._recorder.capacity}
        others = len(self._recorder.capacity) - len(self._idle)
        places = max(self._max_running // IDLE_SHARE, min(self._max_running // 2, FEW_IDLE), 1)
        return 0 if others else min(self._room, places - len(self._idle))

    def _claim_waiting(self, connection: Connection, full: set[str], *, idle: bool) -> list[StoredResponse]:
        """Claims what can be run here; with `idle`, responses with a completion window."""
        if (room := min(self._idle_room if idle else self._room, self._batch)) <= 0:
            return []
        claimed = claims.claim_waiting(
            connection,
            self._replica,
            models=self._served.names,
            full=full,
            most_deaths=self._max_deaths,
            limit=room,
            idle=idle,
        )
        if idle:
            self._idle |= {stored.id for stored in claimed}
        return claimed

    def _handle(self, claimed: Sequence[StoredResponse], act: Callable[[Rebuilt], None]) -> None:
        remaining = deque(claimed)
        try:
            while remaining:
                rebuilt = self._rebuild(remaining[0])
                crashpoint("claim.rebuilt")
                remaining.popleft()
                if rebuilt is not None:
                    self._call(rebuilt, act)
                self.thread.progress()
        except (_Unreadable, DatabaseError):
            self._postponed += remaining
            raise
        except BaseException:
            self._release(remaining)
            raise

    def _rebuild(self, claimed: StoredResponse) -> Rebuilt | None:
        """The rebuilt run; None if that fails, after which nothing is left to do for this response now.

        What is stored of it ends it only if it is undecodable itself. Raises _Unreadable if others cannot be
        read either, or DatabaseError while the database does not answer.
        """
        try:
            with self._database.begin() as connection:
                stored = read_stored_run(connection, claimed, self._served)
            rebuilt = rebuild(stored, self._served)
        except Exception as error:
            if isinstance(error, DatabaseError) and is_unavailable(error):
                raise
            self._cannot_read(claimed, error)
            return None
        self._pauses.succeeded()
        return rebuilt

    def _cannot_read(self, claimed: StoredResponse, error: Exception) -> None:
        """Ends or postpones a response that cannot be read. Raises _Unreadable or DatabaseError."""
        name, failure = response_id(claimed.id), classify_read(error)
        if failure == "undecodable":
            log.error("%s cannot be read", name, exc_info=error, extra=claimed.log_fields)
            self._end_undecodable(claimed)
        elif failure == "passing":
            log.warning("%s cannot be read now: %s", name, first_line(error), extra=claimed.log_fields)
            self._postponed.append(claimed)
        if self._note_failure(error):
            raise _Unreadable from error

    def _note_failure(self, error: Exception) -> bool:
        """Counts that something could not be read; returns whether claiming pauses now."""
        failure = classify_read(error)
        # What a decoder says may quote content.
        reason = type(error).__name__ if failure == "undecodable" else first_line(error)
        pauses = self._pauses.failed(failure, reason, monotonic())
        if pauses:
            log.error("%s; claiming pauses", self._pauses.trouble)
        return pauses

    def _release_postponed(self) -> None:
        """Puts responses back that were claimed and cannot be read now. What fails, the heartbeat repeats."""
        postponed, self._postponed = self._postponed, []
        if not postponed:
            return
        self._release(postponed)
        keys = [ResponseKey(stored.tenant, stored.id) for stored in postponed]
        try:
            with self._database.begin() as connection:
                leases.fence(connection, self._replica)
                claims.release(connection, self._replica, keys, skip_locked=True)
        except DatabaseError as error:
            log.warning("%d claimed responses are released later: %s", len(keys), first_line(error))

    def _end_undecodable(self, claimed: StoredResponse) -> None:
        name = response_id(claimed.id)
        try:
            if claims.fail_undecodable(self._database, self._replica, claimed):
                log.error(
                    "%s ends as failed: what is stored of it cannot be read", name, extra=claimed.log_fields
                )
        except DatabaseError as error:
            log.error("%s cannot even be ended: %s", name, first_line(error), extra=claimed.log_fields)
            if is_unavailable(error):
                raise
        finally:
            self._recorder.capacity.discard(claimed.id)

    def _call(self, rebuilt: Rebuilt, act: Callable[[Rebuilt], None]) -> None:
        """Calls `act`; an unexpected exception ends this response only, the environment's releases it."""
        try:
            act(rebuilt)
        except _NoRoom:
            raise
        except (OSError, MemoryError) as error:
            name = response_id(rebuilt.stored.id)
            log.warning("%s cannot begin now: %s", name, error, extra=rebuilt.stored.log_fields)
            release = ReleaseRuns(frozenset({rebuilt.stored.id}))
            self._recorder.deliver([StartRun(rebuilt.run, starts=False), release])
        except Exception:
            log.exception("%s cannot go on", response_id(rebuilt.stored.id), extra=rebuilt.stored.log_fields)
            end = FailRun(rebuilt.stored.id, SERVER_ERROR, CANNOT_GO_ON)
            self._recorder.deliver([StartRun(rebuilt.run, starts=False), end])

    def _end(self, rebuilt: Rebuilt) -> None:
        stored = rebuilt.stored
        if stored.cancel_requested_at is not None:
            end: CancelRun | FailRun = CancelRun(stored.id, stored.cancel_reason)
        else:
            name, fields = response_id(stored.id), stored.log_fields
            log.warning("%s was left by a dead replica and ends as failed", name, extra=fields)
            self.counts.given_up[stored.background] += 1
            end = FailRun(stored.id, SERVER_ERROR, GIVEN_UP if stored.background else STOPPED)
        self._recorder.deliver([StartRun(rebuilt.run, starts=False), end])

    def _resume(self, rebuilt: Rebuilt, full: set[str]) -> None:
        """Starts a claimed run, or releases it if the engine has no room for its tenant."""
        run = rebuilt.run
        tool_work = run.take_tool_work()
        if rebuilt.engine_request is None and not run.next_step_is_tools:
            end = FailRun(run.facts.id, SERVER_ERROR, CHANGED)
            self._recorder.deliver([StartRun(run, starts=False), end])
            return
        if rebuilt.turns is not None and rebuilt.turns.may_have_next_turn:
            self._tool_loop.register(rebuilt.turns)
        self._recorder.start_run(run)
        self.counts.count_start(rebuilt.stored)
        crashpoint("claim.begun")
        if rebuilt.engine_request is None:
            if tool_work is not None:
                self._tool_loop.begin(run, tool_work, is_retry=True)
            return
        try:
            self._served.engine.submit(rebuilt.engine_request)
        except RequestRefused as refused:
            if refused.reason in ("overloaded", "share_full", "closed"):
                self._recorder.deliver([ReleaseRuns(frozenset({run.facts.id}))])
                if refused.reason != "share_full":
                    raise _NoRoom from refused
                full.add(run.facts.tenant)
                return
            log.error("%s cannot go on: %s", response_id(run.facts.id), refused, extra=run.facts.log_fields)
            self._recorder.fail_run(run.facts.id, CHANGED)
        crashpoint("claim.submitted")
