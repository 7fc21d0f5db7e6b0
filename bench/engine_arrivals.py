"""The engine against transformers' own continuous batching, when requests of all lengths arrive at random."""

import random

from bench.engine_batching import compare

COUNT = 48
MEAN_GAP = 0.04
"""Seconds: less than a request takes, so that both have work all the time and neither waits."""
SEED = 3


def run() -> None:
    """Engine ÷ continuous batching, mixed lengths, the same Poisson arrivals for both; 2 minutes of CPU."""
    dice = random.Random(SEED)  # noqa: S311
    lengths = [dice.randint(16, 400) for _ in range(COUNT)]
    limits = [dice.randint(8, 96) for _ in range(COUNT)]
    gaps = [dice.expovariate(1 / MEAN_GAP) for _ in range(COUNT)]
    compare("float32, mixed lengths, Poisson arrivals", lengths, limits, 5, ">=1.5", gaps)
