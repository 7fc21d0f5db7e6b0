"""glibc's malloc thresholds: keeps freed memory for reuse between steps on a CPU. Load time."""

import ctypes

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
