"""Who runs next: admission by memory, chunked prefill beside decode, preemption, priorities.

Engine thread. Pure bookkeeping: no torch, no clock, no messages. A request that is preempted loses its
blocks, keeps its tokens, and recomputes (its published blocks are usually still there to be found again).

    waiting --admit--> running --remove--> (ended)
       ^                  |
       +-----preempt------+

The order of all requests is that of (priority, first turn); those that had no turn yet come after, as
`waiting` orders them. What is promised about it:

- The first request in this order is in every plan, as it may take the memory and the place of all others. A
  token in flight can put it off for one step: if it is its last, or if it was preempted meanwhile. One that
  made room for another share is not, until there is room again: then it comes first.
- A request is preempted only for one before it, or, while its share runs others, for one of a share that runs
  nothing; it comes back before any that had its turn later.
- So a request ends after finitely many steps, unless requests of better priority or new shares keep coming.

A request whose next block another one is about to compute waits for it: many requests with one prompt
cost one prefill. It waits for running requests of its own or a better priority only. Those come first in
the order, so they always move on, and in all their steps but the last they leave nothing of the budget
anyway.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from engine.config import Limits
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.sequence import TokenSequence
from engine.scheduling.waiting_queue import FairWaitingQueue, admission_order_of


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """The tokens `start` .. `start + count` of one sequence, to be computed in this step."""

    sequence: TokenSequence
    start: int
    count: int

    @property
    def samples_token(self) -> bool:
        """The chunk reaches the end of the sequence, so that the step yields its next token."""
        sequence = self.sequence
        return self.start + self.count == len(sequence.tokens) + sequence.in_flight


@dataclass(frozen=True, slots=True)
class ComputedBlocks:
    """What one step computed of one sequence: its first `end` tokens are in `blocks` now."""

    sequence: TokenSequence
    blocks: list[int]
    """The very list that the sequence had: with another one it has given these blocks back."""
    end: int


SchedulerOutput = tuple[ScheduledChunk, ...]
"""The chunks of one step, at most one a sequence: those of one token first, then longer ones."""

CALM_STEPS = 100
"""So many steps without memory trouble, and what was made smaller is doubled again."""


@dataclass(slots=True)
class SchedulerCounters:
    """Counts that only rise; see `messages.Stats`."""

    computed_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0


class Scheduler:
    """Holds every accepted sequence that has not ended, and the blocks of those that run."""

    def __init__(self, limits: Limits, tally: SchedulerCounters | None = None) -> None:
        self.limits = limits
        self.counters = tally or SchedulerCounters()
        self.pool = BlockPool(limits.kv_blocks)
        self.dirty: list[int] = []
        """Blocks that were given back with content which nobody knows to be finite. It must be gone before
        the next step: a number that is none is one, too, where it is masked."""
        self._waiting = FairWaitingQueue()
        self._running: list[TokenSequence] = []  # in the order of the head of this file
        self._coming: dict[bytes, TokenSequence] = {}
        """Blocks that running requests are to compute and have not yet, by their digests."""
        self._budget = limits.token_budget
        self._places = limits.max_running
        """So many requests may run now: fewer than set after a step that ran out of memory."""
        self._calm = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    def sequences(self) -> Iterator[TokenSequence]:
        """All that have not ended."""
        yield from self._running
        yield from self._waiting

    def add(self, sequence: TokenSequence) -> None:
        """Queues a sequence that, alone, fits into the pool with its whole output."""
        self._waiting.push(sequence)

    def prepare(self, sequence: TokenSequence) -> list[bytes]:
        """The digests of the blocks that might be found in the cache; the slow part of admission."""
        size = self.limits.block_size
        return sequence.block_digests(sequence.max_reusable_tokens // size, size)

    def remove(self, sequence: TokenSequence) -> None:
        """Ends a sequence, wherever it is, and gives its blocks back."""
        runs = bool(sequence.blocks)
        if runs:
            self._running.remove(sequence)
            self._release(sequence)
        self._waiting.remove(sequence, waiting=not runs)

    def plan(self) -> SchedulerOutput:
        """Chooses the next step. Not empty while there are sequences of which no token is in flight.

        After requests that are more urgent than running ones were let in, the order is: one token for
        every request that is generating, then prompts that were begun, then new requests. So a long
        prompt never holds up a request that is generating, and `token_budget >= max_running` leaves at
        least one token for whoever comes first in the order.
        """
        self._admit_urgent()
        self._admit_unserved()
        size = self.limits.block_size
        singles: list[ScheduledChunk] = []
        for sequence in tuple(self._running):
            length = len(sequence.tokens) + sequence.in_flight
            if sequence.in_flight and sequence.ends_in_flight:
                continue
            if length - sequence.num_computed_tokens == 1 and (
                length <= len(sequence.blocks) * size or self._grow(sequence)
            ):
                singles.append(ScheduledChunk(sequence, length - 1, 1))
        left = self._budget - len(singles)
        prompts: list[ScheduledChunk] = []
        for sequence in self._running:
            if left > 0 and sequence.remaining > 1:
                left -= self._add_prefill(prompts, sequence, left)
        while left > 0 and self._waiting and len(self._running) < self._places:
            sequence = self._waiting.peek()
            if not self._admit(sequence):
                break
            left -= self._add_prefill(prompts, sequence, left)
        singles += [chunk for chunk in prompts if chunk.count == 1]
        plan = (*singles, *(chunk for chunk in prompts if chunk.count > 1))
        for chunk in plan:
            chunk.sequence.num_written_tokens = max(
                chunk.sequence.num_written_tokens, chunk.start + chunk.count
            )
        return plan

    def advance(self, plan: SchedulerOutput) -> list[ComputedBlocks]:
        """Takes note that the step was computed. Gives what `confirm` wants once its results were read, for
        each chunk.
        """
        progress = []
        for chunk in plan:
            sequence = chunk.sequence
            sequence.num_computed_tokens = chunk.start + chunk.count
            progress.append(ComputedBlocks(sequence, sequence.blocks, sequence.num_computed_tokens))
            if chunk.samples_token:
                self._waiting.charge(sequence)
        self.counters.computed_tokens += sum(chunk.count for chunk in plan)
        self._calm += 1
        if self._calm >= CALM_STEPS:
            self._budget = min(self._budget * 2, self.limits.token_budget)
            self._places = min(self._places * 2, self.limits.max_running)
            self._calm = 0
        return progress

    def confirm(self, progress: ComputedBlocks) -> None:
        """What was computed there is finite: its full blocks may be reused from now on.

        One token's logits prove it for all tokens before: a number that is none makes none of all that
        attend to it. Blocks that were given back meanwhile stay unknown.
        """
        sequence = progress.sequence
        if sequence.blocks is not progress.blocks:
            return
        sequence.num_finite_tokens = progress.end
        full = progress.end // self.limits.block_size
        if full > sequence.num_cached_blocks:
            self._publish(sequence, full)

    def shrink(self) -> bool:
        """Halves the budget after a step that ran out of memory; False if it cannot be smaller."""
        self._calm = 0
        smaller = max(self._budget // 2, self.limits.max_running)
        shrunk = smaller < self._budget
        self._budget = smaller
        return shrunk

    def thin_out(self, plan: SchedulerOutput) -> bool:
        """Preempts the last request of a step that ran out of memory, and admits no other until steps
        have been calm for a while; False if it ran alone.
        """
        if len(self._running) < 2:
            return False
        self._calm = 0
        self._preempt(self.last_of(plan))
        self._places = len(self._running)
        return True

    def last_of(self, plan: SchedulerOutput) -> TokenSequence:
        """Of the requests of a plan the one that comes last in the order."""
        return max((chunk.sequence for chunk in plan), key=_rank)

    def check_integrity(self) -> None:
        """Asserts that no block is lost and none is held twice by mistake."""
        self.pool.check_integrity(sequence.blocks for sequence in self.sequences())
        assert len(self._waiting) == sum(1 for _ in self._waiting), "the waiting requests are miscounted"
        assert all(not sequence.blocks for sequence in self._waiting), "a waiting request holds blocks"
        assert all(sequence.blocks for sequence in self._running), "a running request holds no blocks"
        assert self._running == sorted(self._running, key=_rank), "the running requests are out of order"
        assert set(self._coming.values()) <= set(self._running), "a request awaits what nobody computes"

    # Growth

    def _add_prefill(self, chunks: list[ScheduledChunk], sequence: TokenSequence, left: int) -> int:
        count = min(sequence.remaining, left)
        chunks.append(ScheduledChunk(sequence, sequence.num_computed_tokens, count))
        return count

    def _grow(self, sequence: TokenSequence) -> bool:
        """Makes room for the next token, at the cost of the last in the order; False if that is itself."""
        size = self.limits.block_size
        while len(sequence.blocks) * size < sequence.length:
            if not sequence.blocks:
                return False  # preempted by an earlier one in this plan
            fresh = self.pool.allocate(1)
            if fresh is None:
                self._preempt(self._running[-1])
            else:
                sequence.blocks += fresh
        return True

    def _publish(self, sequence: TokenSequence, full: int) -> None:
        digests = sequence.block_digests(full, self.limits.block_size)
        for index in range(sequence.num_cached_blocks, full):
            self.pool.cache(sequence.blocks[index], digests[index])
        self._retract(sequence, digests[sequence.num_cached_blocks : full])
        sequence.num_cached_blocks = full

    # Admission

    def _admit_urgent(self) -> None:
        """Lets in waiting requests of better priority than some that run, at the cost of those."""
        while self._waiting and self._running:
            if self._waiting.best_priority() >= self._running[-1].request.priority:
                return
            peek = self._waiting.peek()
            if not self._admit(peek, self._worse_than(peek.request.priority)):
                return

    def _worse_than(self, priority: int) -> list[TokenSequence]:
        """The running requests of worse priority, the last in the order first."""
        return list(takewhile(lambda other: other.request.priority > priority, reversed(self._running)))

    def _admit_unserved(self) -> None:
        """Lets in the next request of a share that runs nothing, where shares that run several leave no room.

        Only at the cost of shares that were given more, and one in a step. So long answers of one share do
        not keep another one waiting until they end.
        """
        if not self._waiting or not self._running:
            return
        running = Counter(sequence.request.fairness_key for sequence in self._running)
        sequence = self._waiting.peek_other_keys(running)
        if sequence is None or self._has_place(sequence):
            return
        spare: list[TokenSequence] = []
        for other in reversed(self._running):
            if running[other.request.fairness_key] > 1 and self._waiting.was_served_less(sequence, other):
                running[other.request.fairness_key] -= 1
                spare.append(other)
        if spare:
            self._admit(sequence, spare)

    def _has_place(self, sequence: TokenSequence) -> bool:
        """Whether a request can be let in without cost, whatever of its prompt is cached."""
        places = len(self._running)
        needed = self.limits.blocks_for(len(sequence.tokens))
        return places < self._places and self.pool.free >= needed + places

    def _admit(self, sequence: TokenSequence, spare: Sequence[TokenSequence] = ()) -> bool:
        """Moves a sequence from waiting to running if all its tokens so far find room.

        Room is made at the cost of as few of the `spare` requests as it takes, in their order, none of
        which may be planned yet.
        """
        if sequence.in_flight or self._is_coming(sequence.awaited_digest, sequence):
            return False
        digests = self.prepare(sequence)
        reused = self.pool.lookup(digests)
        fresh_digests = digests[len(reused) :]
        sequence.awaited_digest = self._last_coming(fresh_digests, sequence)
        if sequence.awaited_digest is not None:
            return False
        self.pool.acquire(reused)
        needed = self.limits.blocks_for(len(sequence.tokens)) - len(reused)
        victims = self._find_victims(needed, spare)
        if victims is None:
            self.pool.release(reused)
            return False
        for victim in victims:
            self._preempt(victim)
        fresh = self.pool.allocate(needed)
        assert fresh is not None, "the victims' blocks were miscounted"
        for digest in fresh_digests:
            self._coming.setdefault(digest, sequence)
        self._start(sequence, reused, fresh)
        return True

    def _start(self, sequence: TokenSequence, reused: list[int], fresh: list[int]) -> None:
        sequence.blocks = reused + fresh
        sequence.num_computed_tokens = len(reused) * self.limits.block_size
        sequence.num_finite_tokens = sequence.num_written_tokens = sequence.num_computed_tokens
        sequence.num_cached_blocks = len(reused)
        prompt = len(sequence.request.prompt)
        self._waiting.pop(sequence, cost=prompt - sequence.num_computed_tokens)
        if sequence.cached is None:
            sequence.cached = sequence.num_computed_tokens
            self.counters.prompt_tokens += prompt
            self.counters.cached_tokens += sequence.cached
        insort(self._running, sequence, key=_rank)

    def _find_victims(self, needed: int, spare: Sequence[TokenSequence]) -> list[TokenSequence] | None:
        """Which of the spare requests to preempt so that one more, which needs so many blocks, can run.

        None if it cannot. A block for each running request is left over, or the new one is soon preempted.
        """
        victims: list[TokenSequence] = []
        given: Counter[int] = Counter()
        free, places = self.pool.free, len(self._running)
        while places >= self._places or free < needed + places:
            if len(victims) == len(spare):
                return None
            places -= 1
            victims.append(spare[len(victims)])
            given.update(victims[-1].blocks)
            free += sum(given[block] == self.pool.ref_count(block) for block in victims[-1].blocks)
        return victims

    def _last_coming(self, digests: Iterable[bytes], sequence: TokenSequence) -> bytes | None:
        """The last of the next blocks that others are about to compute; None if none of them is."""
        last = None
        for digest in digests:
            if not self._is_coming(digest, sequence):
                break
            last = digest
        return last

    def _is_coming(self, digest: bytes | None, sequence: TokenSequence) -> bool:
        """Whether a request that comes first in the order is about to compute this block."""
        if digest is None:
            return False
        owner = self._coming.get(digest)
        return owner is not None and owner.request.priority <= sequence.request.priority

    # Giving back

    def _preempt(self, sequence: TokenSequence) -> None:
        self.counters.preemptions += 1
        self._running.remove(sequence)
        self._release(sequence)
        self._waiting.requeue(sequence)

    def _release(self, sequence: TokenSequence) -> None:
        self._retract(sequence, sequence.digests[sequence.num_cached_blocks :])
        if sequence.num_written_tokens > sequence.num_finite_tokens:
            size = self.limits.block_size
            # Nobody else has these: only what is proven is shared.
            self.dirty += sequence.blocks[
                sequence.num_finite_tokens // size : -(-sequence.num_written_tokens // size)
            ]
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed_tokens = sequence.num_finite_tokens = sequence.num_written_tokens = 0
        sequence.num_cached_blocks = 0

    def _retract(self, sequence: TokenSequence, digests: Iterable[bytes]) -> None:
        """Nobody has to wait for these blocks of this sequence any longer."""
        for digest in digests:
            if self._coming.get(digest) is sequence:
                del self._coming[digest]


def _rank(sequence: TokenSequence) -> tuple[int, int]:
    return sequence.request.priority, admission_order_of(sequence)
