"""The last commits of a database in memory, which a crash or a failover undoes, the newest first."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from server.store.log_append import NewLogRow

_MOST = 64


class Change(NamedTuple):
    """What one statement did."""

    undo: Callable[[], object]
    row: NewLogRow | None = None
    """The row that it appended to the log."""


class Commit(NamedTuple):
    changes: Sequence[Change]
    waited: bool
    """It was answered when the disk had it, and all before it."""
    actor: object
    """Who made it."""

    @property
    def rows(self) -> list[NewLogRow]:
        return [change.row for change in self.changes if change.row is not None]


class Journal:
    """Of one database, and what was lost of it."""

    def __init__(self) -> None:
        self._commits: deque[Commit] = deque(maxlen=_MOST)
        self.written: defaultdict[UUID, list[tuple[NewLogRow, object]]] = defaultdict(list)
        """All rows of a response's log that were ever committed, those that were lost among them, and who
        made them."""
        self._lost: dict[NewLogRow, object] = {}
        """Rows that were lost, with who had committed them."""
        self.made_again = 0
        """Rows that were lost and are committed again."""

    def __len__(self) -> int:
        return len(self._commits)

    @property
    def unsafe(self) -> int:
        """How many commits a crash may undo: those after the last one that waited for the disk."""
        waited = (number for number, commit in enumerate(reversed(self._commits)) if commit.waited)
        return next(waited, len(self._commits))

    def add(self, commit: Commit) -> None:
        if not commit.changes:
            return
        self._commits.append(commit)
        for row in commit.rows:
            self.written[row.response_id].append((row, commit.actor))
            if self._lost.pop(row, None) is not None:
                self.made_again += 1

    def lose(self, commits: int) -> None:
        """Undoes so many of the newest commits."""
        for _ in range(min(commits, len(self._commits))):
            commit = self._commits.pop()
            for change in reversed(commit.changes):
                change.undo()
            self._lost |= dict.fromkeys(commit.rows, commit.actor)

    def owes(self, actor: object) -> bool:
        """Whether rows that were committed by this one are lost and not committed again."""
        return actor in self._lost.values()

    @property
    def owes_of_dead(self) -> bool:
        """The same of actors that are gone."""
        return any(getattr(actor, "gone", False) for actor in self._lost.values())
