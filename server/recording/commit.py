"""One transaction of the recorder: what it writes, and what an earlier try of it may have left."""

from collections.abc import Sequence
from datetime import datetime
from logging import getLogger
from uuid import UUID

from server.crashpoints import crashpoint
from server.recording.isolation import LOCK_MS, STATEMENT_MS
from server.recording.messages import (
    Inbound,
    RunUpdate,
)
from server.recording.persist import is_written, log_rows, write
from server.recording.run_registry import RunRegistry
from server.recording.unsynced_commits import UnsyncedCommits
from server.store.cluster import leases
from server.store.database import Connection, set_timeouts
from server.store.log.events import NewLogRow
from server.store.log.fast_append import append_and_commit

log = getLogger("holdfast.recorder")

HAD_HAPPENED = "a commit that was not answered had happened"


class JointCommit:
    """Messages that are applied to their runs once, and written as often as it takes."""

    def __init__(
        self, active: RunRegistry, replica: UUID, messages: Sequence[Inbound], unflushed: UnsyncedCommits
    ) -> None:
        self._unflushed = unflushed
        self._active = active
        self._replica = replica
        self._messages = messages
        self.steps: list[RunUpdate] = []
        self.applied = False
        """The messages became steps; a failure before that concerns no run."""
        self.in_doubt = False
        """The connection was lost, so a try may have been committed, and Postgres may have crashed."""

    def make(self, connection: Connection) -> list[RunUpdate]:
        """What was committed, now or by a try before. Raises Fenced, or whatever writing raises."""
        if self._may_only_add() and append_and_commit(connection, self._replica, self._rows):
            return self.steps
        with connection.begin():
            now = leases.fence(connection, self._replica)
            if not self.applied:
                self._restore(connection)
                self._apply(now)
                write(connection, self._replica, self.steps)
            elif self.in_doubt and self._is_written(connection):
                log.warning(HAD_HAPPENED)
            else:
                self._restore(connection)
                write(connection, self._replica, self.steps)
            crashpoint("recorder.written")
        return self.steps

    def _is_written(self, connection: Connection) -> bool:
        """They were one transaction, so the first of them that can be told tells of all."""
        told = (is_written(connection, self._replica, step) for step in self.steps)
        return next((answer for answer in told if answer is not None), True)

    def _restore(self, connection: Connection) -> None:
        """Before anything is added to a log whose end Postgres may have forgotten in a crash."""
        if self.in_doubt:
            restore(connection, self._unflushed)

    def _may_only_add(self) -> bool:
        return not (self.applied or self.in_doubt) and self._active.only_adds(self._messages)

    def _apply(self, now: datetime) -> None:
        self.steps = self._active.apply(self._messages, now)
        self.applied = True

    def _rows(self, now: datetime) -> list[NewLogRow] | None:
        """All that there is to write; None if a run ended after all, of which there is more to write."""
        self._apply(now)
        if any(step.over or step.broken for step in self.steps):
            return None
        crashpoint("recorder.written")
        return log_rows(self.steps)


class GroupCommit:
    """Some steps of a joint commit that failed, in a transaction of their own that others do not wait for."""

    def __init__(self, replica: UUID, steps: Sequence[RunUpdate], unflushed: UnsyncedCommits) -> None:
        self._replica = replica
        self._steps = steps
        self._unflushed = unflushed
        self.fenced = False
        """The fence was passed; a failure before that concerns no run."""

    def make(self, connection: Connection, *, in_doubt: bool) -> None:
        """Writes those steps that no earlier try has written. Raises Fenced, or whatever writing raises."""
        self.fenced = False
        with connection.begin():
            set_timeouts(connection, lock_ms=LOCK_MS, statement_ms=STATEMENT_MS)
            leases.fence(connection, self._replica)
            left = self._steps
            if in_doubt:
                written = {step.run.facts.id: is_written(connection, self._replica, step) for step in left}
                left = [step for step in left if not written[step.run.facts.id]]
                if any(written.values()):
                    log.warning(HAD_HAPPENED)
                # An end that is written has folded its log away: nothing of that may be added again.
                if False in written.values():
                    restore(connection, self._unflushed)
            self.fenced = True
            write(connection, self._replica, left)
            crashpoint("recorder.written")


def restore(connection: Connection, unflushed: UnsyncedCommits) -> None:
    """Writes again what Postgres has forgotten in a crash."""
    if lost := unflushed.restore(connection):
        log.warning("the database had forgotten %d steps; they are written again", lost)
