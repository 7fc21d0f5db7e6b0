"""Whether a seeded request that is cut anywhere goes on as it would have."""

import random

from bench.engine_subjects import SMALL, EngineSubject, make_model
from bench.rounds import tell
from engine.request import EngineRequest, SamplingParams

CASES = 1000
TOGETHER = 50


def run() -> None:
    """Share of 1,000 seeded requests that are the same when cut at a random token; 1 minute of CPU."""
    engine = EngineSubject(make_model("small"))
    dice = random.Random(11)  # noqa: S311
    equal: list[float] = []
    for _ in range(CASES // TOGETHER):
        requests = [draw_request(engine, dice) for _ in range(TOGETHER)]
        whole = engine.run_requests(requests)
        cuts = [dice.randint(1, request.max_tokens - 1) for request in requests]
        rests = [
            engine.request(
                [*request.prompt, *tokens[:cut]],
                request.max_tokens - cut,
                request.sampling,
                output_offset=cut,
            )
            for request, tokens, cut in zip(requests, whole, cuts, strict=True)
        ]
        dice.shuffle(order := list(range(TOGETHER)))
        found = dict(zip(order, engine.run_requests([rests[row] for row in order]), strict=True))
        equal += [float(found[row] == whole[row][cuts[row] :]) for row in range(TOGETHER)]
    engine.close()
    share = sum(equal) / len(equal)
    tell(f"share of {len(equal)} cut requests that are the same", [share], ">=0.99")


def draw_request(engine: EngineSubject, dice: random.Random) -> EngineRequest:
    sampling = SamplingParams(
        seed=dice.getrandbits(63),
        temperature=dice.uniform(0.3, 1.3),
        top_p=dice.choice([1.0, dice.uniform(0.5, 1.0)]),
        top_k=dice.choice([0, dice.randint(2, 50)]),
        min_p=dice.choice([0.0, 0.05]),
        presence_penalty=dice.choice([0.0, 0.5]),
        frequency_penalty=dice.choice([0.0, 0.5]),
        repetition_penalty=dice.choice([1.0, 1.2]),
    )
    prompt = [dice.randrange(SMALL["vocab_size"]) for _ in range(dice.randint(1, 120))]
    return engine.request(prompt, dice.randint(2, 60), sampling)
