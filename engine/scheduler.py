"""Who runs next: admission by memory, chunked prefill beside decode, preemption.

Engine thread. Pure bookkeeping: no torch, no clock, no messages. The order of acceptance is the only
priority, and it is what rules out starvation: the oldest job always moves, because it may take the
memory of every younger one. A job that is preempted loses its blocks, keeps its tokens, and recomputes
(its published blocks are usually still there to be found again).

    waiting --admit--> running --remove--> (ended)
       ^                  |
       +-----preempt------+
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from engine.cache import BlockPool
from engine.config import Limits
from engine.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens `start` .. `start + count` of one sequence, to be computed in this step."""

    sequence: TokenSequence
    start: int
    count: int

    @property
    def draws(self) -> bool:
        """The chunk reaches the end of the sequence, so that the step yields its next token."""
        return self.start + self.count == len(self.sequence.tokens)


Plan = tuple[Chunk, ...]
"""The chunks of one step, at most one a sequence: those of one token first, then longer ones."""

CALM_STEPS = 100
"""So many steps without memory trouble, and a budget that was halved is doubled again."""


class Scheduler:
    """Holds every accepted sequence that has not ended, and the blocks of those that run."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.kv_blocks)
        self._waiting: list[TokenSequence] = []  # both lists: oldest first
        self._running: list[TokenSequence] = []
        self._budget = limits.token_budget
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
        insort(self._waiting, sequence, key=_seniority)

    def prepare(self, sequence: TokenSequence) -> list[bytes]:
        """The digests of the blocks that might be found in the cache; the slow part of admission."""
        size = self.limits.block_size
        # The last token is always computed: its logits are what the next one is drawn from.
        return sequence.block_digests((len(sequence.tokens) - 1) // size, size)

    def remove(self, sequence: TokenSequence) -> None:
        """Ends a sequence, wherever it is, and gives its blocks back."""
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._release(sequence)

    def plan(self) -> Plan:
        """Chooses the next step. Not empty while there are sequences.

        The order is: one token for every job that is generating, then prompts that were begun, then
        new jobs. So a long prompt never holds up a job that is generating, and `token_budget >=
        max_running` leaves at least one token for whoever comes last.
        """
        left = self._budget
        chunks: list[Chunk] = []
        for sequence in list(self._running):
            if sequence.remaining == 1 and self._grow(sequence):
                chunks.append(Chunk(sequence, sequence.computed, 1))
                left -= 1
        for sequence in self._running:
            if sequence.remaining > 1 and left > 0:
                left -= self._add_prefill(chunks, sequence, left)
        while left > 0 and self._waiting and len(self._running) < self.limits.max_running:
            sequence = self._waiting[0]
            if not self._admit(sequence):
                break
            left -= self._add_prefill(chunks, sequence, left)
        chunks.sort(key=_is_long)
        return tuple(chunks)

    def advance(self, plan: Plan) -> None:
        """Takes note that the step was computed: its full blocks may be reused from now on."""
        for chunk in plan:
            sequence = chunk.sequence
            sequence.computed = chunk.start + chunk.count
            full = sequence.computed // self.limits.block_size
            if full > sequence.published:
                digests = sequence.block_digests(full, self.limits.block_size)
                for index in range(sequence.published, full):
                    self.pool.publish(sequence.blocks[index], digests[index])
                sequence.published = full
        self._calm += 1
        if self._calm >= CALM_STEPS and self._budget < self.limits.token_budget:
            self._budget = min(self._budget * 2, self.limits.token_budget)
            self._calm = 0

    def shrink(self) -> bool:
        """Halves the budget after a step that ran out of memory; False if it cannot be smaller."""
        self._calm = 0
        smaller = max(self._budget // 2, self.limits.max_running)
        shrunk = smaller < self._budget
        self._budget = smaller
        return shrunk

    def check_integrity(self) -> None:
        """Asserts that no block is lost and none is held twice by mistake."""
        self.pool.check_integrity(sequence.blocks for sequence in self.sequences())
        assert all(not sequence.blocks for sequence in self._waiting), "a waiting job holds blocks"

    def _add_prefill(self, chunks: list[Chunk], sequence: TokenSequence, left: int) -> int:
        count = min(sequence.remaining, left)
        chunks.append(Chunk(sequence, sequence.computed, count))
        return count

    def _grow(self, sequence: TokenSequence) -> bool:
        """Makes room for the next token, at the cost of the youngest; False if that is itself."""
        while len(sequence.blocks) < self.limits.blocks_for(len(sequence.tokens)):
            if not sequence.blocks:
                return False  # preempted by an older one, earlier in this plan
            fresh = self.pool.allocate(1)
            if fresh is None:
                self._preempt(self._running[-1])
            else:
                sequence.blocks += fresh
        return True

    def _admit(self, sequence: TokenSequence) -> bool:
        """Moves a sequence from waiting to running if all its tokens so far find room.

        A block for each running job is left over: without it the new one would soon be preempted.
        """
        size = self.limits.block_size
        reused = self.pool.find(self.prepare(sequence))
        self.pool.hold(reused)
        needed = self.limits.blocks_for(len(sequence.tokens)) - len(reused)
        fresh = self.pool.allocate(needed) if self.pool.free >= needed + len(self._running) else None
        if fresh is None:
            self.pool.release(reused)
            return False
        sequence.blocks = reused + fresh
        sequence.computed = len(reused) * size
        sequence.published = len(reused)
        if sequence.cached is None:
            sequence.cached = sequence.computed
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=_seniority)
        return True

    def _preempt(self, sequence: TokenSequence) -> None:
        self._running.remove(sequence)
        self._release(sequence)
        insort(self._waiting, sequence, key=_seniority)

    def _release(self, sequence: TokenSequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0
        sequence.published = 0


def _seniority(sequence: TokenSequence) -> int:
    return sequence.arrival


def _is_long(chunk: Chunk) -> bool:
    return chunk.count > 1
