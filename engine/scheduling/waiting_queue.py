"""The requests that do not run, in the order in which they will: by priority, then in turns of the shares.

Engine thread. Pure bookkeeping: no clock, no memory, no torch. A share is whoever requests are for; this file
is ignorant of tenants.

Among the requests of one priority, those that had their turn and were preempted come first, in the order of
their turns. Of the others the share that was given the fewest tokens is next (virtual token counting:
https://arxiv.org/abs/2401.00588): its prompts are charged when they get their turn, less what the cache
had, and its outputs as they come. A share that comes back starts where the least of the waiting ones
stands, so idling earns no credit, and the one request of a newcomer is next whatever others have queued.
Within a share the order is that of acceptance.

Priorities are those of vLLM: they order the requests of all shares, so a request of worse priority waits
until none of a better one does, whoever that is for. Whoever may not ask for better ones than others can
lower only requests of its own by them; what those use is what nobody else waited for.
"""

from bisect import insort
from collections.abc import Collection, Iterator

from engine.scheduling.sequence import TokenSequence

FEW_SHARES = 64
"""So many accounts are not worth looking through for those that can be closed."""


class FairWaitingQueue:
    """Also keeps the accounts of the requests that run, so it is told when any request ends."""

    def __init__(self) -> None:
        self._levels: dict[int, _PriorityLevel] = {}
        self._turns = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[TokenSequence]:
        for level in self._levels.values():
            yield from level.returning
            for share in level.shares.values():
                yield from share.queue

    def enter(self, sequence: TokenSequence) -> None:
        """Takes in a request that has not been here."""
        priority = sequence.request.priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _PriorityLevel()
        level.enter(sequence)
        self._count += 1

    def come_back(self, sequence: TokenSequence) -> None:
        """Takes in a request that had its turn."""
        insort(self._levels[sequence.request.priority].returning, sequence, key=turn_of)
        self._count += 1

    def head(self) -> TokenSequence:
        """Who is next; there must be somebody."""
        return self._levels[self.best_priority()].head()

    def best_priority(self) -> int:
        """The priority of the head; there must be one."""
        return min(priority for priority, level in self._levels.items() if level.occupied)

    def next_of_others(self, shares: Collection[str]) -> TokenSequence | None:
        """The next request of a share that is not among these and has none to come back before it.

        A request of worse priority that is to come back is none: it may have to wait for long.
        """
        passed_over = set(shares)
        for _, level in sorted(self._levels.items()):
            passed_over.update(one.request.share for one in level.returning)
            sequence = level.next_of_others(passed_over)
            if sequence is not None:
                return sequence
        return None

    def was_given_less(self, sequence: TokenSequence, other: TokenSequence) -> bool:
        """Whether a request's share was given less than another's, or the other is of worse priority."""
        if sequence.request.priority != other.request.priority:
            return sequence.request.priority < other.request.priority
        shares = self._levels[sequence.request.priority].shares
        return shares[sequence.request.share].given < shares[other.request.share].given

    def take_turn(self, sequence: TokenSequence, cost: int) -> None:
        """Lets a request out to run; the first time it gets its turn, and its share pays so many tokens."""
        level = self._levels[sequence.request.priority]
        self._count -= 1
        if sequence.turn is not None:
            level.returning.remove(sequence)
            return
        self._turns += 1
        sequence.turn = self._turns
        level.take_turn(sequence, cost)

    def charge(self, sequence: TokenSequence) -> None:
        """A token was drawn for this running request."""
        request = sequence.request
        self._levels[request.priority].shares[request.share].given += 1

    def leave(self, sequence: TokenSequence, *, waiting: bool) -> None:
        """The request has ended; `waiting` says that it was here."""
        level = self._levels[sequence.request.priority]
        self._count -= waiting
        level.leave(sequence, waiting=waiting)
        if level.live == 0:
            del self._levels[sequence.request.priority]


class _KeyQueue:
    """One share's account among the requests of one priority."""

    __slots__ = ("given", "last_turn", "live", "queue")

    def __init__(self) -> None:
        self.queue: dict[TokenSequence, None] = {}
        """Its requests that have had no turn, oldest first."""
        self.given = 0
        self.last_turn = 0
        self.live = 0
        """Its requests that have not ended."""


class _PriorityLevel:
    """The requests of one priority."""

    def __init__(self) -> None:
        self.returning: list[TokenSequence] = []
        self.shares: dict[str, _KeyQueue] = {}
        self.live = 0
        self._floor = 0
        """What the share that had the last turn had been given before it. Never falls."""
        self._queueing: dict[str, _KeyQueue] = {}
        """Those of the shares that wait for a turn."""
        self._many = FEW_SHARES

    @property
    def occupied(self) -> bool:
        return bool(self.returning or self._queueing)

    def enter(self, sequence: TokenSequence) -> None:
        name = sequence.request.share
        share = self.shares.get(name)
        if share is None:
            share = self.shares[name] = _KeyQueue()
        if not share.queue:
            waiting = (other.given for other in self._queueing.values())
            share.given = max(share.given, min(waiting, default=self._floor))
            self._queueing[name] = share
        share.queue[sequence] = None
        share.live += 1
        self.live += 1

    def head(self) -> TokenSequence:
        if self.returning:
            return self.returning[0]
        return next(iter(self._next_share().queue))

    def next_of_others(self, shares: Collection[str]) -> TokenSequence | None:
        others = [share for name, share in self._queueing.items() if name not in shares]
        return next(iter(min(others, key=_standing).queue)) if others else None

    def take_turn(self, sequence: TokenSequence, cost: int) -> None:
        share = self.shares[sequence.request.share]
        self._floor = max(self._floor, share.given)
        assert sequence.turn is not None
        share.last_turn = sequence.turn
        share.given += cost
        self._unqueue(sequence, share)
        if len(self.shares) > self._many:
            self._forget_settled()

    def leave(self, sequence: TokenSequence, *, waiting: bool) -> None:
        share = self.shares[sequence.request.share]
        share.live -= 1
        self.live -= 1
        if waiting and sequence.turn is not None:
            self.returning.remove(sequence)
        elif waiting:
            self._unqueue(sequence, share)

    def _forget_settled(self) -> None:
        """Drops accounts that would start from the floor again: nothing is lost with them."""
        self.shares = {
            name: share for name, share in self.shares.items() if share.live or share.given > self._floor
        }
        self._many = max(FEW_SHARES, 2 * len(self.shares))

    def _next_share(self) -> _KeyQueue:
        return min(self._queueing.values(), key=_standing)

    def _unqueue(self, sequence: TokenSequence, share: _KeyQueue) -> None:
        del share.queue[sequence]
        if not share.queue:
            del self._queueing[sequence.request.share]


def _standing(share: _KeyQueue) -> tuple[int, int]:
    return share.given, share.last_turn


def turn_of(sequence: TokenSequence) -> int:
    """The place in the order of first turns; the request must have had its own."""
    assert sequence.turn is not None
    return sequence.turn
