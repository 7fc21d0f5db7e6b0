"""The number of KV blocks, chosen by free memory, with control groups taken into account.

Load time; no torch, so the caller passes a GPU's free memory.
"""

import os
from pathlib import Path

from engine.config import EngineConfig, ModelRefused

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
    (
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""For control groups v2 and v1: folder, file of the limit, file of the usage, and the key of reclaimable page
cache in memory.stat."""
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


def free_memory() -> int:
    """Bytes available to this process: the machine's, or its control group's if fewer.

    The group's inactive page cache, such as weight files, counts as free, because the kernel reclaims it.
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
