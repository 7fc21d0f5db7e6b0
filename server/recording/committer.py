"""The recorder's connection: commits updates, waits out outages, isolates updates that fail. Recorder thread
only.
"""

import logging
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic, sleep
from uuid import UUID

from server.recording.commit import GroupCommit, JointCommit
from server.recording.isolation import BUDGET_SECONDS, Isolation
from server.recording.messages import RecorderMessage, RunUpdate
from server.recording.run_registry import RunRegistry
from server.recording.unsynced_commits import UnsyncedCommits
from server.store.cluster import leases
from server.store.database import Connection, Database, is_responsive
from server.store.database_errors import CommitFailure, classify
from server.store.timeout_connection import RECORDER_TIMEOUTS

log = logging.getLogger("holdfast.recorder")

_RETRY_SECONDS = 0.2
_FRESH_SECONDS = 1.0
"""An idle connection older than this is probed before a commit: a vanished server is noticed by the probe
within 2 s, by a commit only after 6 s."""
_REPORT_AFTER_SECONDS = 2.0
"""How long the database may be unreachable before /health/ready answers that this replica is not ready."""


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
        commit = JointCommit(self._registry, self._replica, messages, self.unsynced)
        while True:
            try:
                updates = commit.execute(self._connect())
            except leases.Fenced:
                raise
            except Exception as error:  # noqa: BLE001 - also of our own code: it may concern one run only
                trouble = classify(error)
                self.close()
                if commit.applied and trouble not in ("unavailable", "schema_mismatch"):
                    log.warning("commit failed, so runs are committed one by one: %s", type(error).__name__)
                    return self._isolate(commit)
                self._await_database(error, trouble, commit)
            else:
                self._committed(updates)
                return updates, []

    def _isolate(self, commit: JointCommit) -> tuple[list[RunUpdate], list[RunUpdate]]:
        """Commits a failed commit's updates in groups; returns the committed ones and the others."""
        isolation = Isolation(commit.updates, self._clock() + BUDGET_SECONDS)
        while (group := isolation.next(self._clock())) is not None:
            if self._commit_group(group, commit):
                self._committed(group)
                isolation.committed()
            else:
                isolation.failed()
        return isolation.done, isolation.suspended

    def _commit_group(self, updates: Sequence[RunUpdate], commit: JointCommit) -> bool:
        """Commits these updates; False if they fail. Waits while the database is unreachable."""
        group = GroupCommit(self._replica, updates, self.unsynced)
        while True:
            try:
                group.execute(self._connect(), in_doubt=commit.in_doubt)
            except leases.Fenced:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                trouble = classify(error)
                self.close()
                if group.passed_fence and trouble not in ("unavailable", "schema_mismatch"):
                    return False
                self._await_database(error, trouble, commit)
            else:
                return True

    def _committed(self, updates: Sequence[RunUpdate]) -> None:
        self._unreachable_since = None
        self.unsynced.committed(updates)

    def _await_database(self, error: Exception, trouble: CommitFailure, commit: JointCommit) -> None:
        """Waits before the next try where no run is at fault; raises the error after `give_up_at`."""
        if trouble not in ("unavailable", "timed_out") or self._clock() > self.give_up_at:
            raise error
        commit.in_doubt |= trouble == "unavailable"
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
