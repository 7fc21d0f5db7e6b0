"""RateWindow: what was used in each of the last seconds, so that no minute has more than the limit. Pure.

Times are whole seconds of the database's clock. Units are booked in the second in which they are taken from
the window, and may be used until `HOLD_SECONDS` after that second began. So the units of a second count until
the window and those seconds have passed, and however units are used, no `seconds` in a row have more than the
limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WINDOW_SECONDS: Final = 60
HOLD_SECONDS: Final = 2
"""A replica may use units until this long after the beginning of the second in which they are booked."""


@dataclass(eq=False, slots=True)
class RateWindow:
    """The units booked in the seconds up to `newest`, oldest first."""

    newest: int
    slots: list[int]

    @classmethod
    def of(cls, newest: int, slots: Sequence[int] = (), seconds: int = WINDOW_SECONDS) -> "RateWindow":
        """A window of so many seconds with stored slots, of which there may be fewer or more."""
        size = seconds + HOLD_SECONDS
        kept = list(slots[-size:])
        return cls(newest, [0] * (size - len(kept)) + kept)

    @property
    def used(self) -> int:
        return sum(self.slots)

    def left(self, limit: int) -> int:
        """Units that can be booked now."""
        return max(0, limit - self.used)

    def advance(self, second: int) -> None:
        """Moves on to a later second; a clock that was set back by less than the window changes nothing.

        After a larger step back the same units count from that second on, for a window at most.
        """
        passed = second - self.newest
        size = len(self.slots)
        if -size < passed <= 0:
            return
        self.newest = second
        if passed < 0:
            return
        self.slots = self.slots[passed:] + [0] * min(passed, size)

    def take(self, amount: int) -> None:
        """Books units in the newest second, whatever the limit."""
        self.slots[-1] += amount

    def take_within(self, limit: int, amount: int) -> bool:
        """Books all the units if they are within the limit, else none."""
        if amount > self.left(limit):
            return False
        self.take(amount)
        return True

    def refund(self, second: int, amount: int) -> None:
        """Gives back units that were booked in that second, or shortly before it.

        Units of seconds that have left the window are gone already.
        """
        index = len(self.slots) - 1 - max(0, self.newest - second)
        while amount > 0 and index >= 0:
            given = min(amount, self.slots[index])
            self.slots[index] -= given
            amount -= given
            index -= 1

    def seconds_until(self, limit: int, amount: int) -> int | None:
        """Seconds until so many units can be booked if nothing is booked meanwhile; None if never."""
        if amount > limit:
            return None
        excess = self.used + amount - limit
        for passed, units in enumerate(self.slots, start=1):
            if excess <= 0:
                return passed - 1
            excess -= units
        return len(self.slots)

    def seconds_until_empty(self) -> int:
        """Seconds until nothing that is booked counts any more."""
        for age, units in enumerate(reversed(self.slots)):
            if units:
                return len(self.slots) - age
        return 0
