"""How many KV blocks to make when the operator has not said, and what happens to memory that is freed.

Load time. Ignorant of torch: what a GPU has free is told by the caller.
"""

import ctypes
import os
from pathlib import Path

from engine.config import EngineConfig, ModelRefused

FULL_CONTEXTS = 32
"""More memory than for so many jobs of full length is not taken."""

CPU_SHARE = 0.25
CPU_MOST = 2**30
"""On a CPU at most this share of the free memory and at most so many bytes: the machine has other
work, and the blocks are touched, and so really taken, one after the other."""

GPU_SHARE = 0.8
"""On a GPU this share of what the weights left free; the rest is for the steps themselves."""

KEPT_BYTES = 2**28
"""Of what each thread has freed, so much at the end of its heap is not given back."""
MAPPED_BYTES = 2**25
"""Only what is larger than this is mapped by itself, and so given back when it is freed; the most that
glibc allows."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h

CGROUP = Path("/sys/fs/cgroup")
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
        budget = int(gpu_free * GPU_SHARE)
    else:
        budget = min(int(free_memory() * CPU_SHARE), CPU_MOST)
    useful = FULL_CONTEXTS * -(-context_length // config.block_size)
    blocks = budget // block_bytes
    if config.kv_memory is None:
        blocks = min(blocks, useful)
    if blocks < 1:
        raise ModelRefused(
            f"One KV block of this model takes {block_bytes} bytes; there is room for {budget}."
        )
    return blocks


def keep_freed_memory() -> None:
    """Has glibc keep what is freed for what comes next; does nothing where there is another C library.

    Each step on a CPU takes and frees the same tensors. By default the memory goes back to the system in
    between, which clears it, page by page, before it is there again: a tenth of the time of a step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def free_memory() -> int:
    """Bytes that this process may still take: the machine's, or its control group's if fewer."""
    available = _available_on_machine()
    limit = _read_number(CGROUP / "memory.max")
    taken = _read_number(CGROUP / "memory.current")
    if limit is None or taken is None:
        return available
    return min(available, max(limit - taken, 0))


def _available_on_machine() -> int:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:  # not Linux: a guess that cannot be far too large
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    kibibytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(kibibytes) * 1024


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return None
