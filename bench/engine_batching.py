"""The engine against transformers' own continuous batching, whose cache and thread are made beforehand."""

from bench.engine_subjects import ContinuousBatching, EngineSubject, make_model, make_prompts, read_network
from bench.rounds import divide, take_times, tell

OUTPUT = 64


def run() -> None:
    """Engine ÷ continuous batching at 8 and 32; 6 minutes of CPU."""
    for length, count, rounds, goal in (
        (64, 8, 5, ">=1.25"),
        (64, 32, 3, ">=1.8"),
        (512, 32, 2, ">=3.5"),
    ):
        compare(
            f"float32 {length}/{OUTPUT}, {count} at once", [length] * count, [OUTPUT] * count, rounds, goal
        )


def compare(
    name: str,
    lengths: list[int],
    limits: list[int],
    rounds: int,
    goal: str,
    gaps: list[float] | None = None,
) -> None:
    folder = make_model("qwen")
    engine = EngineSubject(folder)
    rival = ContinuousBatching(read_network(folder, "float32", "sdpa"), sum(lengths) + sum(limits))
    times: dict[str, list[float]] = {"engine": [], "rival": []}
    for turn in range(-1, rounds):
        prompts = make_prompts(lengths, turn)
        mine = take_times({"engine": lambda _: engine.run_all(prompts, limits, gaps or [])}, 1, warmups=0)  # noqa: B023
        rival.start()
        theirs = take_times({"rival": lambda _: rival.run(prompts, limits, gaps or [])}, 1, warmups=0)  # noqa: B023
        rival.stop()
        if turn >= 0:
            times["engine"] += mine["engine"]
            times["rival"] += theirs["rival"]
    engine.close()
    tell(f"{name}: engine ÷ continuous batching", divide(times["rival"], times["engine"]), goal)
