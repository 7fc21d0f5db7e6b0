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

MIN_ACCOUNTS_TO_PRUNE = 64
"""So many accounts are not worth looking through for those that can be closed."""


class FairWaitingQueue:
    """Also keeps the accounts of the requests that run, so it is told when any request ends."""

    def __init__(self) -> None:
        self._levels: dict[int, _PriorityLevel] = {}
        self._admissions = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[TokenSequence]:
        for level in self._levels.values():
            yield from level.preempted
            for account in level.accounts.values():
                yield from account.queue

    def push(self, sequence: TokenSequence) -> None:
        """Takes in a request that has not been here."""
        priority = sequence.request.priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _PriorityLevel()
        level.push(sequence)
        self._count += 1

    def requeue(self, sequence: TokenSequence) -> None:
        """Takes in a request that had its turn."""
        insort(self._levels[sequence.request.priority].preempted, sequence, key=admission_order_of)
        self._count += 1

    def peek(self) -> TokenSequence:
        """Who is next; there must be somebody."""
        return self._levels[self.best_priority()].peek()

    def best_priority(self) -> int:
        """The priority of the head; there must be one."""
        return min(priority for priority, level in self._levels.items() if level.occupied)

    def peek_other_keys(self, accounts: Collection[str]) -> TokenSequence | None:
        """The next request of a share that is not among these and has none to come back before it.

        A request of worse priority that is to come back is none: it may have to wait for long.
        """
        passed_over = set(accounts)
        for _, level in sorted(self._levels.items()):
            passed_over.update(one.request.fairness_key for one in level.preempted)
            sequence = level.peek_other_keys(passed_over)
            if sequence is not None:
                return sequence
        return None

    def was_served_less(self, sequence: TokenSequence, other: TokenSequence) -> bool:
        """Whether a request's share was given less than another's, or the other is of worse priority."""
        if sequence.request.priority != other.request.priority:
            return sequence.request.priority < other.request.priority
        accounts = self._levels[sequence.request.priority].accounts
        return (
            accounts[sequence.request.fairness_key].served_tokens
            < accounts[other.request.fairness_key].served_tokens
        )

    def pop(self, sequence: TokenSequence, cost: int) -> None:
        """Lets a request out to run; the first time it gets its turn, and its share pays so many tokens."""
        level = self._levels[sequence.request.priority]
        self._count -= 1
        if sequence.admission_order is not None:
            level.preempted.remove(sequence)
            return
        self._admissions += 1
        sequence.admission_order = self._admissions
        level.pop(sequence, cost)

    def charge(self, sequence: TokenSequence) -> None:
        """A token was drawn for this running request."""
        request = sequence.request
        self._levels[request.priority].accounts[request.fairness_key].served_tokens += 1

    def remove(self, sequence: TokenSequence, *, waiting: bool) -> None:
        """The request has ended; `waiting` says that it was here."""
        level = self._levels[sequence.request.priority]
        self._count -= waiting
        level.remove(sequence, waiting=waiting)
        if level.unfinished == 0:
            del self._levels[sequence.request.priority]


class _KeyAccount:
    """One share's account among the requests of one priority."""

    __slots__ = ("last_admission", "queue", "served_tokens", "unfinished")

    def __init__(self) -> None:
        self.queue: dict[TokenSequence, None] = {}
        """Its requests that have had no turn, oldest first."""
        self.served_tokens = 0
        self.last_admission = 0
        self.unfinished = 0
        """Its requests that have not ended."""


class _PriorityLevel:
    """The requests of one priority."""

    def __init__(self) -> None:
        self.preempted: list[TokenSequence] = []
        self.accounts: dict[str, _KeyAccount] = {}
        self.unfinished = 0
        self._min_served_tokens = 0
        """What the share that had the last turn had been given before it. Never falls."""
        self._queued_accounts: dict[str, _KeyAccount] = {}
        """Those of the shares that wait for a turn."""
        self._prune_above = MIN_ACCOUNTS_TO_PRUNE

    @property
    def occupied(self) -> bool:
        return bool(self.preempted or self._queued_accounts)

    def push(self, sequence: TokenSequence) -> None:
        name = sequence.request.fairness_key
        account = self.accounts.get(name)
        if account is None:
            account = self.accounts[name] = _KeyAccount()
        if not account.queue:
            waiting = (other.served_tokens for other in self._queued_accounts.values())
            account.served_tokens = max(account.served_tokens, min(waiting, default=self._min_served_tokens))
            self._queued_accounts[name] = account
        account.queue[sequence] = None
        account.unfinished += 1
        self.unfinished += 1

    def peek(self) -> TokenSequence:
        if self.preempted:
            return self.preempted[0]
        return next(iter(self._next_account().queue))

    def peek_other_keys(self, accounts: Collection[str]) -> TokenSequence | None:
        others = [account for name, account in self._queued_accounts.items() if name not in accounts]
        return next(iter(min(others, key=_service_order).queue)) if others else None

    def pop(self, sequence: TokenSequence, cost: int) -> None:
        account = self.accounts[sequence.request.fairness_key]
        self._min_served_tokens = max(self._min_served_tokens, account.served_tokens)
        assert sequence.admission_order is not None
        account.last_admission = sequence.admission_order
        account.served_tokens += cost
        self._unqueue(sequence, account)
        if len(self.accounts) > self._prune_above:
            self._prune_accounts()

    def remove(self, sequence: TokenSequence, *, waiting: bool) -> None:
        account = self.accounts[sequence.request.fairness_key]
        account.unfinished -= 1
        self.unfinished -= 1
        if waiting and sequence.admission_order is not None:
            self.preempted.remove(sequence)
        elif waiting:
            self._unqueue(sequence, account)

    def _prune_accounts(self) -> None:
        """Drops accounts that would start from the floor again: nothing is lost with them."""
        self.accounts = {
            name: account
            for name, account in self.accounts.items()
            if account.unfinished or account.served_tokens > self._min_served_tokens
        }
        self._prune_above = max(MIN_ACCOUNTS_TO_PRUNE, 2 * len(self.accounts))

    def _next_account(self) -> _KeyAccount:
        return min(self._queued_accounts.values(), key=_service_order)

    def _unqueue(self, sequence: TokenSequence, account: _KeyAccount) -> None:
        del account.queue[sequence]
        if not account.queue:
            del self._queued_accounts[sequence.request.fairness_key]


def _service_order(account: _KeyAccount) -> tuple[int, int]:
    return account.served_tokens, account.last_admission


def admission_order_of(sequence: TokenSequence) -> int:
    """The place in the order of first turns; the request must have had its own."""
    assert sequence.admission_order is not None
    return sequence.admission_order
