"""What happens to the database of a simulated world: crashes, failovers, faults of sessions and rights."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import get_args

from tests.support.memory import Memory, Trouble
from tests.support.memory_environment import Table

_TROUBLED = 0.08
_STRICT, _FAILS_OVER, _HAS_BAD_ENVIRONMENT, _RETAINS_NOTHING = 0.4, 0.15, 0.4, 0.05
"""Of all worlds."""
_TROUBLES: Sequence[Trouble] = ("undone", "undone", "unanswered", "unanswered", "crash before", "crash after")
_MOST_COMMITS = 12
"""That a standby lags behind."""


class DatabaseFaults:
    """Of one world, by its dice."""

    def __init__(self, memory: Memory, dice: random.Random) -> None:
        self._memory, self._dice = memory, dice
        kind = dice.random()
        memory.waits_for_disk = kind < _STRICT
        memory.trouble, memory.crash = self._trouble, self.crash
        self._fails_over = dice.random() < _FAILS_OVER
        self._has_bad_environment = dice.random() < _HAS_BAD_ENVIRONMENT
        self.retains_nothing = kind > 1 - _RETAINS_NOTHING
        """Recorders have no memory for what they committed of late."""
        self.are_on = True
        self.crashed = False
        """Since the last step."""
        self.loses_more = False
        """Commits were lost that nobody can make again, or might not be."""
        self.counts: Counter[str] = Counter()

    def step(self) -> None:
        """Perhaps a fault."""
        self.crashed, happening = False, self._dice.random()
        if happening < (0.12 if self._memory.journal.unsafe else 0.01):
            self.crash()
        elif happening < 0.15 and self._fails_over:
            self.fail_over()
        elif happening < 0.18 and self._has_bad_environment:
            self._spoil_environment()

    def stop(self) -> None:
        self.are_on = False
        self._memory.environment.heal()

    def crash(self) -> None:
        """Postgres starts again. Commits that did not wait for the disk may be gone."""
        commits = self._dice.randint(0, self._memory.journal.unsafe)
        self._memory.journal.lose(commits)
        self.loses_more |= self._memory.journal.owes_of_dead or (commits > 0 and self.retains_nothing)
        self.crashed = True
        self.counts["crashes"] += 1
        self.counts["crashes that lost commits"] += commits > 0
        self._cut()

    def fail_over(self) -> None:
        """A standby that lags is promoted, or a backup restored in its place."""
        commits = self._dice.randint(1, _MOST_COMMITS)
        self._memory.journal.lose(commits)
        self.counts["failovers"] += 1
        self.loses_more = True
        self._cut()

    def note_death(self, replica: object) -> None:
        if self._memory.journal.owes(replica):
            self.counts["replicas that died before they made lost commits again"] += 1
            self.loses_more = True

    def _cut(self) -> None:
        """A pooler may hide it from all who have connections."""
        if self._dice.random() < 0.6:
            self._memory.sessions += 1

    def _spoil_environment(self) -> None:
        until = self._memory.seconds + self._dice.uniform(0.1, 8.0)
        if self._dice.random() < 0.4:
            self._memory.environment.read_only_until = until
            self.counts["sessions that turned read-only"] += 1
        else:
            self._memory.environment.forbidden[self._dice.choice(get_args(Table))] = until
            self.counts["rights that vanished"] += 1

    def _trouble(self) -> Trouble:
        if not self.are_on or self._dice.random() > _TROUBLED:
            return ""
        return self._dice.choice(_TROUBLES)
