"""Which steps are committed with which when they cannot be committed all together. Pure.

Steps that only add to the log come first and together: no row of theirs can be locked by others, so they are
rarely the cause. The ends follow one by one. What fails alone is suspended, and so is whatever is not tried
when the time is up, for the others' next steps wait meanwhile.
"""

from collections import deque
from collections.abc import Sequence

from server.recording.messages import (
    RunUpdate,
)

BUDGET_SECONDS = 0.5
"""For all tries of one isolation. With the 0.25 s after which the joint commit gives up waiting for a lock
that keeps within a second."""
LOCK_MS, STATEMENT_MS = 50, 600
"""How long a single step waits for locks, and how long each of its statements may take."""


class Isolation:
    """Steps of one commit, divided. Use: `next`, then `committed` or `failed`, until `next` gives None."""

    def __init__(self, steps: Sequence[RunUpdate], until: float) -> None:
        """`until` is the time after which nothing is tried any more."""
        adding = [step for step in steps if not step.over]
        ending = [step for step in steps if step.over]
        self._groups: deque[list[RunUpdate]] = deque([adding] if adding else [])
        self._groups.extend([step] for step in ending)
        self._until = until
        self._tried_one = False
        self.done: list[RunUpdate] = []
        self.suspended: list[RunUpdate] = []

    def next(self, now: float) -> list[RunUpdate] | None:
        """What to commit next as one transaction. The first is tried however late it is."""
        if now > self._until and self._tried_one:
            self.suspended.extend(step for group in self._groups for step in group)
            self._groups.clear()
        self._tried_one = True
        return self._groups[0] if self._groups else None

    def committed(self) -> None:
        """The last `next` was."""
        self.done += self._groups.popleft()

    def failed(self) -> None:
        """The last `next` was not: its steps are tried alone, behind all others."""
        group = self._groups.popleft()
        if len(group) == 1:
            self.suspended += group
        else:
            self._groups.extend([step] for step in group)
