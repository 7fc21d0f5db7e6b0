"""`measure`: how long steps of more rows take on this machine, at load; the shortest of some tries."""

from time import perf_counter

from engine.runner.forward_check import Logits, make_sequence
from engine.scheduling.scheduler import ScheduledChunk

ROWS = (1, 2, 4, 8, 16, 32, 64)
FEW_ROWS = (1, 8, 32)
TRIES = 5
SLOW_SECONDS = 0.1
"""Of a model whose step takes longer, `FEW_ROWS` are tried once."""


def blocks_used(block_size: int) -> int:
    """The number of blocks, from the first one on, that are written to."""
    return -(-(ROWS[-1] + 1) // block_size)


def measure(logits: Logits, block_size: int) -> dict[int, float]:
    """Seconds by number of rows: a request's last token and its draft."""
    sequence = make_sequence([0] * (ROWS[-1] + 1), 1, block_size)
    del sequence.tokens[1:]

    def seconds(rows: int) -> float:
        began = perf_counter()
        logits((ScheduledChunk(sequence, 0, rows, (0,) * (rows - 1)),), ())
        return perf_counter() - began

    seconds(1)
    is_slow = seconds(1) > SLOW_SECONDS
    tries, numbers = (1, FEW_ROWS) if is_slow else (TRIES, ROWS)
    measured = {rows: min(seconds(rows) for _ in range(tries)) for rows in numbers}
    sequence.blocks = []
    return measured
