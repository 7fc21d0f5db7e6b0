"""The recorder's transactions: all runs' updates in one, in groups after a failure, again after an outage.

Also the asynchronous commits that a crash of Postgres may still lose. The recorder's thread only.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from time import monotonic, sleep
from uuid import UUID

from server.crashpoints import crashpoint
from server.recording.messages import RecorderMessage, RunUpdate
from server.recording.persist import is_written, log_chunks, write
from server.recording.run_registry import RunRegistry
from server.store.cluster import leases
from server.store.commit_failures import CommitFailure, classify
from server.store.connection import RECORDER_TIMEOUTS
from server.store.database import Connection, Database, is_responsive, set_timeouts
from server.store.log import events
from server.store.log.events import NewLogRow
from server.store.log.fast_append import append_and_commit

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
        commit = _JointCommit(self._registry, self._replica, messages, self.unsynced)
        error = self._execute(commit)
        if error is None:
            return commit.updates, []
        log.warning("commit failed, so runs are committed one by one: %s", type(error).__name__)
        isolation = Isolation(commit.updates, self._clock() + _ISOLATION_SECONDS)
        while (group := isolation.next(self._clock())) is not None:
            if self._execute(_GroupCommit(self._replica, group, self.unsynced)) is None:
                isolation.committed()
            else:
                isolation.failed()
        return isolation.done, isolation.suspended

    def _execute(self, commit: "_JointCommit | _GroupCommit") -> Exception | None:
        """Tries until the updates are committed; returns the error if one of the updates is at fault."""
        while True:
            try:
                commit.execute(self._connect(), in_doubt=self._in_doubt)
            except leases.Fenced:
                raise
            except Exception as error:  # noqa: BLE001 - also of our own code: it may concern one run only
                trouble = classify(error)
                self.close()
                if commit.reached_updates and trouble not in ("unavailable", "schema_mismatch"):
                    return error
                self._await_database(error, trouble)
            else:
                self._unreachable_since = None
                self.unsynced.committed(commit.updates)
                return None

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


class _JointCommit:
    """All runs' messages: applied once, written in as many tries as it takes."""

    def __init__(
        self,
        registry: RunRegistry,
        replica: UUID,
        messages: Sequence[RecorderMessage],
        unsynced: "UnsyncedCommits",
    ) -> None:
        self._registry = registry
        self._replica = replica
        self._messages = messages
        self._unsynced = unsynced
        self.updates: list[RunUpdate] = []
        self.reached_updates = False
        """The messages were applied. A failure before that is no run's fault."""

    def execute(self, connection: Connection, *, in_doubt: bool) -> None:
        """Commits the updates, unless an earlier try did. Raises Fenced, or any error of writing."""
        only_appends = not (self.reached_updates or in_doubt) and self._registry.only_appends(self._messages)
        if only_appends and append_and_commit(connection, self._replica, self._chunks):
            return
        with connection.begin():
            now = leases.fence(connection, self._replica)
            if in_doubt and self.reached_updates and self._is_written(connection):
                log.warning(_ALREADY_COMMITTED)
            else:
                if in_doubt:
                    self._unsynced.restore(connection)
                if not self.reached_updates:
                    self._apply(now)
                write(connection, self._replica, self.updates)
            crashpoint("recorder.written")

    def _is_written(self, connection: Connection) -> bool:
        """The updates were one transaction: the first one that leaves a trace answers for all."""
        written = (is_written(connection, self._replica, update) for update in self.updates)
        return next((answer for answer in written if answer is not None), True)

    def _apply(self, now: datetime) -> None:
        self.updates = self._registry.apply(self._messages, now)
        self.reached_updates = True

    def _chunks(self, now: datetime) -> list[NewLogRow] | None:
        """The log chunks to append; None if a run ended after all, which writes more than that."""
        self._apply(now)
        if any(update.is_last or update.unwritable for update in self.updates):
            return None
        crashpoint("recorder.written")
        return log_chunks(self.updates)


class _GroupCommit:
    """Some updates of a failed joint commit, in a short transaction of their own."""

    def __init__(self, replica: UUID, updates: Sequence[RunUpdate], unsynced: "UnsyncedCommits") -> None:
        self._replica = replica
        self.updates = updates
        self._unsynced = unsynced
        self.reached_updates = False
        """The fence was passed. A failure before that is no run's fault."""

    def execute(self, connection: Connection, *, in_doubt: bool) -> None:
        """Writes the updates that no earlier try has committed. Raises Fenced, or any error of writing."""
        self.reached_updates = False
        with connection.begin():
            set_timeouts(connection, lock_ms=_LOCK_MS, statement_ms=_STATEMENT_MS)
            leases.fence(connection, self._replica)
            missing = self.updates
            if in_doubt:
                written = [is_written(connection, self._replica, update) for update in self.updates]
                missing = [update for update, was in zip(self.updates, written, strict=True) if not was]
                if any(written):
                    log.warning(_ALREADY_COMMITTED)
                # A committed end has compacted its log: nothing may be appended to that again.
                if False in written:
                    self._unsynced.restore(connection)
            self.reached_updates = True
            write(connection, self._replica, missing)
            crashpoint("recorder.written")


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

    _updates: deque[tuple[float, RunUpdate]] = field(default_factory=deque)

    def committed(self, updates: Sequence[RunUpdate]) -> None:
        """Adds committed updates. If one of them was its run's last, the commit was synchronous and saved
        all.
        """
        if any(update.is_last for update in updates):
            self._updates.clear()
            return
        now = monotonic()
        self._updates.extend((now, update) for update in updates if update.run.stored and update.events)
        while self._updates and self._updates[0][0] < now - _KEEP_SECONDS:
            self._updates.popleft()

    def restore(self, connection: Connection) -> None:
        """Appends updates that Postgres has lost in a crash, before anything else is, in the caller's
        transaction.
        """
        next_seqs: dict[UUID, int] = {}
        lost = []
        for _, update in self._updates:
            facts = update.run.facts
            if facts.id not in next_seqs:
                next_seqs[facts.id] = events.next_seq(connection, facts.tenant, facts.id)
            if update.events[0].sequence_number >= next_seqs[facts.id]:
                lost.append(update)
        if lost:
            events.append(connection, log_chunks(lost))
            log.warning("the database had lost %d updates; they are written again", len(lost))
