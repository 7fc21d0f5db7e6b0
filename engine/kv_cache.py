"""The KV cache: tensors of all layers, contiguous copies for CPU decoding, size by free memory."""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.config import EngineConfig, ModelRefused
from engine.device_copies import to_device
from engine.scheduling.scheduler import ScheduledChunk


@dataclass(frozen=True, slots=True)
class LayerShape:
    heads: int
    key_size: int
    value_size: int

    @property
    def elements_per_token(self) -> int:
        return self.heads * (self.key_size + self.value_size)


class KVCache:
    """Per layer, keys and values as `[slots, heads, size]`; a block is `block_size` slots in a row.

    All memory is allocated at once, so that a lack of it shows while loading. Block 0 is the blank block,
    always zero. The block after the last one is the spare block, where padding rows of a step write.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        slots = (blocks + 2) * block_size
        self.block_size = block_size
        self.blocks = blocks
        self.spare_block = blocks + 1
        self.device = device
        self.keys = [
            torch.zeros(slots, shape.heads, shape.key_size, dtype=dtype, device=device) for shape in shapes
        ]
        self.values = [
            torch.zeros(slots, shape.heads, shape.value_size, dtype=dtype, device=device) for shape in shapes
        ]

    @property
    def capacity(self) -> int:
        return self.blocks * self.block_size

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        self.keys[layer].index_copy_(0, slots, key)
        self.values[layer].index_copy_(0, slots, value)

    def blocks_of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values as `[blocks, block_size, heads, size]`."""
        return self.by_block(self.keys[layer]), self.by_block(self.values[layer])

    def by_block(self, slots: Tensor) -> Tensor:
        # Without -1, which is ambiguous where a layer has no keys.
        return slots.view(len(slots) // self.block_size, self.block_size, *slots.shape[1:])

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zeroes the blocks: a masked NaN value still makes attention output NaN."""
        index = to_device(blocks, torch.long, self.device)
        for tensor in (*self.keys, *self.values):
            self.by_block(tensor).index_fill_(0, index, 0)


MIN_CAPACITY = 128
"""Tokens of a row in the smallest buffer; each larger one has twice as many."""


@dataclass(slots=True)
class ContiguousBuffer:
    """Rows of one capacity. Beyond its request's tokens a row is zero or has what a draft left there."""

    capacity: int
    keys: list[Tensor] = field(default_factory=list)
    """Per layer `[rows, capacity, heads, size]`, as are the values."""
    values: list[Tensor] = field(default_factory=list)
    chunks: list[ScheduledChunk] = field(default_factory=list)
    """For each row in use, the chunk whose keys and values were written last. Later rows are free."""
    blocks: list[list[int]] = field(default_factory=list)
    """The list object of each of these requests; one that has another now was preempted since."""

    @property
    def rows(self) -> int:
        return len(self.keys[0]) if self.keys else 0

    def remove(self, row: int) -> None:
        """Frees a row; the last row moves into the gap."""
        chunk, blocks = self.chunks.pop(), self.blocks.pop()
        last = len(self.chunks)
        if row != last:
            self.chunks[row], self.blocks[row] = chunk, blocks
            for tensor in (*self.keys, *self.values):
                tensor[row] = tensor[last]

    def resize(self, rows: int, kv_cache: KVCache) -> None:
        """Reallocates with this number of rows, and copies those in use."""
        in_use = len(self.chunks)
        for tensors, templates in ((self.keys, kv_cache.keys), (self.values, kv_cache.values)):
            old = list(tensors)
            tensors.clear()
            for layer, template in enumerate(templates):
                fresh = template.new_empty(rows, self.capacity, *template.shape[1:])
                if in_use:
                    fresh[:in_use] = old[layer][:in_use]
                tensors.append(fresh)

    def add(self, chunk: ScheduledChunk, kv_cache: KVCache) -> None:
        """Adds a row with the request's computed tokens, copied from its blocks."""
        row, length = len(self.chunks), chunk.start
        used = chunk.sequence.blocks[: -(-length // kv_cache.block_size)]
        blocks = torch.tensor(used, dtype=torch.long, device=kv_cache.device)
        for tensors, sources in ((self.keys, kv_cache.keys), (self.values, kv_cache.values)):
            for tensor, source in zip(tensors, sources, strict=True):
                tensor[row, :length] = (
                    kv_cache.by_block(source).index_select(0, blocks).flatten(0, 1)[:length]
                )
                tensor[row, length:] = 0
        self.chunks.append(chunk)
        self.blocks.append(chunk.sequence.blocks)

    def goes_on(self, row: int, chunk: ScheduledChunk | None) -> bool:
        """Whether the row has the keys and values of all tokens before the request's next chunk, and room.

        They are those of the last chunk, as far as its draft was accepted. If that step failed, the next one
        begins where it did.
        """
        last = self.chunks[row]
        return (
            chunk is not None
            and chunk.sequence.blocks is self.blocks[row]
            and last.start < chunk.start <= last.start + last.count
            and chunk.start + chunk.count < self.capacity
        )


class ContiguousKVCache:
    """Contiguous copies of the keys and values of decoding requests, for the CPU.

    On a CPU, gathering the blocks of all requests for every layer and token costs more than attention itself.
    A buffer has a row for each of several requests of similar length; a row is copied from the blocks when
    its request joins, and grows by the tokens of each step. The blocks stay authoritative: a lost row, or a
    lack of room, only costs time. All buffers together have at most as many tokens as the KV cache.
    """

    def __init__(self, kv_cache: KVCache) -> None:
        self._kv_cache = kv_cache
        self._buffers: dict[int, ContiguousBuffer] = {}
        self._max_tokens = kv_cache.capacity

    def arrange(
        self, chunks: Sequence[ScheduledChunk]
    ) -> tuple[list[tuple[ContiguousBuffer, list[ScheduledChunk]]], list[ScheduledChunk]]:
        """Finds a row for each of these chunks of one token and its draft, which count as written.

        Returns the buffers in use, each with its chunks in row order, and the chunks without a row.
        """
        chunk_of = {chunk.sequence: chunk for chunk in chunks}
        for buffer in self._buffers.values():
            for row in reversed(range(len(buffer.chunks))):
                if not buffer.goes_on(row, chunk_of.get(buffer.chunks[row].sequence)):
                    buffer.remove(row)
        placed = {chunk.sequence for buffer in self._buffers.values() for chunk in buffer.chunks}
        arrivals: dict[int, list[ScheduledChunk]] = {}
        for chunk in chunks:
            if chunk.sequence not in placed:
                arrivals.setdefault(_capacity_for(chunk.start), []).append(chunk)
        gathered: list[ScheduledChunk] = []
        for capacity, group in arrivals.items():
            gathered += group[self._add_rows(capacity, group) :]
        in_use = []
        for buffer in self._buffers.values():
            if buffer.chunks:
                buffer.chunks = [chunk_of[chunk.sequence] for chunk in buffer.chunks]
                in_use.append((buffer, buffer.chunks))
        return in_use, gathered

    def _add_rows(self, capacity: int, chunks: list[ScheduledChunk]) -> int:
        """Adds rows for as many of the chunks as there is room for; returns their number."""
        buffer = self._buffers.setdefault(capacity, ContiguousBuffer(capacity))
        needed = len(buffer.chunks) + len(chunks)
        if needed > buffer.rows:
            others = sum(s.rows * s.capacity for s in self._buffers.values() if s is not buffer)
            if others + _next_power_of_two(needed) * capacity > self._max_tokens:
                self._buffers = {c: b for c, b in self._buffers.items() if b.chunks or b is buffer}
                others = sum(s.rows * s.capacity for s in self._buffers.values() if s is not buffer)
            rows = min(_next_power_of_two(needed), (self._max_tokens - others) // capacity)
            if rows > buffer.rows:
                buffer.resize(rows, self._kv_cache)
        added = min(len(chunks), buffer.rows - len(buffer.chunks))
        for chunk in chunks[:added]:
            buffer.add(chunk, self._kv_cache)
        return added


def _capacity_for(length: int) -> int:
    """The smallest capacity with room for a draft and more, so that the request does not move soon."""
    capacity = MIN_CAPACITY
    while length + MIN_CAPACITY // 4 + 2 > capacity:
        capacity *= 2
    return capacity


def _next_power_of_two(rows: int) -> int:
    """Rounds up, so that requests that arrive one by one do not cause a reallocation each."""
    return 1 << (rows - 1).bit_length()


MAX_FULL_CONTEXTS = 32
"""On a CPU, blocks for at most this many requests of full context length. On a GPU further blocks are used to
keep prefixes of earlier conversations."""

CPU_MEMORY_FRACTION = 0.25
CPU_MAX_BYTES = 2**30
"""On a CPU at most this fraction of the free memory, and at most these bytes: the machine has other work, and
the kernel commits the pages only as blocks are first written."""

GPU_MAX_BLOCKS = 2**17
"""On a GPU, beyond `MAX_FULL_CONTEXTS`, a limit that keeps the block pool's bookkeeping fast."""

GPU_MEMORY_FRACTION = 0.8
"""On a GPU this fraction of the memory left after loading weights; the rest is for activations and graphs."""

CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""For control groups v2 and v1: folder, files of limit and usage, key of reclaimable cache in memory.stat."""
MEMINFO = Path("/proc/meminfo")


def free_gpu_memory(device: torch.device) -> int | None:
    """Bytes that are free on the GPU, those that torch keeps without use included; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def kv_budget(config: EngineConfig, gpu_free: int | None) -> int:
    """Bytes for keys, values and states. `gpu_free` is None on a CPU."""
    if config.kv_memory is not None:
        return config.kv_memory
    if gpu_free is not None:
        return int(gpu_free * GPU_MEMORY_FRACTION)
    return min(int(free_memory() * CPU_MEMORY_FRACTION), CPU_MAX_BYTES)


def count_blocks(
    config: EngineConfig,
    *,
    block_size: int,
    block_bytes: int,
    context_length: int,
    gpu_free: int | None,
    reserved: int = 0,
) -> int:
    """The size of the pool, beside `reserved` bytes. Raises `ModelRefused` if not one block fits."""
    if config.kv_blocks is not None:
        return config.kv_blocks
    budget = max(kv_budget(config, gpu_free) - reserved, 0)
    useful_blocks = MAX_FULL_CONTEXTS * -(-context_length // block_size)
    blocks = budget // block_bytes
    if config.kv_memory is None:
        blocks = min(blocks, useful_blocks if gpu_free is None else max(useful_blocks, GPU_MAX_BLOCKS))
    if blocks < 1:
        raise ModelRefused(
            f"One KV block of this model takes {block_bytes} bytes; there is room for {budget}."
        )
    return blocks


def free_memory() -> int:
    """Bytes available to this process: the machine's, or its control group's if fewer.

    The group's inactive page cache, such as weight files, counts as free, because the kernel reclaims it.
    """
    available = _read_statistic(MEMINFO, "MemAvailable:") * 1024
    if not available:  # not Linux: a guess that cannot be far too large
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    for folder, limit_name, usage_name, cache_name in CGROUPS:
        limit, used = _read_number(folder / limit_name), _read_number(folder / usage_name)
        if limit is not None and used is not None:
            reclaimable = min(_read_statistic(folder / "memory.stat", cache_name), used)
            available = min(available, max(limit - used + reclaimable, 0))
    return available


def _read_statistic(path: Path, name: str) -> int:
    """The number after `name` in its line of the file; 0 if there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return None


TRIM_THRESHOLD_BYTES = 2**28
"""glibc keeps this much freed memory at the end of each heap."""
MMAP_THRESHOLD_BYTES = 2**25
"""Larger allocations are mapped separately, and returned when freed; the maximum that glibc allows."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def retain_freed_memory() -> None:
    """Makes glibc keep freed memory for reuse; without effect with another C library.

    Each step on a CPU allocates and frees the same tensors. By default the memory goes back to the kernel,
    which zeroes every page on the next use: a tenth of a step's time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
