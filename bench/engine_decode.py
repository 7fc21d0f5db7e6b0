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
from tests.support import smollm2

OUTPUT = 64
RIVALS = ("DynamicCache", "StaticCache")


def run() -> None:
    """Engine ÷ the better of a DynamicCache and a StaticCache loop, greedy; 8 minutes of CPU. First bfloat16,
    which `auto` takes where the CPU has it, ÷ float32.
    """
    for count in (1, 8, 32):
        compare_dtypes(count, rounds=5 if count < 32 else 3)
    for dtype in ("float32", "bfloat16"):
        for length in (64, 512):
            for count in (1, 8, 32):
                compare(dtype, length, count, rounds=5 if count * length < 8192 else 3)


def compare_dtypes(count: int, rounds: int) -> None:
    folder = smollm2.FOLDER if smollm2.FOLDER.is_dir() else make_model("qwen")
    engines = {dtype: EngineSubject(folder, dtype) for dtype in ("auto", "float32")}

    def act(engine: EngineSubject) -> Act:
        return lambda turn: engine.run(make_prompts([64] * count, turn), [OUTPUT] * count)

    times = take_times({dtype: act(engine) for dtype, engine in engines.items()}, rounds)
    for engine in engines.values():
        engine.close()
    ratios = divide(times["float32"], times["auto"])
    tell(f"{folder.name} 64/{OUTPUT}, {count} at once: auto ÷ float32", ratios, ">=1.8")


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
