"""Drafts change no token and no log probability of any request, whatever it asks for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.request import EngineRequest, StructuredOutput, ThinkingBudget, TokenLogprobs
from engine.scheduling.drafts import StepCosts
from tests.support.engines import Bench, make_request, save_random_model, start_model
from tests.support.equal_bits import with_equal_bits

pytestmark = with_equal_bits
WIDE = {"max_position_embeddings": 2048, "hidden_size": 96, "intermediate_size": 160, "head_dim": 32}
MODELS: dict[str, Callable[[], Path]] = {
    "the demo model": lambda: Path("demo/holdfast-demo"),
    "windows and sinks": lambda: save_random_model(
        "GptOssConfig", sliding_window=24, num_local_experts=4, num_experts_per_tok=2, **WIDE
    ),
}
COUNT = 40
DEMO_ONLY: dict[str, dict[str, Any]] = {
    "a pattern": {"grammar": StructuredOutput(kind="regex", text="([a-c]{3} ){4,6}(yes|no)[0-9]{2,9}")},
    "JSON, sampled": {
        "grammar": StructuredOutput(
            kind="json_schema", text='{"type": "array", "items": {"type": "integer"}}'
        ),
        "temperature": 1.0,
        "bad_words": ((33,), (21, 22)),
    },
}
FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.95},
    "of few": {"temperature": 1.1, "top_k": 20},
    "of many": {"temperature": 1.1, "min_p": 0.001},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "sampled penalties": {"temperature": 0.8, "repetition_penalty": 1.1},
    "biases": {"logit_bias": ((20, 3.0), (30, -2.0)), "temperature": 0.7},
    "forbidden": {"bad_words": ((40,), (41, 42), (50, 51, 52)), "temperature": 0.9},
    "allowed": {"allowed_token_ids": tuple(range(20, 60)), "temperature": 1.0},
    "the end comes late": {
        "min_tokens": 30,
        "stop_token_ids": frozenset(range(10, 96, 3)),
        "temperature": 1.0,
    },
    "named": {"logprob_token_ids": (11, 12, 13), "temperature": 0.6},
    "thinks": {
        "thinking_budget": ThinkingBudget(tokens=9, start=(70,), end=(71, 72), open=True),
        "temperature": 0.8,
    },
}
Said = tuple[list[int], list[TokenLogprobs]]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Path:
    return MODELS[request.param]()


def start(model: Path, **settings: Any) -> Bench:
    return start_model(
        model,
        **{"dtype": "bfloat16", "max_running": 16, "kv_blocks": 600, "prompt_lookup": "auto", **settings},
    )


@pytest.fixture
def free_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further rows of a step cost nearly nothing, so that every draft is tried."""
    free = StepCosts({1: 1.0, 64: 1.001})
    monkeypatch.setattr("engine.runner.row_costs.measure_steps", lambda *_args: free)


def requests(bench: Bench) -> list[EngineRequest]:
    dice = Random(5)
    features = {**FEATURES, **(DEMO_ONLY if bench.executor.grammars is not None else {})}
    return [
        make_request(
            name,
            [dice.randrange(10, 96) for _ in range(dice.choice((5, 40, 130)))],
            COUNT,
            seed=number,
            logprobs=3,
            **{"ignore_eos": True, "stop_ids": bench.executor.model_info.stop_ids, **feature},
        )
        for number, (name, feature) in enumerate(features.items())
    ]


@pytest.fixture(scope="module")
def plain(model: Path) -> list[Said]:
    bench = start(model, prompt_lookup="off")
    found = [bench.say(request)[0] for request in requests(bench)]
    assert bench.engine.stats().draft_tokens == 0
    bench.engine.close(drain=True)
    return found


def predicted(request: EngineRequest, tokens: list[int], begin: int = 0) -> EngineRequest:
    """The request with a prediction in which every ninth token is wrong."""
    wrong = [token if at % 9 < 8 else 10 + token % 80 for at, token in enumerate(tokens[begin:])]
    return replace(request, prediction=tuple(wrong))


def assert_drafted(bench: Bench) -> None:
    stats = bench.engine.stats()
    assert 0 < stats.accepted_tokens < stats.draft_tokens


@pytest.mark.usefixtures("free_rows")
@pytest.mark.parametrize("settings", [{}, {"token_budget": 24}], ids=str)
def test_beside_strangers(model: Path, plain: list[Said], settings: dict[str, Any]) -> None:
    bench = start(model, **settings)
    ours = [predicted(each, tokens) for each, (tokens, _) in zip(requests(bench), plain, strict=True)]
    for request, found, expected in zip(ours, bench.say(*ours), plain, strict=True):
        assert found == expected, request.request_id
    assert_drafted(bench)
    bench.engine.close(drain=True)


@pytest.mark.usefixtures("free_rows")
def test_alone_and_then_with_a_prefix_that_is_cached(model: Path, plain: list[Said]) -> None:
    bench = start(model)
    for request, expected in zip(requests(bench), plain, strict=True):
        for turn in ("first", "second"):
            ours = predicted(replace(request, request_id=f"{turn} {request.request_id}"), expected[0])
            assert bench.say(ours) == [expected], ours.request_id
    assert_drafted(bench)
    bench.engine.close(drain=True)


@pytest.mark.usefixtures("free_rows")
def test_after_preemption(model: Path, plain: list[Said]) -> None:
    bench = start(model, kv_blocks=8, block_size=16)
    pairs = [(each, said) for each, said in zip(requests(bench), plain, strict=True) if len(each.prompt) < 50]
    ours = [predicted(each, said[0]) for each, said in pairs]
    assert bench.say(*ours) == [said for _, said in pairs]
    assert bench.engine.stats().preemptions > 0
    assert_drafted(bench)
    bench.engine.close(drain=True)


@pytest.mark.usefixtures("free_rows")
def test_resumed_within_a_draft(model: Path, plain: list[Said]) -> None:
    bench = start(model)
    for stored in (4, 13):
        rest = [
            predicted(
                replace(
                    each,
                    request_id=f"{each.request_id} after {stored}",
                    prompt=(*each.prompt, *tokens[:stored]),
                    max_tokens=COUNT - stored,
                    output_offset=stored,
                ),
                tokens,
            )
            for each, (tokens, _) in zip(requests(bench), plain, strict=True)
        ]
        expected = [(tokens[stored:], entries[stored:]) for tokens, entries in plain]
        assert bench.say(*rest) == expected
    assert_drafted(bench)
    bench.engine.close(drain=True)


@pytest.mark.usefixtures("free_rows")
def test_a_draft_that_spoils_a_row_costs_time_only(
    model: Path, plain: list[Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows behind a rejected token may have any logits, even none."""
    bench = start(model)
    compute = bench.executor._forward_packed

    def spoil(*args: Any) -> Any:
        forward = compute(*args)
        row = 0
        for draft in forward.drafts:
            row += 1 + len(draft)
            if draft:
                forward.logits[row - 1] = float("nan")
        return forward

    monkeypatch.setattr(bench.executor, "_forward_packed", spoil)
    ours = [predicted(each, tokens) for each, (tokens, _) in zip(requests(bench), plain, strict=True)]
    assert bench.say(*ours) == plain
    assert bench.engine.stats().preemptions > 0
    bench.engine.close(drain=True)
