"""`ContiguousKVCache`: contiguous copies of the keys and values of decoding requests, for the CPU.

Engine thread. On a CPU, gathering the blocks of all requests for every layer and token costs more than
attention itself. A buffer has a row for each of several requests of similar length; a row is copied from the
blocks when its request joins, and grows by a token a step. The blocks stay authoritative: a lost row, or a
lack of room, only costs time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.kv.kv_cache import KVCache
from engine.scheduling.scheduler import ScheduledChunk
from engine.scheduling.sequence import TokenSequence

MIN_CAPACITY = 128
"""Tokens of a row in the smallest buffer; each larger one has twice as many."""


@dataclass(slots=True)
class ContiguousBuffer:
    """Rows of one capacity. Beyond its request's tokens a row is zero."""

    capacity: int
    keys: list[Tensor] = field(default_factory=list)
    """Per layer `[rows, capacity, heads, size]`, as are the values."""
    values: list[Tensor] = field(default_factory=list)
    requests: list[TokenSequence] = field(default_factory=list)
    """The requests of the first rows; further rows are free."""
    filled: list[int] = field(default_factory=list)
    """Number of tokens in each of these rows."""

    @property
    def rows(self) -> int:
        return len(self.keys[0]) if self.keys else 0

    def remove(self, row: int) -> None:
        """Frees a row; the last row moves into the gap."""
        request, filled = self.requests.pop(), self.filled.pop()
        last = len(self.requests)
        if row != last:
            self.requests[row], self.filled[row] = request, filled
            for tensor in (*self.keys, *self.values):
                tensor[row] = tensor[last]

    def resize(self, rows: int, kv_cache: KVCache) -> None:
        """Reallocates with this number of rows, and copies those in use."""
        kept = len(self.requests)
        for tensors, templates in ((self.keys, kv_cache.keys), (self.values, kv_cache.values)):
            old = list(tensors)
            tensors.clear()
            for layer, template in enumerate(templates):
                fresh = template.new_empty(rows, self.capacity, *template.shape[1:])
                if kept:
                    fresh[:kept] = old[layer][:kept]
                tensors.append(fresh)

    def add(self, chunk: ScheduledChunk, kv_cache: KVCache) -> None:
        """Adds a row with the request's computed tokens, copied from its blocks."""
        row, length = len(self.requests), chunk.start
        used = chunk.sequence.blocks[: -(-length // kv_cache.block_size)]
        blocks = torch.tensor(used, dtype=torch.long, device=kv_cache.device)
        for tensors, sources in ((self.keys, kv_cache.keys), (self.values, kv_cache.values)):
            for tensor, source in zip(tensors, sources, strict=True):
                by_block = source.view(-1, kv_cache.block_size, *source.shape[1:])
                tensor[row, :length] = by_block.index_select(0, blocks).flatten(0, 1)[:length]
                tensor[row, length:] = 0
        self.requests.append(chunk.sequence)
        self.filled.append(length)


class ContiguousKVCache:
    """All buffers, by row capacity; together at most as many tokens as the KV cache has."""

    def __init__(self, kv_cache: KVCache) -> None:
        self._kv_cache = kv_cache
        self._buffers: dict[int, ContiguousBuffer] = {}
        self._max_tokens = len(kv_cache.keys[0])

    def arrange(
        self, chunks: Sequence[ScheduledChunk]
    ) -> tuple[list[tuple[ContiguousBuffer, list[ScheduledChunk]]], list[ScheduledChunk]]:
        """Finds a row for each of these one-token chunks, and counts the token as filled.

        Returns the buffers in use, each with its chunks in row order, and the chunks without a row.
        """
        chunk_of = {chunk.sequence: chunk for chunk in chunks}
        self._remove_all_but(chunk_of)
        placed = {request for buffer in self._buffers.values() for request in buffer.requests}
        arrivals: dict[int, list[ScheduledChunk]] = {}
        for chunk in chunks:
            if chunk.sequence not in placed:
                arrivals.setdefault(_capacity_for(chunk.start), []).append(chunk)
        gathered: list[ScheduledChunk] = []
        for capacity, group in arrivals.items():
            gathered += group[self._add_rows(capacity, group) :]
        in_use = []
        for buffer in self._buffers.values():
            if buffer.requests:
                buffer.filled = [filled + 1 for filled in buffer.filled]
                in_use.append((buffer, [chunk_of[request] for request in buffer.requests]))
        return in_use, gathered

    def _remove_all_but(self, chunk_of: dict[TokenSequence, ScheduledChunk]) -> None:
        for buffer in self._buffers.values():
            starts = [chunk.start if (chunk := chunk_of.get(request)) else -1 for request in buffer.requests]
            # After a failed step or a preemption, a row's token count differs from the request's.
            if starts == buffer.filled and (not starts or _fits(max(starts), buffer.capacity)):
                continue
            for row in reversed(range(len(starts))):
                if starts[row] != buffer.filled[row] or not _fits(starts[row], buffer.capacity):
                    buffer.remove(row)

    def _add_rows(self, capacity: int, chunks: list[ScheduledChunk]) -> int:
        """Adds rows for as many of the chunks as there is room for; returns their number."""
        buffer = self._buffers.setdefault(capacity, ContiguousBuffer(capacity))
        wanted = len(buffer.requests) + len(chunks)
        if wanted > buffer.rows:
            others = sum(s.rows * s.capacity for s in self._buffers.values() if s is not buffer)
            if others + _next_power_of_two(wanted) * capacity > self._max_tokens:
                self._drop_unused(buffer)
                others = sum(s.rows * s.capacity for s in self._buffers.values() if s is not buffer)
            rows = min(_next_power_of_two(wanted), (self._max_tokens - others) // capacity)
            if rows > buffer.rows:
                buffer.resize(rows, self._kv_cache)
        added = min(len(chunks), buffer.rows - len(buffer.requests))
        for chunk in chunks[:added]:
            buffer.add(chunk, self._kv_cache)
        return added

    def _drop_unused(self, keep: ContiguousBuffer) -> None:
        self._buffers = {
            capacity: buffer
            for capacity, buffer in self._buffers.items()
            if buffer.requests or buffer is keep
        }


def _fits(length: int, capacity: int) -> bool:
    """Whether a row has room for the next token and a zero after it, for attention sinks."""
    return length + 2 <= capacity


def _capacity_for(length: int) -> int:
    """The smallest capacity with some room to grow, so that the request does not move soon."""
    capacity = MIN_CAPACITY
    while not _fits(length + MIN_CAPACITY // 4, capacity):
        capacity *= 2
    return capacity


def _next_power_of_two(rows: int) -> int:
    """Rounds up, so that requests that arrive one by one do not cause a reallocation each."""
    return 1 << (rows - 1).bit_length()
