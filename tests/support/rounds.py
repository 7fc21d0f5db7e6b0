"""How often a fault test is done, and with which seeds.

`make test` does a few rounds, `make faults` many. FAULT_ROUNDS multiplies the many, FAULT_SEED is the first
seed; a round's seed is in its test's name. `make faults` sets ALL_EXAMPLES, too.
"""

import os

import pytest
from _pytest.mark.structures import ParameterSet

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "1"))
ALL_EXAMPLES = "ALL_EXAMPLES" in os.environ
FIRST_SEED = int(os.environ.get("FAULT_SEED", "0"))


def rounds(*, few: int, many: int) -> list[ParameterSet]:
    """Seeds to parametrize a test with: `few` in every run, `many` with the mark `faults` among them."""
    return [
        pytest.param(
            FIRST_SEED + number, id=f"seed{FIRST_SEED + number}", marks=[pytest.mark.faults] * (number >= few)
        )
        for number in range(many * ROUNDS)
    ]


def example_count(count: int) -> int:
    """How many of so many examples of hypothesis's are tried: all of them where ALL_EXAMPLES is set."""
    return count if ALL_EXAMPLES else min(count, max(10, count // 4))


def faults_only(*values: object) -> list[ParameterSet]:
    """Parameters that only `make faults` takes; a tuple is a parameter each."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.faults)
        for value in values
    ]
