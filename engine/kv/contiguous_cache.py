"""Keys and values of the requests that generate, laid side by side so that a step reads them in place.

Engine thread; on the CPU, where to gather the blocks of all requests anew for every layer of every token
costs more than to attend to them. A shelf holds requests of about one length, a row each; a row is copied
from the blocks when its request joins, and grows with it by a token a step. The blocks stay the truth: a
row that is lost, or for which there is no room, costs time and nothing else. Ignorant of what is attended
to and how.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.kv.kv_cache import KVCache
from engine.scheduling.scheduler import ScheduledChunk
from engine.scheduling.sequence import TokenSequence

SMALLEST = 128
"""Tokens of the shortest rows; each further shelf's rows are twice as long."""


@dataclass(slots=True)
class ContiguousBuffer:
    """Rows of one capacity. Beyond its request's tokens a row is zero."""

    capacity: int
    keys: list[Tensor] = field(default_factory=list)
    """Per layer `[rows, capacity, heads, size]`, as are the values."""
    values: list[Tensor] = field(default_factory=list)
    requests: list[TokenSequence] = field(default_factory=list)
    """Who has the first rows; the others are spare."""
    filled: list[int] = field(default_factory=list)
    """How many tokens each of these rows has."""

    @property
    def rows(self) -> int:
        return len(self.keys[0]) if self.keys else 0

    def remove(self, row: int) -> None:
        """The last row takes the place of the one that goes."""
        request, filled = self.requests.pop(), self.filled.pop()
        last = len(self.requests)
        if row != last:
            self.requests[row], self.filled[row] = request, filled
            for tensor in (*self.keys, *self.values):
                tensor[row] = tensor[last]

    def resize(self, rows: int, store: KVCache) -> None:
        """Makes room for so many rows, and keeps those that are taken."""
        kept = len(self.requests)
        for tensors, likes in ((self.keys, store.keys), (self.values, store.values)):
            old = list(tensors)
            tensors.clear()
            for layer, like in enumerate(likes):
                fresh = like.new_empty(rows, self.capacity, *like.shape[1:])
                if kept:
                    fresh[:kept] = old[layer][:kept]
                tensors.append(fresh)

    def add(self, chunk: ScheduledChunk, store: KVCache) -> None:
        """Copies what the request has so far out of its blocks."""
        row, held = len(self.requests), chunk.start
        used = chunk.sequence.blocks[: -(-held // store.block_size)]
        blocks = torch.tensor(used, dtype=torch.long, device=store.device)
        for tensors, sources in ((self.keys, store.keys), (self.values, store.values)):
            for tensor, source in zip(tensors, sources, strict=True):
                by_block = source.view(-1, store.block_size, *source.shape[1:])
                tensor[row, :held] = by_block.index_select(0, blocks).flatten(0, 1)[:held]
                tensor[row, held:] = 0
        self.requests.append(chunk.sequence)
        self.filled.append(held)


class ContiguousKVCache:
    """All shelves. They hold at most as many tokens as the store does."""

    def __init__(self, store: KVCache) -> None:
        self._store = store
        self._shelves: dict[int, ContiguousBuffer] = {}
        self._room = len(store.keys[0])

    def arrange(
        self, chunks: Sequence[ScheduledChunk]
    ) -> tuple[list[tuple[ContiguousBuffer, list[ScheduledChunk]]], list[ScheduledChunk]]:
        """Finds a row for each of these chunks, which have one token each, and counts that token in.

        Gives the shelves that are in use with the chunks in the order of their rows, and the chunks
        for which there is no room.
        """
        of = {chunk.sequence: chunk for chunk in chunks}
        self._remove_all_but(of)
        seated = {request for shelf in self._shelves.values() for request in shelf.requests}
        coming: dict[int, list[ScheduledChunk]] = {}
        for chunk in chunks:
            if chunk.sequence not in seated:
                coming.setdefault(_capacity_for(chunk.start), []).append(chunk)
        left_out: list[ScheduledChunk] = []
        for capacity, group in coming.items():
            left_out += group[self._seat(capacity, group) :]
        in_use = []
        for shelf in self._shelves.values():
            if shelf.requests:
                shelf.filled = [filled + 1 for filled in shelf.filled]
                in_use.append((shelf, [of[request] for request in shelf.requests]))
        return in_use, left_out

    def _remove_all_but(self, of: dict[TokenSequence, ScheduledChunk]) -> None:
        for shelf in self._shelves.values():
            starts = [chunk.start if (chunk := of.get(request)) else -1 for request in shelf.requests]
            # A step that failed, or a request that began anew, leaves a row with other tokens in it.
            if starts == shelf.filled and (not starts or _fits(max(starts), shelf.capacity)):
                continue
            for row in reversed(range(len(starts))):
                if starts[row] != shelf.filled[row] or not _fits(starts[row], shelf.capacity):
                    shelf.remove(row)

    def _seat(self, capacity: int, chunks: list[ScheduledChunk]) -> int:
        """Gives rows to as many of the chunks as there is room for."""
        shelf = self._shelves.setdefault(capacity, ContiguousBuffer(capacity))
        wanted = len(shelf.requests) + len(chunks)
        if wanted > shelf.rows:
            others = sum(s.rows * s.capacity for s in self._shelves.values() if s is not shelf)
            if others + _rounded(wanted) * capacity > self._room:
                self._drop_unused(shelf)
                others = sum(s.rows * s.capacity for s in self._shelves.values() if s is not shelf)
            rows = min(_rounded(wanted), (self._room - others) // capacity)
            if rows > shelf.rows:
                shelf.resize(rows, self._store)
        seats = min(len(chunks), shelf.rows - len(shelf.requests))
        for chunk in chunks[:seats]:
            shelf.add(chunk, self._store)
        return seats

    def _drop_unused(self, but: ContiguousBuffer) -> None:
        self._shelves = {
            capacity: shelf for capacity, shelf in self._shelves.items() if shelf.requests or shelf is but
        }


def _fits(held: int, capacity: int) -> bool:
    """With the token that comes and, after it, a place that is zero."""
    return held + 2 <= capacity


def _capacity_for(held: int) -> int:
    """So that the request does not have to move soon."""
    capacity = SMALLEST
    while not _fits(held + SMALLEST // 4, capacity):
        capacity *= 2
    return capacity


def _rounded(rows: int) -> int:
    """Up to a power of two, so that requests which come one by one do not copy all others each time."""
    return 1 << (rows - 1).bit_length()
