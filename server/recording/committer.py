"""The recorder's transactions: all runs' updates in one, in groups after a failure, again after an outage.

Also the asynchronous commits that a crash of Postgres may still lose. The recorder's thread only.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from math import inf
from time import monotonic, sleep
from uuid import UUID

from engine.statistics import Histogram
from server.crashpoints import crashpoint
from server.recording.messages import RecorderMessage, RunUpdate
from server.recording.persist import is_written, log_chunks, write
from server.recording.run_registry import RunRegistry
from server.store import log_append
from server.store.cluster import leases
from server.store.database import Connection, Database, is_responsive, set_timeouts
from server.store.database_errors import CommitFailure, classify
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
_KEEP_SECONDS = 15.0
"""How long `UnsyncedCommits` keeps commits. Postgres flushes them within three times `wal_writer_delay`:
0.6 s by default, and 15 s allow for a delay of 5 s."""
COMMIT_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Committer:
    """Commits the updates of all runs together, or one by one if that fails."""

    def __init__(
        self, database: Database, replica: UUID, registry: RunRegistry, clock: Callable[[], float] = monotonic
    ) -> None:
        self.give_up_at = inf
        """The time from which an outage is not waited out any more."""
        self.unsynced = UnsyncedCommits()
        self._database = database
        self._replica = replica
        self._registry = registry
        self._clock = clock
        self._connection: Connection | None = None
        self._used_at = 0.0
        self._unreachable_since: float | None = None
        self._in_doubt = False
        """The connection was lost: a try may have been committed, and Postgres may have crashed."""
        self.seconds = Histogram(COMMIT_BOUNDS)
        """Durations of commits that succeeded, without earlier tries."""
        self.failures: Counter[CommitFailure] = Counter()
        """Commits that failed, by why."""

    def trouble(self) -> str | None:
        """Why nothing is committed at the moment; None if all is well. Any thread."""
        since = self._unreachable_since
        if since is None or self._clock() - since < _REPORT_AFTER_SECONDS:
            return None
        return "the database does not take what is recorded"

    def commit(self, messages: Sequence[RecorderMessage]) -> tuple[list[RunUpdate], list[RunUpdate]]:
        """Applies messages to their runs once; returns the committed updates and those that could not be.

        An outage is waited out, and all runs with it. Any other failure is the fault of some of the updates:
        they are committed in smaller groups then. Raises Fenced, or the last error after `give_up_at`.

        A commit whose answer was lost may have happened, so the next try looks before it writes. It may also
        still be running: then the next try, which waits for it, fails, and the one after that looks.
        Asynchronous commits that Postgres has lost in a crash are written again first.
        """
        self._in_doubt = False
        joint = _Transaction([], messages)
        error = self._execute(joint, self._commit_all)
        if error is None:
            return joint.updates, []
        log.warning("commit failed, so runs are committed one by one: %s", type(error).__name__)
        isolation = Isolation(joint.updates, self._clock() + _ISOLATION_SECONDS)
        while (group := isolation.next(self._clock())) is not None:
            if self._execute(_Transaction(group), self._commit_group) is None:
                isolation.committed()
            else:
                isolation.failed()
        return isolation.done, isolation.suspended

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
            except Exception as error:  # noqa: BLE001 - also of our own code: it may concern one run only
                trouble = classify(error)
                self.failures[trouble] += 1
                self.close()
                if transaction.reached_updates and trouble not in ("unavailable", "schema_mismatch"):
                    return error
                self._await_database(error, trouble)
            else:
                self._unreachable_since = None
                self.seconds.observe(monotonic() - began)
                self.unsynced.committed(transaction.updates)
                return None

    def _commit_all(self, connection: Connection, joint: "_Transaction") -> None:
        """Applies the messages of all runs in the first try that passes the fence, and writes their updates.

        Raises Fenced, or any error of writing.
        """
        only_appends = not (joint.reached_updates or self._in_doubt) and self._registry.only_appends(
            joint.messages
        )
        if only_appends and append_and_commit(connection, self._replica, partial(self._log_chunks, joint)):
            return
        with connection.begin():
            now = leases.fence(connection, self._replica)
            if self._in_doubt and joint.reached_updates and self._is_written(connection, joint.updates):
                log.warning(_ALREADY_COMMITTED)
            else:
                if self._in_doubt:
                    self.unsynced.restore(connection)
                if not joint.reached_updates:
                    self._apply(joint, now)
                write(connection, self._replica, joint.updates)
            crashpoint("recorder.written")

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

        Raises Fenced, or any error of writing.
        """
        group.reached_updates = False
        with connection.begin():
            set_timeouts(connection, lock_ms=_LOCK_MS, statement_ms=_STATEMENT_MS)
            leases.fence(connection, self._replica)
            missing = group.updates
            if self._in_doubt:
                written = [is_written(connection, self._replica, update) for update in missing]
                missing = [update for update, was in zip(missing, written, strict=True) if not was]
                if any(written):
                    log.warning(_ALREADY_COMMITTED)
                # A committed end has compacted its log: nothing may be appended to that again.
                if False in written:
                    self.unsynced.restore(connection)
            group.reached_updates = True
            write(connection, self._replica, missing)
            crashpoint("recorder.written")

    def _await_database(self, error: Exception, trouble: CommitFailure) -> None:
        """Waits before the next try where no run is at fault; raises the error after `give_up_at`."""
        if trouble not in ("unavailable", "timed_out") or self._clock() > self.give_up_at:
            raise error
        self._in_doubt |= trouble == "unavailable"
        self._unreachable_since = self._unreachable_since or self._clock()
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
            self.suspended.extend(update for group in self._groups for update in group)
            self._groups.clear()
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


@dataclass(slots=True)
class UnsyncedCommits:
    """The updates of the last asynchronous commits, kept so that they can be written again.

    Most commits of tokens run with `synchronous_commit = off`, so a crash of Postgres loses the last of
    them, although clients have seen them and their runs continue. WAL is written in order: only the last
    commits can be lost, and one synchronous commit saves all before it.
    """

    _commits: deque[tuple[float, list[RunUpdate]]] = field(default_factory=deque)
    """What was committed when."""

    def committed(self, updates: Sequence[RunUpdate]) -> None:
        """Adds committed updates. If one of them was its run's last, the commit was synchronous and saved
        all.
        """
        if any(update.is_last for update in updates):
            self._commits.clear()
            return
        now = monotonic()
        self._commits.append((now, [update for update in updates if update.run.stored and update.events]))
        while self._commits[0][0] < now - _KEEP_SECONDS:
            self._commits.popleft()

    def restore(self, connection: Connection) -> None:
        """Appends updates that Postgres has lost in a crash, before anything else is, in the caller's
        transaction.
        """
        next_seqs: dict[UUID, int] = {}
        lost = []
        for update in (update for _, updates in self._commits for update in updates):
            facts = update.run.facts
            if facts.id not in next_seqs:
                next_seqs[facts.id] = log_append.next_seq(connection, facts.tenant, facts.id)
            if update.events[0].sequence_number >= next_seqs[facts.id]:
                lost.append(update)
        if lost:
            log_append.append(connection, log_chunks(lost))
            log.warning("the database had lost %d updates; they are written again", len(lost))
