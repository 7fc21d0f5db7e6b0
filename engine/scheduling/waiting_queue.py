"""`FairWaitingQueue`: requests that wait to run, by priority, then by a fair order of their fairness keys.

Engine thread; no clock, no memory, no torch.

Within a priority, preempted requests come first, in the order of their first admission. Among the others, the
fairness key with the fewest served tokens is next (virtual token counter, https://arxiv.org/abs/2401.00588):
a prompt's uncached tokens count when it is admitted, output tokens as they are sampled. A key that becomes
active starts at the minimum of the waiting keys, so idle time earns no credit, and a newcomer's only request
is next however long the queues of other keys are. Within a key the order is that of acceptance.

Priorities are those of vLLM: lower first, across all keys. A request waits as long as any request of a better
priority does, whatever its key.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from engine.scheduling.sequence import TokenSequence

MIN_ACCOUNTS_TO_PRUNE = 64
"""Below this number of accounts, no search for accounts that can be dropped."""


class FairWaitingQueue:
    """Also accounts for running requests: `charge` counts their tokens, `remove` ends any request."""

    def __init__(self) -> None:
        self._levels: defaultdict[int, _PriorityLevel] = defaultdict(_PriorityLevel)
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
        self._levels[sequence.request.priority].push(sequence)
        self._count += 1

    def requeue(self, sequence: TokenSequence) -> None:
        insort(self._levels[sequence.request.priority].preempted, sequence, key=admission_order_of)
        self._count += 1

    def peek(self) -> TokenSequence:
        """The queue must not be empty."""
        return self._levels[self.best_priority()].peek()

    def best_priority(self) -> int:
        """The priority of the next request. The queue must not be empty."""
        return min(priority for priority, level in self._levels.items() if level.occupied)

    def peek_other_keys(self, keys: Collection[str]) -> TokenSequence | None:
        """The next request of a key that is not in `keys` and has no preempted request before it.

        Preempted requests of worse priority do not count: they may have to wait long.
        """
        passed_over = set(keys)
        for _, level in sorted(self._levels.items()):
            passed_over.update(sequence.request.fairness_key for sequence in level.preempted)
            sequence = level.peek_other_keys(passed_over)
            if sequence is not None:
                return sequence
        return None

    def was_served_less(self, sequence: TokenSequence, other: TokenSequence) -> bool:
        """Whether `sequence` has a better priority, or the same and a key with fewer served tokens."""
        first, second = sequence.request, other.request
        if first.priority != second.priority:
            return first.priority < second.priority
        accounts = self._levels[first.priority].accounts
        return accounts[first.fairness_key].served_tokens < accounts[second.fairness_key].served_tokens

    def pop(self, sequence: TokenSequence, cost: int) -> None:
        """Removes a request that is admitted. At its first admission its key is charged `cost` tokens."""
        level = self._levels[sequence.request.priority]
        self._count -= 1
        if sequence.admission_order is not None:
            level.preempted.remove(sequence)
            return
        self._admissions += 1
        sequence.admission_order = self._admissions
        level.pop(sequence, cost)

    def charge(self, sequence: TokenSequence, tokens: int = 1) -> None:
        request = sequence.request
        self._levels[request.priority].accounts[request.fairness_key].served_tokens += tokens

    def remove(self, sequence: TokenSequence, *, waiting: bool) -> None:
        """Removes a request that has ended; `waiting` is whether it was in the queue."""
        level = self._levels[sequence.request.priority]
        self._count -= waiting
        level.remove(sequence, waiting=waiting)
        if level.unfinished == 0:
            del self._levels[sequence.request.priority]


@dataclass(slots=True, eq=False)
class _KeyAccount:
    queue: dict[TokenSequence, None] = field(default_factory=dict)
    """Requests that were never admitted, oldest first."""
    served_tokens: int = 0
    last_admission: int = 0
    unfinished: int = 0


class _PriorityLevel:
    def __init__(self) -> None:
        self.preempted: list[TokenSequence] = []
        self.accounts: defaultdict[str, _KeyAccount] = defaultdict(_KeyAccount)
        self.unfinished = 0
        self._min_served_tokens = 0
        """Start of new accounts: served tokens of the last admitted key before, as a running maximum."""
        self._queued_accounts: dict[str, _KeyAccount] = {}
        self._prune_above = MIN_ACCOUNTS_TO_PRUNE

    @property
    def occupied(self) -> bool:
        return bool(self.preempted or self._queued_accounts)

    def push(self, sequence: TokenSequence) -> None:
        name = sequence.request.fairness_key
        account = self.accounts[name]
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
        return next(iter(min(self._queued_accounts.values(), key=_service_order).queue))

    def peek_other_keys(self, keys: Collection[str]) -> TokenSequence | None:
        others = [account for key, account in self._queued_accounts.items() if key not in keys]
        return next(iter(min(others, key=_service_order).queue)) if others else None

    def pop(self, sequence: TokenSequence, cost: int) -> None:
        account = self.accounts[sequence.request.fairness_key]
        self._min_served_tokens = max(self._min_served_tokens, account.served_tokens)
        assert sequence.admission_order is not None
        account.last_admission = sequence.admission_order
        account.served_tokens += cost
        self._unqueue(sequence, account)
        if len(self.accounts) > self._prune_above:
            # Idle accounts at or below the starting value: new ones would be equal.
            for name, other in list(self.accounts.items()):
                if not other.unfinished and other.served_tokens <= self._min_served_tokens:
                    del self.accounts[name]
            self._prune_above = max(MIN_ACCOUNTS_TO_PRUNE, 2 * len(self.accounts))

    def remove(self, sequence: TokenSequence, *, waiting: bool) -> None:
        account = self.accounts[sequence.request.fairness_key]
        account.unfinished -= 1
        self.unfinished -= 1
        if waiting and sequence.admission_order is not None:
            self.preempted.remove(sequence)
        elif waiting:
            self._unqueue(sequence, account)

    def _unqueue(self, sequence: TokenSequence, account: _KeyAccount) -> None:
        del account.queue[sequence]
        if not account.queue:
            del self._queued_accounts[sequence.request.fairness_key]


def _service_order(account: _KeyAccount) -> tuple[int, int]:
    return account.served_tokens, account.last_admission


def admission_order_of(sequence: TokenSequence) -> int:
    """The request's place in the order of first admissions; it must have been admitted."""
    assert sequence.admission_order is not None
    return sequence.admission_order
