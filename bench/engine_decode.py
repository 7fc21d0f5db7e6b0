"""The engine against loops written by hand, which do nothing but compute."""

from collections.abc import Callable, Sequence

from bench.engine_subjects import (
    EngineSubject,
    make_model,
    make_prompts,
    read_network,
    run_dynamic,
    run_static,
)
from bench.rounds import Act, best_of, divide, take_times, tell

OUTPUT = 64
RIVALS = ("DynamicCache", "StaticCache")


def run() -> None:
    """Engine ÷ the better of a DynamicCache and a StaticCache loop, greedy; 8 minutes of CPU."""
    for dtype in ("float32", "bfloat16"):
        for length in (64, 512):
            for count in (1, 8, 32):
                compare(dtype, length, count, rounds=5 if count * length < 8192 else 3)


def compare(dtype: str, length: int, count: int, rounds: int) -> None:
    folder = make_model("qwen")
    network = read_network(folder, dtype, "sdpa")
    engine = EngineSubject(folder, dtype)

    def rival(loop: Callable[..., list[list[int]]]) -> Act:
        return lambda turn: loop(network, make_prompts([length] * count, turn), OUTPUT)

    methods: dict[str, Act] = {
        "engine": lambda turn: engine.run(make_prompts([length] * count, turn), [OUTPUT] * count),
        "DynamicCache": rival(run_dynamic),
        "StaticCache": rival(run_static),
    }
    times = take_times(methods, rounds)
    engine.close()
    report(f"{dtype} {length}/{OUTPUT}, {count} at once", times, ">=0.97")


def report(name: str, times: dict[str, Sequence[float]] | dict[str, list[float]], goal: str) -> None:
    best = best_of(times, RIVALS)
    tell(f"{name}: engine ÷ {best}", divide(times[best], times["engine"]), goal)
