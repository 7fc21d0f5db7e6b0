"""The engine with all that clients ask for on every row, against loops that take the likeliest token."""

import json
from dataclasses import replace

from bench.engine_decode import OUTPUT, RIVALS
from bench.engine_subjects import (
    QWEN,
    EngineSubject,
    give_tokenizer,
    make_model,
    make_prompts,
    read_network,
    run_dynamic,
    run_static,
)
from bench.rounds import Act, best_of, divide, take_times, tell
from engine.request import SamplingParams, StructuredOutput

LENGTH = 64
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "kind": {"enum": ["a", "b", "cd"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
SCHEMA = StructuredOutput(
    kind="json_schema", text=json.dumps({"type": "array", "items": ITEM, "minItems": 100})
)
"""It cannot be fulfilled within the tokens that there are, so that no row ends early."""


def run() -> None:
    """Engine with top_p, penalties, 5 logprobs; engine with a schema: ÷ greedy loops; 6 minutes of CPU."""
    for dtype in ("float32", "bfloat16"):
        for count in (1, 8, 32):
            compare(dtype, count, rounds=5)


def compare(dtype: str, count: int, rounds: int) -> None:
    folder = make_model("qwen")
    if not (folder / "tokenizer.json").exists():
        give_tokenizer(folder, QWEN["vocab_size"])
    network = read_network(folder, dtype, "sdpa")
    engine = EngineSubject(folder, dtype)
    drawn = [
        SamplingParams(seed=row, temperature=0.8, top_p=0.9, presence_penalty=0.4, frequency_penalty=0.4)
        for row in range(count)
    ]
    whole = [replace(sampling, top_p=1.0) for sampling in drawn]
    limits = [OUTPUT] * count

    def prompts(turn: int) -> list[list[int]]:
        return make_prompts([LENGTH] * count, turn)

    methods: dict[str, Act] = {
        "sampled": lambda turn: engine.run(prompts(turn), limits, drawn, logprobs=5),
        "without top_p": lambda turn: engine.run(prompts(turn), limits, whole, logprobs=5),
        "schema": lambda turn: engine.run(prompts(turn), limits, grammar=SCHEMA, stop_ids=frozenset({0})),
        "DynamicCache": lambda turn: run_dynamic(network, prompts(turn), OUTPUT),
        "StaticCache": lambda turn: run_static(network, prompts(turn), OUTPUT),
    }
    times = take_times(methods, rounds)
    engine.close()
    best = best_of(times, RIVALS)
    name = f"{dtype} {LENGTH}/{OUTPUT}, {count} at once"
    tell(f"{name}: top_p, penalties, logprobs ÷ {best}", divide(times[best], times["sampled"]), ">=0.90")
    tell(f"{name}: penalties, logprobs ÷ {best}", divide(times[best], times["without top_p"]), ">=0.90")
    tell(f"{name}: JSON schema ÷ {best}", divide(times[best], times["schema"]), ">=0.85")
