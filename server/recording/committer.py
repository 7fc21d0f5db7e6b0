"""The recorder's transactions: all runs' updates in one, in groups after a failure, again after an outage.

The recorder's thread only.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import inf
from time import monotonic, sleep
from typing import NamedTuple
from uuid import UUID

from engine.statistics import Histogram
from server.crashpoints import crashpoint
from server.recording.messages import RecorderMessage, RunUpdate
from server.recording.persist import is_written, log_chunks, must_reach_disk, write
from server.recording.recent_commits import RecentCommits
from server.recording.run_registry import RunRegistry
from server.store import commit_probe
from server.store.cluster import leases
from server.store.commit_probe import Acknowledged
from server.store.database import (
    Connection,
    Database,
    commit_synchronously,
    is_responsive,
    set_timeouts,
)
from server.store.database_errors import CommitFailure, classify, first_line
from server.store.log_append import NewLogRow, append_and_commit
from server.store.timeout_connection import RECORDER_TIMEOUTS

log = logging.getLogger("holdfast.recorder")

_ALREADY_COMMITTED = "a commit that was not answered had happened"
_RETRY_SECONDS = 0.2
_FRESH_SECONDS = 1.0
"""An idle connection older than this is probed before a commit: a vanished server is noticed by the probe
within 2 s, by a commit only after 6 s."""
_REPORT_AFTER_SECONDS = 2.0
"""How long the database may be unreachable before /health/ready answers that this replica is not ready."""
_ISOLATION_SECONDS = 0.5
"""For all group commits after one failure. The joint commit gives up waiting for a lock after 0.25 s;
together with that, other runs wait for less than a second."""
_LOCK_MS, _STATEMENT_MS = 50, 600
"""`lock_timeout` and `statement_timeout` of a group commit."""
COMMIT_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class CommitResult(NamedTuple):
    """The outcome of one `commit`."""

    committed: Sequence[RunUpdate] = ()
    failed: Sequence[RunUpdate] = ()
    """Updates that could not be committed with the others."""
    lost: Sequence[UUID] = ()
    """Responses of which the database has lost earlier commits."""
    unapplied: Sequence[RecorderMessage] = ()
    """Messages that have reached no run, because commits were lost."""


class _CommitsLost(Exception):
    def __init__(self, responses: Sequence[UUID]) -> None:
        self.responses = responses


class Committer:
    """Commits the updates of all runs together, or one by one if that fails."""

    def __init__(
        self, database: Database, replica: UUID, registry: RunRegistry, clock: Callable[[], float] = monotonic
    ) -> None:
        self.give_up_at = inf
        """The time from which an outage is not waited out any more."""
        self.recent = RecentCommits(clock)
        self._database = database
        self._replica = replica
        self._registry = registry
        self._clock = clock
        self._connection: Connection | None = None
        self._used_at = 0.0
        self._failing_since: float | None = None
        self._failure = ""
        self._in_doubt = False
        """The connection was lost: a try may have been committed."""
        self.seconds = Histogram(COMMIT_BOUNDS)
        """Durations of commits that succeeded, without earlier tries."""
        self.failures: Counter[CommitFailure] = Counter()
        """Commits that failed, by why."""

    def trouble(self) -> str | None:
        """Why nothing is committed at the moment; None if all is well. Any thread."""
        since = self._failing_since
        if since is None or self._clock() - since < _REPORT_AFTER_SECONDS:
            return None
        return f"the database does not take what is recorded: {self._failure}"

    def commit(self, messages: Sequence[RecorderMessage]) -> CommitResult:
        """Applies messages to their runs once, and commits the updates.

        An outage is waited out, and so is a schema or a right that is not as this release needs it, and all
        runs with it. Any other failure is the fault of some of the updates: they are committed in smaller
        groups then. Raises Fenced, or the last error after `give_up_at`.

        A commit whose answer was lost may have happened, so the next try looks before it writes. It may also
        still be running: then the next try, which waits for it, fails, and the one after that looks. If
        earlier commits were lost, nothing is written that would follow them.
        """
        self._in_doubt = False
        joint = _Transaction([], messages)
        try:
            error = self._execute(joint, self._commit_all)
        except _CommitsLost as lost:
            rest = () if joint.reached_updates else messages
            return CommitResult(failed=joint.updates, lost=lost.responses, unapplied=rest)
        if error is None:
            return CommitResult(joint.updates)
        log.warning("commit failed, so runs are committed one by one: %s", type(error).__name__)
        isolation = Isolation(joint.updates, self._clock() + _ISOLATION_SECONDS)
        responses: Sequence[UUID] = ()
        while (group := isolation.next(self._clock())) is not None:
            try:
                failure = self._execute(_Transaction(group), self._commit_group)
            except _CommitsLost as lost:
                responses = lost.responses
                isolation.give_up()
            else:
                isolation.committed() if failure is None else isolation.failed()
        return CommitResult(isolation.done, isolation.suspended, responses)

    def take_lost(self, result: CommitResult) -> list[RunUpdate]:
        """Updates that write again what the database has lost, of responses without a failed update."""
        if not result.lost:
            return []
        log.error(
            "the database has lost what was committed of %d responses; it is written again", len(result.lost)
        )
        lost = set(result.lost) - {update.run.facts.id for update in result.failed}
        taken = self.recent.take(lost)
        running = {response: run for response in lost if (run := self._registry.get(response))}
        return [taken.get(response) or RunUpdate(running[response]) for response in lost]

    def _execute(
        self, transaction: "_Transaction", commit: Callable[[Connection, "_Transaction"], None]
    ) -> Exception | None:
        """Tries until the updates are committed; returns the error if one of the updates is at fault."""
        while True:
            began = monotonic()
            try:
                commit(self._connect(), transaction)
            except leases.Fenced:
                raise
            except _CommitsLost:
                self._failing_since = None
                raise
            except Exception as error:  # noqa: BLE001 - also of our own code: it may concern one run only
                trouble = classify(error)
                self.failures[trouble] += 1
                self.close()
                if transaction.reached_updates and trouble not in ("unavailable", "schema_mismatch"):
                    self._failing_since = None
                    return error
                self._await_database(error, trouble)
            else:
                self._failing_since = None
                self.seconds.observe(monotonic() - began)
                self.recent.committed(transaction.updates, synchronous=transaction.synchronous)
                return None

    def _commit_all(self, connection: Connection, joint: "_Transaction") -> None:
        """Applies the messages of all runs in the first try that passes the fence, and writes their updates.

        Raises Fenced, _CommitsLost, or any error of writing.
        """
        flush, probes = self.recent.flush_due, self.recent.probes
        joint.synchronous = self._database.waits_for_disk or flush
        if not (joint.reached_updates or self._in_doubt) and self._registry.only_appends(joint.messages):
            make_rows = partial(self._log_chunks, joint)
            if append_and_commit(connection, self._replica, make_rows, probes=probes, synchronous=flush):
                return
        with connection.begin():
            now = self._fence(connection, joint)
            if flush:
                commit_synchronously(connection)
            if self._in_doubt and joint.reached_updates and self._is_written(connection, joint.updates):
                log.warning(_ALREADY_COMMITTED)
            else:
                if not joint.reached_updates:
                    self._apply(joint, now)
                self._write(connection, joint, joint.updates)
            crashpoint("recorder.written")

    def _fence(self, connection: Connection, transaction: "_Transaction") -> datetime:
        """The database's time. Raises Fenced, or _CommitsLost if what was acknowledged is not there."""
        recent = self.recent
        now, match = commit_probe.fence(connection, self._replica, recent.probes)
        if recent.is_doubted or not match:
            if lost := commit_probe.lost(connection, self._replica, self._acknowledged(transaction)):
                raise _CommitsLost(lost)
            # A probe's row may be deleted with its response; all else has just been seen.
            recent.probes, recent.is_doubted = (), False
        return now

    def _acknowledged(self, transaction: "_Transaction") -> list[Acknowledged]:
        """The state of all runs in progress, and of those that are over, before this transaction."""
        before = {update.run.facts.id: update.first_seq for update in transaction.updates}
        runs = {run.facts.id: run for run in [*self.recent.over(), *self._registry.runs]}
        runs |= {update.run.facts.id: update.run for update in transaction.updates}
        states = [
            Acknowledged(
                run.facts.tenant,
                response,
                run.facts.attempt,
                before.get(response, run.next_seq),
                is_over=response not in before and self._registry.get(response) is not run,
                stored=run.stored,
            )
            for response, run in runs.items()
            if response not in self._registry.suspended
        ]
        return [state for state in states if state.stored or state.is_over]

    def _write(
        self, connection: Connection, transaction: "_Transaction", updates: Sequence[RunUpdate]
    ) -> None:
        transaction.synchronous |= must_reach_disk(updates)
        write(connection, self._replica, updates)

    def _apply(self, joint: "_Transaction", now: datetime) -> None:
        joint.updates = self._registry.apply(joint.messages, now)
        joint.reached_updates = True

    def _log_chunks(self, joint: "_Transaction", now: datetime) -> list[NewLogRow] | None:
        """Applies the messages; returns the log chunks to append, None if a run ended after all."""
        self._apply(joint, now)
        if any(update.is_last or update.unwritable for update in joint.updates):
            return None
        crashpoint("recorder.written")
        return log_chunks(joint.updates)

    def _is_written(self, connection: Connection, updates: Sequence[RunUpdate]) -> bool:
        """The updates were one transaction: the first one that leaves a trace answers for all."""
        written = (is_written(connection, self._replica, update) for update in updates)
        return next((answer for answer in written if answer is not None), True)

    def _commit_group(self, connection: Connection, group: "_Transaction") -> None:
        """Writes some updates of a failed joint commit, unless an earlier try did, in a short transaction.

        Raises Fenced, _CommitsLost, or any error of writing.
        """
        group.reached_updates = False
        group.synchronous = self._database.waits_for_disk
        with connection.begin():
            set_timeouts(connection, lock_ms=_LOCK_MS, statement_ms=_STATEMENT_MS)
            self._fence(connection, group)
            missing = group.updates
            if self._in_doubt:
                written = [is_written(connection, self._replica, update) for update in missing]
                missing = [update for update, was in zip(missing, written, strict=True) if not was]
                if any(written):
                    log.warning(_ALREADY_COMMITTED)
            group.reached_updates = True
            self._write(connection, group, missing)
            crashpoint("recorder.written")

    def _await_database(self, error: Exception, trouble: CommitFailure) -> None:
        """Waits before the next try where no run is at fault; raises the error after `give_up_at`."""
        if trouble not in ("unavailable", "timed_out", "schema_mismatch") or self._clock() > self.give_up_at:
            raise error
        self._in_doubt |= trouble == "unavailable"
        self._failing_since = self._failing_since or self._clock()
        self._failure = first_line(error)
        log.warning("commit failed, trying again: %s", type(error).__name__)
        sleep(_RETRY_SECONDS)

    def _connect(self) -> Connection:
        """The open connection if it still works, else a new one."""
        now = self._clock()
        is_old = now - self._used_at > _FRESH_SECONDS
        if self._connection is not None and is_old and not is_responsive(self._connection):
            self.close()
        self._used_at = now
        if self._connection is None:
            self._connection = self._database.dedicated_connection(
                leases.recorder_application_name(self._replica), limits=RECORDER_TIMEOUTS
            )
        return self._connection

    def close(self) -> None:
        """Closes the connection; the next commit opens another."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None


@dataclass(slots=True)
class _Transaction:
    """Updates that are committed together, in as many tries as it takes."""

    updates: list[RunUpdate]
    messages: Sequence[RecorderMessage] = ()
    """Those from which the updates come, if they are not applied yet."""
    reached_updates: bool = False
    """A failure before that is no run's fault."""
    synchronous: bool = False
    """The commit waits for the disk."""


class Isolation:
    """Divides the updates of a failed commit into smaller commits. Pure.

    Updates that only append to event logs come first and together: nobody else can lock their rows, so they
    are rarely the cause. Updates that end a run follow one by one. An update that fails alone is suspended,
    and so is whatever was not tried within the budget, because all other runs wait meanwhile.

    Call `next`, then `committed` or `failed`, until `next` returns None.
    """

    def __init__(self, updates: Sequence[RunUpdate], until: float) -> None:
        """`until` is the time of the caller's clock after which no further group is tried."""
        appending = [update for update in updates if not update.is_last]
        self._groups: deque[list[RunUpdate]] = deque([appending] if appending else [])
        self._groups.extend([update] for update in updates if update.is_last)
        self._until = until
        self._has_tried = False
        self.done: list[RunUpdate] = []
        self.suspended: list[RunUpdate] = []

    def next(self, now: float) -> list[RunUpdate] | None:
        """The next group, for one transaction; None at the end. The first is returned even after `until`."""
        if now > self._until and self._has_tried:
            self.give_up()
        self._has_tried = True
        return self._groups[0] if self._groups else None

    def committed(self) -> None:
        """The last group was committed."""
        self.done += self._groups.popleft()

    def failed(self) -> None:
        """The last group was not committed: its updates are tried one by one, after all others."""
        group = self._groups.popleft()
        if len(group) == 1:
            self.suspended += group
        else:
            self._groups.extend([update] for update in group)

    def give_up(self) -> None:
        """Suspends all that has not been committed."""
        self.suspended.extend(update for group in self._groups for update in group)
        self._groups.clear()
