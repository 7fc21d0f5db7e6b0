"""Asynchronous commits that a crash of Postgres may still lose, kept so that they can be written again.

Most commits of tokens run with `synchronous_commit = off`, so a crash of Postgres loses the last of them,
although clients have seen them and their runs continue. WAL is written in order: only the last commits
can be lost, and one synchronous commit saves all before it. The recorder's thread only.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID

from server.recording.messages import RunUpdate
from server.store import log_append
from server.store.database import Connection

KEEP_SECONDS = 15.0
"""How long commits are kept. Postgres flushes them within three times `wal_writer_delay`: 0.6 s by
default, and 15 s allow for a delay of 5 s."""


@dataclass(slots=True)
class UnsyncedCommits:
    """The updates of the last asynchronous commits."""

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
        while self._updates and self._updates[0][0] < now - KEEP_SECONDS:
            self._updates.popleft()

    def restore(self, connection: Connection) -> int:
        """Appends updates that the log lacks, in the caller's transaction; returns how many there were."""
        next_seqs: dict[UUID, int] = {}
        lost = []
        for _, update in self._updates:
            facts = update.run.facts
            if facts.id not in next_seqs:
                next_seqs[facts.id] = log_append.next_seq(connection, facts.tenant, facts.id)
            if update.events[0].sequence_number >= next_seqs[facts.id]:
                lost.append(update)
        if lost:
            log_append.append(connection, [chunk for update in lost for chunk in update_chunks(update)])
        return len(lost)


def update_chunks(update: RunUpdate) -> list[log_append.NewLogRow]:
    """A stored run's update as rows of the event log."""
    facts = update.run.facts
    return log_append.encode_rows(facts.tenant, facts.id, facts.attempt, update.events, update.token_ids)
