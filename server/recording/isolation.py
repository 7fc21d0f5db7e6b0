"""Divides the updates of a failed commit into smaller commits. Pure.

Updates that only append to event logs come first and together: nobody else can lock their rows, so they
are rarely the cause. Updates that end a run follow one by one. An update that fails alone is suspended,
and so is whatever was not tried within the budget, because all other runs wait meanwhile.
"""

from collections import deque
from collections.abc import Sequence

from server.recording.messages import RunUpdate

BUDGET_SECONDS = 0.5
"""For all commits of one isolation. The joint commit gives up waiting for a lock after 0.25 s; together with
that, other runs wait for less than a second."""
LOCK_MS, STATEMENT_MS = 50, 600
"""`lock_timeout` and `statement_timeout` of each of these commits."""


class Isolation:
    """The groups still to be committed. Call `next`, then `committed` or `failed`, until `next` returns
    None.
    """

    def __init__(self, updates: Sequence[RunUpdate], until: float) -> None:
        """`until` is the time of the caller's clock after which no further group is tried."""
        appending = [update for update in updates if not update.is_last]
        ending = [update for update in updates if update.is_last]
        self._groups: deque[list[RunUpdate]] = deque([appending] if appending else [])
        self._groups.extend([update] for update in ending)
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
