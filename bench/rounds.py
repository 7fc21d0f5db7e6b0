"""How all ratios are taken: methods one after the other, round by round, in CPU time of this process."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Act = Callable[[int], object]
"""Does the whole of a method's work once; is told the round, so that it can have prompts of its own."""


def take_times(methods: Mapping[str, Act], rounds: int, warmups: int = 1) -> dict[str, list[float]]:
    """Seconds of CPU of each method in each round; who begins changes from round to round."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    names = list(methods)
    for turn in range(-warmups, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.process_time()
            methods[name](turn)
            spent = time.process_time() - start
            if turn >= 0:
                times[name].append(spent)
    return times


def divide(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(numerators, denominators, strict=True)]


def best_of(times: Mapping[str, Sequence[float]], names: Sequence[str]) -> str:
    """The method that is fastest at the median."""
    return min(names, key=lambda name: statistics.median(times[name]))


def tell(name: str, ratios: Sequence[float], goal: str) -> None:
    """One line: the median, the range, and what it should be."""
    middle = statistics.median(ratios)
    reached = middle >= float(goal[2:]) if goal.startswith(">=") else middle <= float(goal[2:])
    word = "reached" if reached else "missed"
    print(f"{name:58} {middle:6.3f} [{min(ratios):.3f}-{max(ratios):.3f}]  goal {goal}: {word}", flush=True)
