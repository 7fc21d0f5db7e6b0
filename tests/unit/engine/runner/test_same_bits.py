"""In bfloat16 a request's tokens and log probabilities are the same whatever the engine does beside them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.config import ModelRefused
from engine.request import EngineRequest, TokenLogprobs
from tests.support.engines import Bench, make_request, save_random_model, start_model
from tests.support.equal_bits import with_equal_bits
from tests.support.tiny_architectures import architectures, save_tiny

WIDE = {"max_position_embeddings": 2048, "hidden_size": 96, "intermediate_size": 160, "head_dim": 32}
MODELS: dict[str, Callable[[], Path]] = {
    "the demo model": lambda: Path("demo/holdfast-demo"),
    "a window": lambda: save_random_model("MistralConfig", sliding_window=40, **WIDE),
    "windows, sinks and experts": lambda: save_random_model(
        "GptOssConfig", sliding_window=24, num_local_experts=4, num_experts_per_tok=2, **WIDE
    ),
    "a key head for each": lambda: save_random_model("Qwen3Config", **{**WIDE, "num_key_value_heads": 4}),
    "one key head": lambda: save_random_model("Qwen3Config", **{**WIDE, "num_key_value_heads": 1}),
    "experts": lambda: save_random_model(
        "Qwen3MoeConfig", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48, **WIDE
    ),
    "capped scores": lambda: save_random_model("Gemma2Config", **WIDE),
}
ALONE = {
    "states and a delta rule": "Qwen3_5TextConfig",
    "states of Mamba 2 and experts": "GraniteMoeHybridConfig",
    "convolutions": "Lfm2Config",
    "states only": "MambaConfig",
}
"""Configurations of models that compute each request alone where answers must be exact, on any processor."""
COUNT = 24
LENGTHS = (3, 33, 64, 65, 130, 300, 530)
Said = tuple[list[int], list[TokenLogprobs]]


@dataclass(frozen=True)
class Model:
    folder: Path
    exact: str = "auto"


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(name, marks=with_equal_bits) for name in MODELS),
        *(pytest.param(name, marks=() if "delta" in name else pytest.mark.faults) for name in ALONE),
    ],
)
def model(request: pytest.FixtureRequest) -> Model:
    if request.param in MODELS:
        return Model(MODELS[request.param]())
    return Model(save_tiny(architectures()[ALONE[request.param]])[0], exact="on")


def start(model: Model, **settings: Any) -> Bench:
    defaults = {"dtype": "bfloat16", "max_running": 8, "kv_blocks": 400, "prompt_lookup": "auto"}
    return start_model(model.folder, **{**defaults, "exact": model.exact, **settings})


def requests(bench: Bench) -> list[EngineRequest]:
    dice, info = Random(11), bench.executor.model_info
    return [
        make_request(
            str(length),
            [dice.randrange(10, info.vocab_size) for _ in range(length)],
            COUNT,
            temperature=dice.choice([0.0, 0.8, 1.2]),
            seed=length,
            logprobs=3,
            ignore_eos=True,
        )
        for length in LENGTHS
        if length + COUNT <= info.context_length
    ]


@pytest.fixture(scope="module")
def alone(model: Model) -> list[Said]:
    bench = start(model)
    found = [bench.say(request)[0] for request in requests(bench)]
    bench.engine.close(drain=True)
    assert len({token for tokens, _ in found for token in tokens}) > 10
    return found


@pytest.mark.parametrize(
    "settings", [{}, {"token_budget": 16}, {"token_budget": 64}, {"block_size": 48}], ids=str
)
def test_together_and_in_chunks(model: Model, alone: list[Said], settings: dict[str, Any]) -> None:
    bench = start(model, **settings)
    assert bench.say(*requests(bench)) == alone
    bench.engine.close(drain=True)


def test_after_preemption(model: Model, alone: list[Said]) -> None:
    bench = start(model, kv_blocks=11, block_size=16)
    few = [replace(each, max_tokens=60) for each in requests(bench)[3::-1]]
    found = bench.say(*few)
    assert bench.engine.stats().preemptions > 0
    assert [(tokens[:COUNT], entries[:COUNT]) for tokens, entries in found] == alone[3::-1]
    assert found == [bench.say(replace(each, request_id=each.request_id + " alone"))[0] for each in few]
    bench.engine.close(drain=True)


def test_resumed_after_some_tokens_and_with_a_prefix_that_is_cached(model: Model, alone: list[Said]) -> None:
    bench = start(model)
    for stored in (5, 17):
        rest = [
            make_request(
                f"{each.request_id} after {stored}",
                [*each.prompt, *tokens[:stored]],
                COUNT - stored,
                temperature=each.sampling.temperature,
                seed=each.sampling.seed,
                logprobs=3,
                ignore_eos=True,
                output_offset=stored,
            )
            for each, (tokens, _) in zip(requests(bench), alone, strict=True)
        ]
        assert bench.say(*rest) == [(tokens[stored:], entries[stored:]) for tokens, entries in alone]
    bench.engine.close(drain=True)


@with_equal_bits
def test_a_model_whose_bits_are_equal_is_served_where_answers_must_be_exact() -> None:
    start(Model(MODELS["the demo model"]()), exact="on").engine.close(drain=True)


@with_equal_bits
@pytest.mark.parametrize(("name", "dtype"), [("experts", "bfloat16"), ("the demo model", "float32")])
def test_another_model_is_refused_where_answers_must_be_exact(name: str, dtype: str) -> None:
    with pytest.raises(ModelRefused, match=r"are not exact: .*; with `exact` auto it is served"):
        start(Model(MODELS[name]()), exact="on", dtype=dtype)


@with_equal_bits
@pytest.mark.parametrize("name", ["weights that are packed once", "weights that are not packed"])
def test_a_model_whose_products_are_not_exact_is_refused_though_a_short_prompt_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "weights that are packed once":
        monkeypatch.setattr("engine.model.prepacked_linear.free_memory", lambda: 0)
    folder = save_random_model("GPT2Config" if "not" in name else "LlamaConfig", **WIDE)
    with pytest.raises(ModelRefused, match="sums of its products depend on how many tokens they get"):
        start(Model(folder), exact="on")
