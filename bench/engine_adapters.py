"""What LoRA adapters cost the requests that have one, and those that have none."""

from pathlib import Path

from bench.engine_subjects import EngineSubject, make_model, make_prompts
from bench.rounds import Act, divide, take_times, tell
from tests.support.adapters import DENSE, make_adapter

COUNT = 8
OUTPUT = 64
RANK = 16


def run() -> None:
    """Engine with adapters of rank 16 on all linear layers ÷ engine without; 5 minutes of CPU."""
    folder = make_model("qwen")
    made = tuple((f"a{n}", make_adapter(folder, DENSE, seed=n, r=RANK).folder) for n in range(8))
    compare(folder, made, prompt=64)
    compare(folder, made, prompt=512)


def compare(folder: Path, made: tuple[tuple[str, Path], ...], prompt: int) -> None:
    without, with_them = EngineSubject(folder), EngineSubject(folder, adapters=made)
    names = {
        "no request has one": [""] * COUNT,
        "one request has one": ["a0"] + [""] * (COUNT - 1),
        "all have one": ["a0"] * COUNT,
        "two by turns": ["a0", "a1"] * (COUNT // 2),
        "eight": [f"a{n}" for n in range(COUNT)],
    }

    def act(engine: EngineSubject, wanted: list[str]) -> Act:
        salt = len(set(wanted)) * 100 + wanted.count("") * 1000  # no method finds another's prompts

        def run_once(turn: int) -> object:
            prompts = make_prompts([prompt] * COUNT, salt + turn + 1)
            return engine.run_requests(
                [engine.request(p, OUTPUT, adapter=name) for p, name in zip(prompts, wanted, strict=True)]
            )

        return run_once

    methods = {"without": act(without, [""] * COUNT)}
    methods |= {name: act(with_them, wanted) for name, wanted in names.items()}
    times = take_times(methods, rounds=5)
    for name in names:
        goal = "<=1.02" if name.startswith("no") else "<=1.25"
        tell(f"{prompt}/{OUTPUT}, 8 at once, {name} ÷ without", divide(times[name], times["without"]), goal)
    for engine in (without, with_them):
        engine.close()
