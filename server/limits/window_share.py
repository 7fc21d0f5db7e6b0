"""WindowShare: this process's share of one rate window, and the threads that wait for units of it.

One thread at a time fetches from the database, for all that wait, and some units more for those to come: as
many as were used in a second lately, at most a sixteenth of what is left. Units that are not used in time are
given back to the second in which they were booked.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from server.limits.rate_window import HOLD_SECONDS, WINDOW_SECONDS, RateWindow
from server.store.administration import rate_windows
from server.store.administration.rate_windows import WindowKey
from server.store.database import Connection, Database

_SPARE_PART = 16
"""The part of what is left that is fetched without being asked for."""
_REFUSED_SECONDS = 0.25
"""How long a refusal is repeated without a query."""
_MAX_FETCHES = 8
"""Fetches for one request; more than one is needed only where the database answers after seconds."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Units that were taken, and the second in which they are booked."""

    second: int
    amount: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """There are not enough units; `seconds` until there are, None if never."""

    limit: int
    used: int
    amount: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a window here: the limit, units left, seconds until it is empty."""

    limit: int
    remaining: int
    reset_seconds: float


@dataclass(eq=False, slots=True)
class _Demand:
    amount: int
    limit: int
    outcome: Taken | Refusal | Exception | None = None


@dataclass(frozen=True, slots=True)
class _Fetched:
    outcomes: list[Taken | Refusal]
    spare: Taken
    usable_until: float
    """Monotonic seconds."""
    left: int
    reset_at: float


class WindowShare:
    """Thread-safe. Units are taken by `take`; `give_back` and `charge` correct it later."""

    def __init__(
        self,
        key: WindowKey,
        database: Database,
        clock: Callable[[], float] = monotonic,
        seconds: int = WINDOW_SECONDS,
    ) -> None:
        self.key = key
        self._database = database
        self._clock = clock
        self._seconds = seconds
        self._changed = threading.Condition()
        self._fetching = False
        self._waiting: list[_Demand] = []
        self._spare = Taken(0, 0)
        self._usable_until = 0.0
        self._returns: Counter[int] = Counter()
        """Units to give back, by the second in which they are booked."""
        self._charges = 0
        """Units that were used beyond what was taken."""
        self._refusal: tuple[float, Refusal] | None = None
        """Until when a refusal is repeated for as many units or more."""
        self._standing: tuple[int, int, float] = (0, 0, 0.0)
        """Limit, units left in the window, and when it is empty, at the last fetch."""
        self._demand_rate = _DemandRate()
        self.used_at = clock()

    def take(self, amount: int, limit: int) -> Taken | Refusal:
        """Takes units, or none. Waits for the database, and raises DatabaseError if it is away."""
        if amount > limit:
            return Refusal(limit, 0, amount, None)
        with self._changed:
            now = self.used_at = self._clock()
            self._demand_rate.add(now, amount)
            if (taken := self._take_spare(now, amount, limit)) is not None:
                return taken
            if (refusal := self._repeated_refusal(now, amount, limit)) is not None:
                return refusal
            return self._wait_for(_Demand(amount, limit))

    def _take_spare(self, now: float, amount: int, limit: int) -> Taken | None:
        if amount > self._spare.amount or now >= self._usable_until or limit != self._standing[0]:
            return None
        self._spare = Taken(self._spare.second, self._spare.amount - amount)
        return Taken(self._spare.second, amount)

    def _repeated_refusal(self, now: float, amount: int, limit: int) -> Refusal | None:
        if self._refusal is None:
            return None
        until, refusal = self._refusal
        if now >= until or amount < refusal.amount or limit != refusal.limit:
            return None
        return Refusal(limit, refusal.used, amount, refusal.seconds)

    def _wait_for(self, demand: _Demand) -> Taken | Refusal:
        """The outcome of the demand. This thread fetches for all that wait, unless another one does."""
        self._waiting.append(demand)
        fetches = 0
        while demand.outcome is None:
            if self._fetching:
                self._changed.wait()
                continue
            fetches += 1
            self._fetch_for_waiting(last=fetches >= _MAX_FETCHES)
        if isinstance(demand.outcome, Exception):
            raise demand.outcome
        return demand.outcome

    def _fetch_for_waiting(self, *, last: bool = False) -> None:
        """Fetches for all that wait. With the lock held, which is released during the fetch.

        Demands of a fetch that took too long stay in line, because their units can be used no more, except at
        the `last` fetch.
        """
        demands, self._waiting = self._waiting, []
        spare = self._demand_rate.in_a_second(self._clock()) if demands else 0
        returns, charges = self._unsettled()
        self._fetching = True
        try:
            with self._unlocked():
                fetched = self._fetch(demands, spare, returns, charges)
        except Exception as error:  # noqa: BLE001 - raised by every thread that waits for it
            self._returns.update(returns)
            self._charges += charges
            for demand in demands:
                demand.outcome = error
        else:
            self._settle(demands, fetched, last=last)
        finally:
            self._fetching = False
            self._changed.notify_all()

    def _unsettled(self) -> tuple[dict[int, int], int]:
        """What the next fetch corrects, with the spare units, which it replaces."""
        if self._spare.amount:
            self._returns[self._spare.second] += self._spare.amount
            self._spare = Taken(0, 0)
        returns, self._returns = dict(self._returns), Counter()
        charges, self._charges = self._charges, 0
        return returns, charges

    def _settle(self, demands: list[_Demand], fetched: _Fetched, *, last: bool) -> None:
        now = self._clock()
        late = now >= fetched.usable_until and not last
        for demand, outcome in zip(demands, fetched.outcomes, strict=True):
            if isinstance(outcome, Refusal):
                self._refusal = (now + min(outcome.seconds or 0.0, _REFUSED_SECONDS), outcome)
            elif late:
                self._returns[outcome.second] += outcome.amount
                self._waiting.append(demand)
                continue
            demand.outcome = outcome
        self._spare, self._usable_until = fetched.spare, fetched.usable_until
        if demands:
            self._standing = (demands[-1].limit, fetched.left, fetched.reset_at)
        else:
            self._standing = (self._standing[0], fetched.left, fetched.reset_at)

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._changed.release()
        try:
            yield
        finally:
            self._changed.acquire()

    def _fetch(self, demands: list[_Demand], spare: int, returns: dict[int, int], charges: int) -> _Fetched:
        """One short transaction, in which the window is locked. Raises DatabaseError."""
        limit = min((demand.limit for demand in demands), default=self._standing[0])

        def book(connection: Connection) -> _Fetched:
            asked_at = self._clock()  # before the database reads its clock, so that units are used in time
            stored = rate_windows.lock(connection, self.key)
            window = RateWindow.of(stored.newest, stored.slots, self._seconds)
            for second, amount in returns.items():
                window.refund(second, amount)
            window.advance(int(stored.now))
            window.take(charges)
            outcomes = [self._book(window, demand) for demand in demands]
            extra = min(spare, window.left(limit) // _SPARE_PART)
            window.take(extra)
            rate_windows.write(connection, self.key, window.newest, window.slots)
            return _Fetched(
                outcomes,
                Taken(window.newest, extra),
                asked_at + (int(stored.now) + HOLD_SECONDS - stored.now),
                window.left(limit),
                asked_at + window.seconds_until_empty(),
            )

        return self._database.retry(book)

    @staticmethod
    def _book(window: RateWindow, demand: _Demand) -> Taken | Refusal:
        if window.take_within(demand.limit, demand.amount):
            return Taken(window.newest, demand.amount)
        seconds = window.seconds_until(demand.limit, demand.amount)
        return Refusal(demand.limit, window.used, demand.amount, seconds)

    def give_back(self, taken: Taken) -> None:
        """Gives back units that are not used after all; the window has them within a second."""
        with self._changed:
            if taken.second == self._spare.second and self._clock() < self._usable_until:
                self._spare = Taken(taken.second, self._spare.amount + taken.amount)
            else:
                self._returns[taken.second] += taken.amount

    def charge(self, amount: int) -> None:
        """Books units that were used without having been taken, whatever the limit."""
        with self._changed:
            self._charges += amount

    def flush(self) -> None:
        """Writes corrections, and gives spare units back whose time is over. Raises DatabaseError."""
        with self._changed:
            overdue = self._spare.amount and self._clock() >= self._usable_until
            if not self._fetching and (overdue or self._returns or self._charges):
                self._fetch_for_waiting()

    @property
    def is_settled(self) -> bool:
        """Whether the window in the database is right without this process."""
        return not (self._spare.amount or self._returns or self._charges or self._waiting or self._fetching)

    def standing(self) -> Standing | None:
        """What is known of the window; None before the first fetch."""
        limit, left, reset_at = self._standing
        if not limit:
            return None
        remaining = min(limit, left + self._spare.amount)
        return Standing(limit, remaining, max(0.0, reset_at - self._clock()))


class _DemandRate:
    """The units demanded in the current second and in the one before it."""

    def __init__(self) -> None:
        self._second = 0
        self._current = 0
        self._before = 0

    def add(self, now: float, amount: int) -> None:
        self._move_to(int(now))
        self._current += amount

    def in_a_second(self, now: float) -> int:
        """The larger of both."""
        self._move_to(int(now))
        return max(self._current, self._before)

    def _move_to(self, second: int) -> None:
        if second != self._second:
            self._before = self._current if second == self._second + 1 else 0
            self._current = 0
            self._second = second
