"""How long steps take on this machine, at load: with more rows, and with fewer threads.

Times are the shortest of some tries.
"""

from collections.abc import Callable, Sequence
from time import perf_counter

import torch

from engine.runner.forward_check import make_sequence
from engine.scheduling.drafts import StepCosts
from engine.scheduling.scheduler import ScheduledChunk, SchedulerOutput
from engine.scheduling.sequence import TokenSequence

ROWS = (1, 4, 16, 32, 64)
"""Numbers of rows whose steps are timed."""

FEW_ROWS = (1, 8, 16, 32)
"""Numbers of rows whose steps are timed for models of which a step takes longer than `SLOW_SECONDS`."""

DRAFTS = 8
"""Requests in the step that times drafts of one token: twice as many rows are among those that are timed."""

TRIES = 2

ROWS_OF_THREADS = (1, 32)
"""Numbers of rows whose steps decide on the number of threads: bound by memory, and by arithmetic."""

MUCH_FASTER = 0.9
"""Fewer threads are taken if steps take at most this many times as long."""

SLOW_SECONDS = 0.1
"""A model whose step of one row takes longer is slow: each number of rows is tried once."""


Step = Callable[[SchedulerOutput], object]
"""Computes a plan and samples its tokens."""


def blocks_used(block_size: int) -> int:
    """The number of blocks, from the first one on, that are written to."""
    return max(-(-ROWS[-1] // block_size), DRAFTS)


def _seconds(step: Step, sequences: Sequence[TokenSequence], rows: int, now: Callable[[], float]) -> float:
    """Seconds of one step that computes `rows` tokens of each sequence, by the clock `now`."""
    plan = tuple(ScheduledChunk(each, 0, rows, (0,) * (rows - 1)) for each in sequences)
    began = now()
    step(plan)
    return now() - began


def measure_steps(step: Step, block_size: int) -> StepCosts:
    long = make_sequence([0], 1, block_size, room=ROWS[-1] - 1)
    several = [make_sequence([0], 1 + number, max(block_size, 2), room=1) for number in range(DRAFTS)]

    def seconds(sequences: list[TokenSequence], rows: int) -> float:
        return _seconds(step, sequences, rows, perf_counter)

    seconds([long], 1)
    is_slow = seconds([long], 1) > SLOW_SECONDS
    tries, numbers = (1, FEW_ROWS) if is_slow else (TRIES, ROWS)
    rounds = [{n: seconds([long], n) for n in numbers} | {0: seconds(several, 2)} for _ in range(tries)]
    shortest = {n: min(times[n] for times in rounds) for n in (*numbers, 0)}
    beside = max(shortest.pop(0) - shortest[2 * DRAFTS], 0.0) / (DRAFTS - 1)
    for sequence in (long, *several):
        sequence.blocks = []
    return StepCosts(shortest, beside)


def fastest_threads(step: Step, block_size: int, now: Callable[[], float] = perf_counter) -> int:
    """Halves the number of torch's threads as long as steps become much faster.

    torch takes a thread for each core that it sees, which may be more than a container may use, or than pays.
    """
    sequence = make_sequence([0], 1, block_size, room=ROWS_OF_THREADS[-1] - 1)

    def seconds(threads: int, rows: int) -> float:
        torch.set_num_threads(threads)
        return min([_seconds(step, [sequence], rows, now) for _ in range(1 + TRIES)][1:])

    best = torch.get_num_threads()
    times = [seconds(best, rows) for rows in ROWS_OF_THREADS]
    while best > 1:
        fewer = [seconds(best // 2, rows) for rows in ROWS_OF_THREADS]
        again = [seconds(best, rows) for rows in ROWS_OF_THREADS]  # something else may have run before
        times = [min(pair) for pair in zip(times, again, strict=True)]
        if sum(new / old for new, old in zip(fewer, times, strict=True)) > MUCH_FASTER * len(times):
            break
        best, times = best // 2, fewer
    sequence.blocks = []
    torch.set_num_threads(best)
    return best
