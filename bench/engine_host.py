"""What the engine itself costs, beside the model: host time per token, and steps until a cancel is told."""

import random

from bench.engine_subjects import (
    NULL,
    ContinuousBatching,
    EngineSubject,
    make_model,
    make_prompts,
    read_network,
)
from bench.rounds import divide, take_times, tell
from engine.request import Outbound, Tokens

COUNT, LENGTH, OUTPUT = 32, 32, 200
ROUNDS = 5
CANCELS = 200


def run() -> None:
    """Host time per token ÷ continuous batching's with a null model; cancel in steps; 1 minute of CPU."""
    compare_host_time()
    count_steps_to_cancel()


def compare_host_time() -> None:
    folder = make_model("null")
    engine = EngineSubject(folder)
    rival = ContinuousBatching(read_network(folder, "float32", "sdpa"), COUNT * (LENGTH + OUTPUT))
    mine: list[float] = []
    theirs: list[float] = []
    limits = [OUTPUT] * COUNT
    for turn in range(-1, ROUNDS):
        prompts = make_prompts([LENGTH] * COUNT, turn, NULL["vocab_size"])
        one = take_times({"": lambda _: engine.run(prompts, limits)}, 1, warmups=0)[""]  # noqa: B023
        rival.start()
        other = take_times({"": lambda _: rival.run(prompts, limits)}, 1, warmups=0)[""]  # noqa: B023
        rival.stop()
        if turn >= 0:
            mine += one
            theirs += other
    engine.close()
    print(f"host time per token: {min(mine) / COUNT / OUTPUT * 1e6:.0f} microseconds")
    tell(f"host time ÷ continuous batching's, {COUNT} at once", divide(mine, theirs), "<=0.5")


def count_steps_to_cancel() -> None:
    """Cancelled by a listener: the next thing that is told of the request is its end."""
    engine = EngineSubject(make_model("null"))
    dice = random.Random(5)  # noqa: S311
    cut = {f"j{row + 1}": dice.randint(1, OUTPUT - 1) for row in range(CANCELS)}
    heard: dict[str, int] = {}
    asked_at: dict[str, int] = {}
    steps: list[float] = []

    def listen(message: Outbound) -> None:
        request_id = message.request_id
        if not isinstance(message, Tokens):
            steps.append(max(1, engine.engine.stats().steps - asked_at[request_id]))
            return
        heard[request_id] = heard.get(request_id, 0) + 1
        if heard[request_id] == cut[request_id]:
            asked_at[request_id] = engine.engine.stats().steps
            engine.engine.cancel(request_id)

    engine.when_told = listen
    prompts = make_prompts([LENGTH] * CANCELS, 9, NULL["vocab_size"])
    engine.run(prompts, [OUTPUT] * CANCELS)
    engine.close()
    tell(f"steps from a cancel to its end, {CANCELS} requests", steps, "<=1")
