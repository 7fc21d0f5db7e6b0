"""`RecentCommits`: updates that were committed of late, retained so that they can be written again. Pure.

A commit that did not wait for the disk is lost in a crash of Postgres, and any commit in a failover to a
standby that lags or in a restore in place, although clients have seen it and its run continues.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from server.generation.run import Run
from server.recording.recorder_messages import RunUpdate
from server.recording.write_updates import log_rows
from server.store.commit_probe import Probe
from server.store.log_append import NewLogRow

RETAIN_SECONDS = 10.0
"""The least time for which a commit is retained: longer than a standby should lag, and longer than Postgres
takes to flush it (three times `wal_writer_delay`, 0.6 s by default)."""
MAX_BYTES = 64 * 1024 * 1024
"""The most bytes of retained rows; the oldest are dropped. 10 s of 256 streams of 100 tokens/s are 40 MiB."""
_ROW_BYTES = 400
"""Memory of a row besides its contents."""


@dataclass(frozen=True, slots=True, eq=False)
class _Committed:
    """One response's part of a commit."""

    run: Run
    rows: Sequence[NewLogRow]
    released: bool
    engine_died: bool
    is_over: bool
    committed_at: float
    size: int


class RecentCommits:
    """The recorder's thread only, but for `is_over`."""

    def __init__(self, clock: Callable[[], float], max_bytes: int = MAX_BYTES) -> None:
        self._clock = clock
        self._commits: deque[_Committed] = deque()
        self._bytes, self._max_bytes = 0, max_bytes
        self._flushed_at = clock()
        """When the last commit was made that waited for the disk, and with it all before it."""
        self._over: Counter[UUID] = Counter()
        """The number of retained commits that ended or released the response."""
        self.probe: Probe | None = None
        """A row that proves the last commit, and with it all before it; None if nothing was committed."""
        self.is_doubted = False
        """The next commit looks at every response, whether or not the probe matches."""

    def committed(self, updates: Sequence[RunUpdate], *, synchronous: bool) -> None:
        """Adds a commit, which was fenced and so proves all commits before it."""
        now = self._clock()
        if synchronous:
            self._flushed_at = now
        for update in updates:
            run, rows = update.run, [*update.earlier_rows, *log_rows(update)]
            if not rows and not update.is_last:
                continue
            size = sum(len(row.body) + _ROW_BYTES for row in rows)
            part = (run, rows, update.released, update.engine_died, update.is_last, now, size)
            self._commits.append(_Committed(*part))
            self._bytes += size
            if update.is_last:
                self._over[run.facts.id] += 1
            if run.ending is not None:
                self.probe = Probe(run.facts.tenant, run.facts.id, None)
            elif rows:
                self.probe = Probe(run.facts.tenant, run.facts.id, rows[-1].first_seq)
        self._drop_old()

    @property
    def flush_due(self) -> bool:
        """Whether the next commit must wait for the disk, because the oldest one has not been flushed yet."""
        return bool(self._commits) and (
            self._flushed_at <= self._commits[0].committed_at < self._clock() - RETAIN_SECONDS
        )

    def is_over(self, response: UUID) -> bool:
        """Whether a retained commit ended or released the response. Any thread."""
        return response in self._over

    def over(self) -> list[Run]:
        """Runs that a retained commit has ended or released."""
        return [commit.run for commit in self._commits if commit.is_over]

    def take(self, responses: Collection[UUID]) -> dict[UUID, RunUpdate]:
        """Removes all commits of these responses; returns an update for each that writes them again."""
        if not responses:
            return {}
        commits = [commit for commit in self._commits if commit.run.facts.id in responses]
        self._commits = deque(commit for commit in self._commits if commit.run.facts.id not in responses)
        updates: dict[UUID, RunUpdate] = {}
        for commit in commits:
            response = commit.run.facts.id
            rows = updates[response].earlier_rows if response in updates else ()
            updates[response] = RunUpdate(
                commit.run,
                released=commit.released,
                engine_died=commit.engine_died,
                earlier_rows=[*rows, *commit.rows],
                published=commit.is_over,
            )
            self._bytes -= commit.size
            self._over.pop(response, None)
        return updates

    def _drop_old(self) -> None:
        safe = min(self._clock() - RETAIN_SECONDS, self._flushed_at)
        while self._commits and (self._commits[0].committed_at < safe or self._bytes > self._max_bytes):
            oldest = self._commits.popleft()
            self._bytes -= oldest.size
            if oldest.is_over:
                self._over -= Counter([oldest.run.facts.id])  # drops those without any
