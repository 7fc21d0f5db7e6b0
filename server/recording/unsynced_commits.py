"""What Postgres may still forget: commits that it has answered before they were on disk.

Most commits of tokens do not wait for the disk, so a crash of Postgres takes the last of them back, while
clients have seen them and their runs go on. The log is written in order: what is forgotten is the end of what
was committed, and one commit that waits for the disk saves all before it. The recorder's thread only.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID

from server.recording.messages import (
    RunUpdate,
)
from server.store.database import Connection
from server.store.log import events

SYNC_AFTER_S = 15.0
"""For how long they are kept. Postgres is on disk after three times `wal_writer_delay`, 0.6 s by default."""


@dataclass(slots=True)
class UnsyncedCommits:
    """The steps of the last commits."""

    _steps: deque[tuple[float, RunUpdate]] = field(default_factory=deque)

    def committed(self, steps: Sequence[RunUpdate]) -> None:
        """These are committed; an end or a hand-over among them has waited for the disk."""
        if any(step.over for step in steps):
            self._steps.clear()
            return
        now = monotonic()
        self._steps.extend((now, step) for step in steps if step.run.stored and step.events)
        while self._steps and self._steps[0][0] < now - SYNC_AFTER_S:
            self._steps.popleft()

    def restore(self, connection: Connection) -> int:
        """Writes again what the log lacks, in the caller's transaction; how many steps that were."""
        known: dict[UUID, int] = {}
        lost = []
        for _, step in self._steps:
            facts = step.run.facts
            if facts.id not in known:
                known[facts.id] = events.next_seq(connection, facts.tenant, facts.id)
            if step.events[0].sequence_number >= known[facts.id]:
                lost.append(step)
        if lost:
            events.append(connection, [chunk for step in lost for chunk in chunks_of(step)])
        return len(lost)


def chunks_of(step: RunUpdate) -> list[events.NewLogRow]:
    """A stored run's step as rows of the log."""
    facts = step.run.facts
    return events.encode_rows(facts.tenant, facts.id, facts.attempt, step.events, step.token_ids)
