"""How many threads compute a step is found by trying."""

from collections.abc import Callable, Iterator

import pytest
import torch

from engine.runner.row_costs import fastest_threads
from engine.scheduling.scheduler import SchedulerOutput


@pytest.fixture
def sixteen_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(16)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        (lambda threads, _rows: 1 / threads, 16),
        (lambda threads, _rows: 1 / min(threads, 4) + max(threads - 4, 0) / 4, 4),
        (lambda threads, _rows: threads, 1),
        (lambda _threads, _rows: 1.0, 16),
        (lambda threads, rows: threads if rows == 1 else 100 / threads, 16),
    ],
    ids=["all cores", "four that may be used", "one for a small model", "no difference", "rows differ"],
)
def test_threads_are_halved_while_that_is_much_faster(
    seconds: Callable[[int, int], float], fastest: int
) -> None:
    clock = [0.0]

    def step(plan: SchedulerOutput) -> None:
        clock[0] += seconds(torch.get_num_threads(), plan[0].count)

    assert fastest_threads(step, 16, lambda: clock[0]) == fastest
    assert torch.get_num_threads() == fastest, "they are used from now on"


@pytest.mark.usefixtures("sixteen_cores")
def test_a_burst_of_load_in_the_first_trial_halves_nothing() -> None:
    clock, steps = [0.0], [0]

    def step(_plan: SchedulerOutput) -> None:
        steps[0] += 1
        clock[0] += 10.0 if steps[0] < 7 else 1.0

    assert fastest_threads(step, 16, lambda: clock[0]) == 16
