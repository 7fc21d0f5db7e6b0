"""One transaction of the recorder, which may be tried again after its answer was lost."""

from collections.abc import Sequence
from datetime import datetime
from logging import getLogger
from uuid import UUID

from server.crashpoints import crashpoint
from server.recording.isolation import LOCK_MS, STATEMENT_MS
from server.recording.messages import RecorderMessage, RunUpdate
from server.recording.persist import is_written, log_chunks, write
from server.recording.run_registry import RunRegistry
from server.recording.unsynced_commits import UnsyncedCommits
from server.store.cluster import leases
from server.store.database import Connection, set_timeouts
from server.store.log_append import NewLogRow, append_and_commit

log = getLogger("holdfast.recorder")

ALREADY_COMMITTED = "a commit that was not answered had happened"


class JointCommit:
    """All runs' messages: applied once, written in as many tries as it takes."""

    def __init__(
        self,
        registry: RunRegistry,
        replica: UUID,
        messages: Sequence[RecorderMessage],
        unsynced: UnsyncedCommits,
    ) -> None:
        self._unsynced = unsynced
        self._registry = registry
        self._replica = replica
        self._messages = messages
        self.updates: list[RunUpdate] = []
        self.applied = False
        """The messages were applied. A failure before that is no run's fault."""
        self.in_doubt = False
        """The connection was lost: a try may have been committed, and Postgres may have crashed."""

    def execute(self, connection: Connection) -> list[RunUpdate]:
        """Returns the updates committed now or by an earlier try. Raises Fenced, or any error of writing."""
        if self._only_appends() and append_and_commit(connection, self._replica, self._chunks):
            return self.updates
        with connection.begin():
            now = leases.fence(connection, self._replica)
            if not self.applied:
                self._restore(connection)
                self._apply(now)
                write(connection, self._replica, self.updates)
            elif self.in_doubt and self._is_written(connection):
                log.warning(ALREADY_COMMITTED)
            else:
                self._restore(connection)
                write(connection, self._replica, self.updates)
            crashpoint("recorder.written")
        return self.updates

    def _is_written(self, connection: Connection) -> bool:
        """The updates were one transaction: the first one that leaves a trace answers for all."""
        written = (is_written(connection, self._replica, update) for update in self.updates)
        return next((answer for answer in written if answer is not None), True)

    def _restore(self, connection: Connection) -> None:
        """Before any append: Postgres may have lost the end of the log in a crash."""
        if self.in_doubt:
            restore(connection, self._unsynced)

    def _only_appends(self) -> bool:
        return not (self.applied or self.in_doubt) and self._registry.only_appends(self._messages)

    def _apply(self, now: datetime) -> None:
        self.updates = self._registry.apply(self._messages, now)
        self.applied = True

    def _chunks(self, now: datetime) -> list[NewLogRow] | None:
        """The log chunks to append; None if a run ended after all, which writes more than that."""
        self._apply(now)
        if any(update.is_last or update.unwritable for update in self.updates):
            return None
        crashpoint("recorder.written")
        return log_chunks(self.updates)


class GroupCommit:
    """Some updates of a failed joint commit, in a short transaction of their own."""

    def __init__(self, replica: UUID, updates: Sequence[RunUpdate], unsynced: UnsyncedCommits) -> None:
        self._replica = replica
        self._updates = updates
        self._unsynced = unsynced
        self.passed_fence = False
        """The fence was passed. A failure before that is no run's fault."""

    def execute(self, connection: Connection, *, in_doubt: bool) -> None:
        """Writes the updates that no earlier try has committed. Raises Fenced, or any error of writing."""
        self.passed_fence = False
        with connection.begin():
            set_timeouts(connection, lock_ms=LOCK_MS, statement_ms=STATEMENT_MS)
            leases.fence(connection, self._replica)
            missing = self._updates
            if in_doubt:
                written = {
                    update.run.facts.id: is_written(connection, self._replica, update) for update in missing
                }
                missing = [update for update in missing if not written[update.run.facts.id]]
                if any(written.values()):
                    log.warning(ALREADY_COMMITTED)
                # A committed end has compacted its log: nothing may be appended to that again.
                if False in written.values():
                    restore(connection, self._unsynced)
            self.passed_fence = True
            write(connection, self._replica, missing)
            crashpoint("recorder.written")


def restore(connection: Connection, unsynced: UnsyncedCommits) -> None:
    """Writes commits again that Postgres has lost in a crash."""
    if lost := unsynced.restore(connection):
        log.warning("the database had lost %d updates; they are written again", lost)
