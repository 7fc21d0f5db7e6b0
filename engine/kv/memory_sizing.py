"""How many KV blocks to make when the operator has not said, and what happens to memory that is freed.

Load time. Ignorant of torch: what a GPU has free is told by the caller.
"""

import ctypes
import os
from pathlib import Path

from engine.config import EngineConfig, ModelRefused

MAX_FULL_CONTEXTS = 32
"""The most requests of full length that memory is taken for on a CPU. On a GPU, where nobody else wants
it, what is left over keeps earlier conversations."""

CPU_MEMORY_FRACTION = 0.25
CPU_MAX_BYTES = 2**30
"""On a CPU at most this share of the free memory and at most so many bytes: the machine has other
work, and the blocks are touched, and so really taken, one after the other."""

GPU_MAX_BLOCKS = 2**17
"""On a GPU, beyond the requests above, no more blocks than the engine's books of them stay quick with."""

GPU_MEMORY_FRACTION = 0.8
"""On a GPU this share of what the weights left free; the rest is for the steps themselves."""

TRIM_THRESHOLD_BYTES = 2**28
"""Of what each thread has freed, so much at the end of its heap is not given back."""
MMAP_THRESHOLD_BYTES = 2**25
"""Only what is larger than this is mapped by itself, and so given back when it is freed; the most that
glibc allows."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h

CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""Where versions 2 and 1 of control groups say what this process may take, what is taken, and how much of it
is of files only."""
MEMINFO = Path("/proc/meminfo")


def count_blocks(config: EngineConfig, *, block_bytes: int, context_length: int, gpu_free: int | None) -> int:
    """The size of the pool. `gpu_free` is None on a CPU.

    Raises `ModelRefused` if not even one block fits.
    """
    if config.kv_blocks is not None:
        return config.kv_blocks
    if config.kv_memory is not None:
        budget = config.kv_memory
    elif gpu_free is not None:
        budget = int(gpu_free * GPU_MEMORY_FRACTION)
    else:
        budget = min(int(free_memory() * CPU_MEMORY_FRACTION), CPU_MAX_BYTES)
    useful_blocks = MAX_FULL_CONTEXTS * -(-context_length // config.block_size)
    blocks = budget // block_bytes
    if config.kv_memory is None:
        blocks = min(blocks, useful_blocks if gpu_free is None else max(useful_blocks, GPU_MAX_BLOCKS))
    if blocks < 1:
        raise ModelRefused(
            f"One KV block of this model takes {block_bytes} bytes; there is room for {budget}."
        )
    return blocks


def retain_freed_memory() -> None:
    """Has glibc keep what is freed for what comes next; does nothing where there is another C library.

    Each step on a CPU takes and frees the same tensors. By default the memory goes back to the system in
    between, which clears it, page by page, before it is there again: a tenth of the time of a step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def free_memory() -> int:
    """Bytes that this process may still take: the machine's, or its control group's if fewer.

    What the group has of files that were read, as of weights, and are not in use is given back when it is
    wanted, so it counts as free.
    """
    available = _available_on_machine()
    for folder, limit_name, usage_name, cache_name in CGROUPS:
        limit, used = _read_number(folder / limit_name), _read_number(folder / usage_name)
        if limit is not None and used is not None:
            reclaimable = min(_read_statistic(folder / "memory.stat", cache_name), used)
            available = min(available, max(limit - used + reclaimable, 0))
    return available


def _available_on_machine() -> int:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:  # not Linux: a guess that cannot be far too large
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    kibibytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(kibibytes) * 1024


def _read_statistic(path: Path, name: str) -> int:
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
