"""`Scheduler`: admission by free KV blocks, chunked prefill beside decode, preemption, priorities.

Engine thread; no torch, no clock, no messages. A preempted request recomputes its tokens later.

    waiting --admit--> running --remove--> (ended)
       ^                  |
       +-----preempt------+

Requests are ordered by (priority, first admission); those never admitted follow in the order of
`waiting_queue`. Guarantees:

- The first request in this order is in every plan, as it may preempt all others. Exceptions: its last token
  is in flight; it was preempted with a token in flight (one step); or it was preempted for a key that ran
  nothing, until there is room again, when it is admitted first.
- A request is preempted only for one before it or, while its key runs other requests, for one of a key that
  runs nothing. It is admitted again before any request that was first admitted later.
- So a request ends after finitely many steps, unless requests of better priority or new keys keep coming.
- Requests from `IDLE_PRIORITY` on are in a plan only if nothing else can be. Meanwhile they keep their blocks
  as long as no other request needs them.

A request whose next block another one is about to compute waits for it: many requests with one prompt cost
one prefill. It waits only for running requests of its own or a better priority, which always advance.

A request that generates may get a draft (`drafts`): guessed tokens behind its last one, computed in the same
step. Those that are then sampled are accepted; keys and values of the others are overwritten by later steps.

A step has tokens of one picture at most. Some models compute a picture whole (`whole_images`: Gemma), because
its tokens attend to each other in both directions: a step with such a picture may exceed its token budget, by
less than the picture's tokens. Where prompts are computed whole (`whole_prompts`), a step exceeds its budget
by less than one prompt; output that is computed again is a token a step, as it first was.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from engine.config import SchedulerLimits
from engine.request import IDLE_PRIORITY, PromptImage
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.drafts import DraftPlanner
from engine.scheduling.sequence import TokenSequence
from engine.scheduling.waiting_queue import FairWaitingQueue, admission_order_of


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """The tokens `start` .. `start + count` of one sequence, to be computed in this step."""

    sequence: TokenSequence
    start: int
    count: int
    draft: tuple[int, ...] = ()
    """The last tokens of the chunk, if they are guessed; the one before them is the sequence's last."""

    @property
    def known(self) -> int:
        """The end of the tokens that are not guessed."""
        return self.start + self.count - len(self.draft)

    @property
    def token_ids(self) -> list[int]:
        """Without a token in flight."""
        return [*self.sequence.tokens[self.start : self.known], *self.draft]

    @property
    def samples_token(self) -> bool:
        """The chunk reaches the end of the sequence, so the step samples its next token."""
        return self.known == self.sequence.length


@dataclass(frozen=True, slots=True)
class ComputedBlocks:
    """Progress of one sequence in a step: keys and values of its first `end` tokens are in `blocks`."""

    sequence: TokenSequence
    blocks: list[int]
    """The list object of the sequence; if the sequence now has another one, it was preempted or has ended."""
    end: int


SchedulerOutput = tuple[ScheduledChunk, ...]
"""The chunks of one step, at most one per sequence: those of one token first, then longer ones."""

IDLE_SHARE = 16
"""Divides the token budget of steps of requests from `IDLE_PRIORITY` on: others may have to wait for one."""
CALM_STEPS = 100
"""After this many steps without `OutOfMemory`, a reduced token budget or request limit is doubled."""


@dataclass(slots=True)
class SchedulerCounters:
    computed_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """How many of the tokens that drafts guessed were then sampled."""


class ImageTurn:
    """Chooses the one picture that a step computes: the first in the order of requests.

    So the vision tower runs for one picture a step, and a request with pictures delays others by one picture
    at a time. The first request in the order is never the one that waits.
    """

    def __init__(self, *, whole_images: bool) -> None:
        self._whole_images = whole_images
        self._taken = False

    def clip(self, images: Sequence[PromptImage], start: int, count: int) -> int:
        """The length of a chunk of at most `count` tokens from `start` on, and takes the turn if it needs it.

        It may be 0 if another picture has the turn. It is above `count` only for a picture that is computed
        whole and begins at `start`.
        """
        end = start + count
        for image in images:
            if image.end <= start or image.start >= end:
                continue
            is_cut = self._whole_images and image.end > end
            if self._taken or (is_cut and image.start > start):
                return max(image.start - start, 0)
            self._taken = True
            if is_cut:
                end = image.end
        return end - start


def blocks_outside_images(images: Sequence[PromptImage], blocks: int, block_size: int) -> int:
    """The most leading blocks of a prompt, up to `blocks`, that do not end within a picture."""
    for image in reversed(images):
        if image.start < blocks * block_size < image.end:
            blocks = image.start // block_size
    return blocks


class Scheduler:
    def __init__(
        self,
        limits: SchedulerLimits,
        tally: SchedulerCounters | None = None,
        drafts: DraftPlanner | None = None,
    ) -> None:
        self.limits = limits
        self._drafts = drafts
        self.counters = tally or SchedulerCounters()
        self.pool = BlockPool(limits.kv_blocks, limits.prefix_states)
        self.dirty: list[int] = []
        """Freed blocks whose content is not known to be finite. They must be zeroed before the next step: a
        NaN spoils attention even where it is masked."""
        self.admitted: list[TokenSequence] = []
        """Sequences that plans have admitted; who runs the plans takes them."""
        self._waiting = FairWaitingQueue()
        self._running: list[TokenSequence] = []  # by `_rank`
        self._pending_blocks: dict[bytes, TokenSequence] = {}
        """By digest: the running sequence that is about to compute the block."""
        self._budget = limits.token_budget
        self._max_running = limits.max_running
        """Current maximum of running requests; below `max_running` after a step ran out of memory."""
        self._calm_steps = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    def sequences(self) -> Iterator[TokenSequence]:
        yield from self._running
        yield from self._waiting

    def add(self, sequence: TokenSequence) -> None:
        """Queues a sequence, which must fit into an empty pool with its whole output."""
        self._waiting.push(sequence)

    def prepare(self, sequence: TokenSequence) -> list[bytes]:
        """The digests of the blocks that may be reused from the cache; the slow part of admission."""
        size = self.limits.block_size
        reusable = sequence.max_reusable_tokens if self.limits.shares_prefixes else 0
        return sequence.block_digests(reusable // size, size)

    def remove(self, sequence: TokenSequence) -> None:
        """Removes a sequence that has ended, running or waiting, and releases its blocks."""
        runs = bool(sequence.blocks)
        if runs:
            self._running.remove(sequence)
            self._release(sequence)
        self._waiting.remove(sequence, waiting=not runs)

    def plan(self) -> SchedulerOutput:
        """Chooses the chunks of the next step. Not empty if any sequence has no token in flight.

        First, waiting requests with a better priority, or of a key that runs nothing, may preempt running
        ones. Then come one token for each decoding request, prompts in progress, and new requests, so that a
        long prompt never delays decoding. Every budget leaves at least one token for the first request in
        the order: that of a step is at least `max_running`, of an idle one more than what is running.
        """
        self._admit_urgent()
        self._admit_unserved()
        plan = self._plan(IDLE_PRIORITY, self._budget)
        if not plan and not self.idle:
            plan = self._plan(2**31, max(self._budget // IDLE_SHARE, len(self._running) + 1))
        for chunk in plan:
            sequence = chunk.sequence
            sequence.num_written_tokens = max(sequence.num_written_tokens, chunk.start + chunk.count)
        return plan

    def _plan(self, priority: int, budget: int) -> SchedulerOutput:
        """The chunks of requests with a better priority than this, of at most `budget` tokens."""
        size = self.limits.block_size
        running = self._running[: bisect_left(self._running, priority, key=_priority)]
        singles: list[ScheduledChunk] = []
        for sequence in running:
            length = sequence.length
            if sequence.ends_in_flight or sequence.is_prefill:
                continue
            if length <= len(sequence.blocks) * size or self._grow(sequence):
                singles.append(ScheduledChunk(sequence, length - 1, 1))
        drafted = [] if self._drafts is None else self._draft(self._drafts, singles, budget)
        remaining = budget - len(singles) - sum(chunk.count for chunk in drafted)
        prompts: list[ScheduledChunk] = []
        turn = ImageTurn(whole_images=self.limits.whole_images)
        for sequence in running:
            if remaining > 0 and sequence.is_prefill and sequence.blocks:
                remaining -= self._add_prefill(prompts, sequence, remaining, turn)
        while remaining > 0 and self._waiting and len(self._running) < self._max_running:
            sequence = self._waiting.peek()
            if sequence.request.priority >= priority or not self._admit(sequence):
                break
            remaining -= self._add_prefill(prompts, sequence, remaining, turn)
        singles += [chunk for chunk in prompts if chunk.count == 1]
        return (*singles, *drafted, *(chunk for chunk in prompts if chunk.count > 1))

    def _draft(
        self, drafts: DraftPlanner, singles: list[ScheduledChunk], budget: int
    ) -> list[ScheduledChunk]:
        """Takes those of `singles` that get a draft; half of what the budget leaves is for prompts.

        A draft has free blocks only: no request is preempted for one.
        """
        spare = (budget - len(singles)) // 2
        drafted, size = [], self.limits.block_size
        for sequence, tokens in drafts.plan([chunk.sequence for chunk in singles], spare).items():
            missing = self.limits.blocks_for(sequence.length + len(tokens)) - len(sequence.blocks)
            sequence.blocks += self.pool.allocate(missing) or () if missing > 0 else ()
            fits = tokens[: len(sequence.blocks) * size - sequence.length]
            if fits:
                drafted.append(ScheduledChunk(sequence, sequence.length - 1, 1 + len(fits), tuple(fits)))
        drafting = {chunk.sequence for chunk in drafted}
        singles[:] = [chunk for chunk in singles if chunk.sequence not in drafting]
        return drafted

    def advance(self, plan: SchedulerOutput) -> list[ComputedBlocks]:
        """Records that the step was computed. Returns, for each chunk, the argument for `confirm`."""
        progress = []
        for chunk in plan:
            sequence = chunk.sequence
            sequence.num_computed_tokens = chunk.known
            progress.append(ComputedBlocks(sequence, sequence.blocks, sequence.num_computed_tokens))
            if chunk.samples_token:
                self._waiting.charge(sequence)
            self.counters.drafts += bool(chunk.draft)
            self.counters.draft_tokens += len(chunk.draft)
        self.counters.computed_tokens += sum(chunk.count for chunk in plan)
        self._calm_steps += 1
        if self._calm_steps >= CALM_STEPS:
            self._budget = min(self._budget * 2, self.limits.token_budget)
            self._max_running = min(self._max_running * 2, self.limits.max_running)
            self._calm_steps = 0
        return progress

    def accept(self, progress: ComputedBlocks, count: int, *, rest_failed: bool) -> None:
        """Confirms a step that sampled a token, after which `count` tokens of the draft were accepted.

        All of them have been appended. The request is preempted if the rest of the draft may not be finite.
        """
        sequence, end = progress.sequence, progress.end + count
        if sequence.blocks is progress.blocks and count:
            sequence.num_computed_tokens = end
            self.counters.accepted_tokens += count
            self._waiting.charge(sequence, count)
        self.confirm(replace(progress, end=end) if count else progress)
        if rest_failed:
            self._preempt(sequence)
        elif self._drafts is not None:
            sequence.num_written_tokens = end  # the rest of the draft is finite, too

    def confirm(self, progress: ComputedBlocks) -> None:
        """Records that the computed keys and values are finite, and caches the full blocks.

        Finite logits prove it for all earlier tokens, as attention propagates NaN. Without effect if the
        sequence has released these blocks since.
        """
        sequence = progress.sequence
        if sequence.blocks is not progress.blocks:
            return
        sequence.num_finite_tokens = progress.end
        full = progress.end // self.limits.block_size
        if full > sequence.num_cached_blocks and self.limits.shares_prefixes:
            self._cache_blocks(sequence, full)

    def halve_budget(self) -> bool:
        """Halves the token budget after a step that ran out of memory; False if it is at its minimum."""
        self._calm_steps = 0
        smaller = max(self._budget // 2, self.limits.max_running)
        shrunk = smaller < self._budget
        self._budget = smaller
        return shrunk

    def reduce_running(self, plan: SchedulerOutput) -> bool:
        """Preempts the last request and, for `CALM_STEPS`, admits no other; False if it ran alone."""
        if len(self._running) < 2:
            return False
        self._calm_steps = 0
        self._preempt(self.last_of(plan))
        self._max_running = len(self._running)
        return True

    def last_of(self, plan: SchedulerOutput) -> TokenSequence:
        return max((chunk.sequence for chunk in plan), key=_rank)

    def check_integrity(self) -> None:
        """Asserts that block references, queues and orders are consistent."""
        self.pool.check_integrity(sequence.blocks for sequence in self.sequences())
        assert len(self._waiting) == sum(1 for _ in self._waiting), "the waiting requests are miscounted"
        assert all(not sequence.blocks for sequence in self._waiting), "a waiting request holds blocks"
        assert all(sequence.blocks for sequence in self._running), "a running request holds no blocks"
        assert self._running == sorted(self._running, key=_rank), "the running requests are out of order"
        pending = set(self._pending_blocks.values())
        assert pending <= set(self._running), "a pending block belongs to a request that does not run"

    def _add_prefill(
        self, chunks: list[ScheduledChunk], sequence: TokenSequence, remaining: int, turn: ImageTurn
    ) -> int:
        """Appends the sequence's next chunk; returns its length, which may be 0.

        It has at most `remaining` tokens, unless prompts are computed whole.
        """
        start, longest = sequence.num_computed_tokens, min(sequence.remaining, remaining)
        if self.limits.whole_prompts:
            prompt = len(sequence.request.prompt) - sequence.request.output_offset
            longest = max(prompt - start, 1)
        count = turn.clip(sequence.request.images, start, longest)
        if count:
            chunks.append(ScheduledChunk(sequence, start, count))
        return count

    # Growth

    def _grow(self, sequence: TokenSequence) -> bool:
        """Allocates a block for the next token by preempting from the end; False if it preempts itself."""
        size = self.limits.block_size
        while len(sequence.blocks) * size < sequence.length:
            if not sequence.blocks:
                return False  # preempted in this plan
            fresh = self.pool.allocate(1)
            if fresh is None:
                self._preempt(self._running[-1])
            else:
                sequence.blocks += fresh
        return True

    def _cache_blocks(self, sequence: TokenSequence, full: int) -> None:
        digests = sequence.block_digests(full, self.limits.block_size)
        for index in range(sequence.num_cached_blocks, full):
            self.pool.cache(sequence.blocks[index], digests[index])
        self._drop_pending(sequence, digests[sequence.num_cached_blocks : full])
        sequence.num_cached_blocks = full

    # Admission

    def _admit_urgent(self) -> None:
        """Admits waiting requests that have a better priority than running ones, preempting those."""
        while self._waiting and self._running:
            priority = self._waiting.best_priority()
            worse = takewhile(lambda other: other.request.priority > priority, reversed(self._running))  # noqa: B023
            spare = list(worse)
            if not spare or not self._admit(self._waiting.peek(), spare):
                return

    def _admit_unserved(self) -> None:
        """Admits the next request of a key that runs nothing, by preempting one of a key that runs several.

        Preempts only keys with more served tokens, and admits one request a step. So long outputs of one key
        do not delay another key until they end.
        """
        if not self._waiting or not self._running:
            return
        running = Counter(sequence.request.fairness_key for sequence in self._running)
        sequence = self._waiting.peek_other_keys(running)
        if sequence is None:
            return
        if self._find_victims(self.limits.blocks_for(len(sequence.tokens)), ()) is not None:
            return  # it fits without preemption, even if nothing of its prompt is cached
        spare: list[TokenSequence] = []
        for other in reversed(self._running):
            if running[other.request.fairness_key] > 1 and self._waiting.was_served_less(sequence, other):
                running[other.request.fairness_key] -= 1
                spare.append(other)
        if spare:
            self._admit(sequence, spare)

    def _admit(self, sequence: TokenSequence, spare: Sequence[TokenSequence] = ()) -> bool:
        """Runs a waiting sequence if its tokens have blocks; preempts as few of `spare` as needed."""
        if sequence.in_flight or self._is_pending(sequence.awaited_digest, sequence):
            return False
        digests = self.prepare(sequence)
        cached_blocks = self.pool.lookup(digests)
        if self.limits.whole_images:
            size, images = self.limits.block_size, sequence.request.images
            del cached_blocks[blocks_outside_images(images, len(cached_blocks), size) :]
        fresh_digests = digests[len(cached_blocks) :]
        if self.limits.prefix_states is not None:
            del fresh_digests[:-1]  # no state is kept after the others
        pending = list(takewhile(lambda digest: self._is_pending(digest, sequence), fresh_digests))
        sequence.awaited_digest = pending[-1] if pending else None
        if pending:
            return False
        self.pool.acquire(cached_blocks)
        needed = self.limits.blocks_for(len(sequence.tokens)) - len(cached_blocks)
        victims = self._find_victims(needed, spare)
        if victims is None:
            self.pool.release(cached_blocks)
            return False
        for victim in victims:
            self._preempt(victim)
        fresh = self.pool.allocate(needed)
        assert fresh is not None, "the victims' blocks were miscounted"
        for digest in fresh_digests:
            self._pending_blocks.setdefault(digest, sequence)
        self._start(sequence, cached_blocks, fresh)
        return True

    def _start(self, sequence: TokenSequence, cached_blocks: list[int], fresh: list[int]) -> None:
        sequence.blocks = cached_blocks + fresh
        sequence.num_computed_tokens = len(cached_blocks) * self.limits.block_size
        sequence.num_finite_tokens = sequence.num_written_tokens = sequence.num_computed_tokens
        sequence.num_cached_blocks = len(cached_blocks)
        prompt = len(sequence.request.prompt)
        self._waiting.pop(sequence, cost=prompt - sequence.num_computed_tokens)
        if sequence.cached is None:
            sequence.cached = sequence.num_computed_tokens
            self.counters.prompt_tokens += prompt
            self.counters.cached_tokens += sequence.cached
            self.admitted.append(sequence)
        insort(self._running, sequence, key=_rank)

    def _find_victims(self, needed: int, spare: Sequence[TokenSequence]) -> list[TokenSequence] | None:
        """The `spare` requests to preempt for one that needs `needed` blocks; None if too few."""
        # Leaves one free block per running request, or the new request would soon be preempted.
        victims: list[TokenSequence] = []
        released: Counter[int] = Counter()
        free, num_running = self.pool.free, len(self._running)
        while num_running >= self._max_running or free < needed + num_running:
            if len(victims) == len(spare):
                return None
            num_running -= 1
            victims.append(spare[len(victims)])
            released.update(victims[-1].blocks)
            free += sum(released[block] == self.pool.ref_count(block) for block in victims[-1].blocks)
        return victims

    def _is_pending(self, digest: bytes | None, sequence: TokenSequence) -> bool:
        """Whether a running request of the same or a better priority is about to compute this block."""
        owner = None if digest is None else self._pending_blocks.get(digest)
        return owner is not None and owner.request.priority <= sequence.request.priority

    # Release

    def _preempt(self, sequence: TokenSequence) -> None:
        self.counters.preemptions += 1
        sequence.num_preemptions += 1
        self._running.remove(sequence)
        self._release(sequence)
        self._waiting.requeue(sequence)

    def _release(self, sequence: TokenSequence) -> None:
        self._drop_pending(sequence, sequence.digests[sequence.num_cached_blocks :])
        if sequence.num_written_tokens > sequence.num_finite_tokens:
            size = self.limits.block_size
            # Not shared with other requests: only blocks known to be finite are cached.
            self.dirty += sequence.blocks[
                sequence.num_finite_tokens // size : -(-sequence.num_written_tokens // size)
            ]
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed_tokens = sequence.num_finite_tokens = sequence.num_written_tokens = 0
        sequence.num_cached_blocks = 0

    def _drop_pending(self, sequence: TokenSequence, digests: Iterable[bytes]) -> None:
        for digest in digests:
            if self._pending_blocks.get(digest) is sequence:
                del self._pending_blocks[digest]


def _priority(sequence: TokenSequence) -> int:
    return sequence.request.priority


def _rank(sequence: TokenSequence) -> tuple[int, int]:
    return sequence.request.priority, admission_order_of(sequence)
