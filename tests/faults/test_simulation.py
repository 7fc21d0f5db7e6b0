"""F21: simulated worlds: replicas that die, freeze and hand over, readers that wander, commits that fail or
are lost, sessions and rights that go wrong.

A failure names its seed, which `simulated()` runs again, the same. Seeds that failed once are kept in
`seeds.txt`.
"""

import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fix_tally import Tally
from tests.support.simulated_checks import check
from tests.support.simulation import World, simulated

BLOCK = 250
BLOCKS = [0, *(pytest.param(block, marks=pytest.mark.faults) for block in range(1, 80))]
FAILED_ONCE = [
    int(line.split("#")[0])
    for line in Path(__file__).with_name("seeds.txt").read_text(encoding="utf-8").splitlines()
    if line.split("#")[0].strip()
]

Run = Callable[[int], World]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs the world of a seed; what its replicas log of their troubles is not shown."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    try:
        with simulated() as made:
            yield made
    finally:
        gc.unfreeze()
        logging.disable(logging.NOTSET)


def run_and_check(run: Run, seed: int) -> World:
    try:
        world = run(seed)
        check(world)
    except Exception as error:
        raise AssertionError(f"seed {seed}") from error
    return world


@pytest.mark.parametrize("block", BLOCKS)
def test_nothing_is_lost_doubled_or_told_too_early_whatever_happens_when(
    run: Run, block: int, tally: Tally
) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        world = run_and_check(run, seed)
        tally["F21", "tokens told"] += sum(ending.output_tokens for ending in world.memory.metered.values())
        tally["F21", "lost rows that were committed again"] += world.memory.journal.made_again
        for fault, times in world.faults.counts.items():
            tally["F21", fault] += times
    tally["F21", "worlds simulated"] += BLOCK


def test_the_seeds_that_failed_once_fail_no_more(run: Run) -> None:
    for seed in FAILED_ONCE:
        run_and_check(run, seed)


def test_a_seed_is_the_same_world_each_time(run: Run) -> None:
    first, second = ([client.frames for client in run_and_check(run, 7).clients] for _ in range(2))
    assert first == second
