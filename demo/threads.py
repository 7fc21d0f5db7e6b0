"""How many threads compute: one, on a model this small.

Two threads would wait for each other at every small step, and for minutes on a busy machine. One
also adds numbers up in one order, so that the same processor makes the same model again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread until the block ends."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
