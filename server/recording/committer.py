"""The recorder's connection, and what it does about a commit that fails. The recorder's thread only."""

import logging
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic, sleep
from uuid import UUID

from server.recording.commit import GroupCommit, JointCommit
from server.recording.isolation import BUDGET_SECONDS, Isolation
from server.recording.run_registry import Inbound, RunRegistry, RunUpdate
from server.recording.unsynced_commits import UnsyncedCommits
from server.store.cluster import leases
from server.store.commit_failures import CommitFailure, classify
from server.store.connection import RECORDER_TIMEOUTS
from server.store.database import Connection, Database, is_responsive

log = logging.getLogger("holdfast.recorder")

_RETRY_SECONDS = 0.2
_FRESH_SECONDS = 1.0
"""A connection that was used within this time is taken to be there. An older one is asked: a server that has
vanished meanwhile is noticed by that in 2 s, by a commit only in 6 s."""
_AWAY_SECONDS = 2.0
"""How long the database may be away before this replica says that it is not ready."""


class Committer:
    """Commits what messages to runs lead to, of all runs together if that is possible."""

    def __init__(
        self, database: Database, replica: UUID, active: RunRegistry, clock: Callable[[], float] = monotonic
    ) -> None:
        self.give_up_at = inf
        """When an outage is not waited for any more."""
        self.unflushed = UnsyncedCommits()
        self._database = database
        self._replica = replica
        self._active = active
        self._clock = clock
        self._connection: Connection | None = None
        self._used_at = 0.0
        self._away_since: float | None = None

    def trouble(self) -> str | None:
        """Why nothing is committed at the moment; None if all is well. Any thread."""
        since = self._away_since
        if since is None or self._clock() - since < _AWAY_SECONDS:
            return None
        return "the database does not take what is recorded"

    def commit(self, messages: Sequence[Inbound]) -> tuple[list[RunUpdate], list[RunUpdate]]:
        """Applies messages to their runs once: the steps that are committed, and those that could not be.

        An outage is waited out, and everything with it. Whatever else fails concerns some of the steps: they
        are committed run by run then. Raises Fenced, or the last error when there is no more time.

        A commit whose answer was lost may have happened: the next try looks before it writes. Or it may
        still happen: then the next try, which waits for it, fails, and the one after that looks. Commits
        that were answered may be lost too, when Postgres has crashed: they are written again first.
        """
        commit = JointCommit(self._active, self._replica, messages, self.unflushed)
        while True:
            try:
                steps = commit.make(self._connect())
            except leases.Fenced:
                raise
            except Exception as error:  # noqa: BLE001 - of our own code too: it may be one run's alone
                trouble = classify(error)
                self.close()
                if commit.applied and trouble not in ("unavailable", "schema_mismatch"):
                    log.warning("commit failed, so runs are committed one by one: %s", type(error).__name__)
                    return self._isolate(commit)
                self._await_database(error, trouble, commit)
            else:
                self._committed(steps)
                return steps, []

    def _isolate(self, commit: JointCommit) -> tuple[list[RunUpdate], list[RunUpdate]]:
        """Those of a failed commit's steps that can be committed without the others, and the others."""
        isolation = Isolation(commit.steps, self._clock() + BUDGET_SECONDS)
        while (group := isolation.next(self._clock())) is not None:
            if self._commit_group(group, commit):
                self._committed(group)
                isolation.committed()
            else:
                isolation.failed()
        return isolation.done, isolation.suspended

    def _commit_group(self, steps: Sequence[RunUpdate], commit: JointCommit) -> bool:
        """Whether these steps are committed; waits while the database is away."""
        group = GroupCommit(self._replica, steps, self.unflushed)
        while True:
            try:
                group.make(self._connect(), in_doubt=commit.in_doubt)
            except leases.Fenced:
                raise
            except Exception as error:  # noqa: BLE001 - see above
                trouble = classify(error)
                self.close()
                if group.fenced and trouble not in ("unavailable", "schema_mismatch"):
                    return False
                self._await_database(error, trouble, commit)
            else:
                return True

    def _committed(self, steps: Sequence[RunUpdate]) -> None:
        self._away_since = None
        self.unflushed.committed(steps)

    def _await_database(self, error: Exception, trouble: CommitFailure, commit: JointCommit) -> None:
        """Before the next try of what failed for no fault of a run's; raises the error if that is the end."""
        if trouble not in ("unavailable", "timed_out") or self._clock() > self.give_up_at:
            raise error
        commit.in_doubt |= trouble == "unavailable"
        self._away_since = self._away_since or self._clock()
        log.warning("commit failed, trying again: %s", type(error).__name__)
        sleep(_RETRY_SECONDS)

    def _connect(self) -> Connection:
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
        """Ends the connection; the next commit makes another."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
