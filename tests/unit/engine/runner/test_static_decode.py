"""Static steps give what packed ones give, whatever comes and goes between them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.attention.paged_attention import PagedForward, current_step
from engine.config import EngineConfig
from engine.request import Failed, SamplingParams
from engine.runner.cuda_graphs import choose_buckets
from tests.support.engines import Bench, make_prompt, make_request, save_random_model, start_model

SMALL: dict[str, Any] = {"num_hidden_layers": 2, "sliding_window": 12, "num_local_experts": 4}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3Config": {},
    "GptOssConfig": {"num_experts_per_tok": 2},
    "MistralConfig": {},
    "Gemma2Config": {"attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 1},
    "DeepseekV3Config": {
        "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
        "num_key_value_heads": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2,
        "sliding_window": None,
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    path = save_random_model(request.param, **{**SMALL, **MODELS[request.param]})
    return lambda **settings: start_model(path, **settings)


@pytest.fixture(scope="module")
def packed(model: Any) -> list[list[int]]:
    """The tokens of the jobs from packed steps with room for all."""
    return run(model(), JOBS)


JOBS = [make_request(str(n), make_prompt(4 + 9 * n, n), 8 + 7 * n) for n in range(6)]


def run(bench: Bench, requests: list[Any]) -> list[list[int]]:
    outcomes = bench.run(*requests)
    bench.engine.close(drain=True)
    assert not any(isinstance(outcome.last, Failed) for outcome in outcomes)
    return [outcome.tokens for outcome in outcomes]


def on_static_steps(bench: Bench, act: Callable[[int], object]) -> None:
    """Calls `act` before each static step that is taken from now on, with its number of rows."""

    def see(_network: object, _arguments: object, named: dict[str, Any]) -> None:
        if isinstance(current_step.get(), PagedForward):  # packed steps on a CPU have no paged kernel
            act(named["input_ids"].shape[1])

    bench.network.register_forward_pre_hook(see, with_kwargs=True)


@pytest.mark.parametrize("settings", [{}, {"max_running": 3, "token_budget": 9}, {"kv_blocks": 9}], ids=str)
def test_greedy_tokens_are_those_of_packed_steps(
    model: Any, settings: dict[str, Any], packed: list[list[int]]
) -> None:
    bench = model(decode="static", **settings)
    rows: list[int] = []
    on_static_steps(bench, rows.append)
    assert run(bench, JOBS) == packed
    assert len(rows) > 20
    assert len({token for tokens in packed for token in tokens}) > 6


def test_rows_are_padded_to_a_power_of_two(model: Any) -> None:
    bench = model(decode="static")
    rows: list[int] = []
    on_static_steps(bench, rows.append)
    run(bench, JOBS[:3])
    assert set(rows) == {4, 2, 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.9, "top_p": 0.8, "seed": 3},
        {"temperature": 1.0, "top_k": 7, "seed": 4, "repetition_penalty": 1.3},
        {"logprobs": 3},
        {"temperature": 0.8, "prompt_logprobs": 2, "logprobs": 1},
    ],
    ids=str,
)
def test_all_that_requests_may_ask_for_is_told_alike(model: Any, fields: dict[str, Any]) -> None:
    sampling = {k: v for k, v in fields.items() if k in SamplingParams.__dataclass_fields__}
    others = {k: v for k, v in fields.items() if k not in sampling}
    requests = [
        replace(
            request,
            sampling=replace(request.sampling, **sampling),
            **others,
            request_id=f"{request.request_id}!",
        )
        for request in JOBS
    ]
    told = []
    for settings in ({}, {"decode": "static"}):
        bench = model(**settings)
        outcomes = bench.run(*requests)
        bench.engine.close(drain=True)
        tokens = [outcome.tokens for outcome in outcomes]
        told.append(
            (tokens, [number for request in requests for number in _logprobs(bench, request.request_id)])
        )
    assert told[0][0] == told[1][0]
    assert told[0][1] == pytest.approx(told[1][1], abs=1e-4)
    assert bool(told[0][1]) == bool(others)


def _logprobs(bench: Bench, request_id: str) -> Iterator[float]:
    for message in bench.listener.of(request_id):
        for told in getattr(message, "logprobs", None) or ():
            yield told.chosen
            yield from (number for _, number in told.top)


def test_a_step_that_failed_leaves_no_doubt_about_the_tables(model: Any, packed: list[list[int]]) -> None:
    bench = model(decode="static")
    steps: list[int] = []

    def fail_once(rows: int) -> None:
        steps.append(rows)
        if len(steps) == 5:
            raise RuntimeError("once")

    on_static_steps(bench, fail_once)
    outcomes = bench.run(*(replace(request, request_id=f"first {request.request_id}") for request in JOBS))
    assert any(isinstance(outcome.last, Failed) for outcome in outcomes)
    assert run(bench, JOBS) == packed


def test_numbers_that_are_none_reach_no_other_request(model: Any) -> None:
    bench = model(decode="static", kv_blocks=12)
    fine = [make_request(str(n), [t % 96 for t in make_prompt(20, n)], 12) for n in range(3)]
    expected = [
        bench.run(replace(request, request_id=f"first {request.request_id}"))[0].tokens for request in fine
    ]
    if any(96 in tokens for tokens in expected):
        pytest.skip("this model draws the poisoned token by itself")
    with torch.no_grad():
        bench.network.get_input_embeddings().weight[96] = float("nan")
    bad = make_request("bad", [*(t % 96 for t in make_prompt(20, 9)), 96, 5], 20)
    *others, failed = bench.run(*fine, bad)
    assert isinstance(failed.last, Failed)
    assert [other.tokens for other in others] == expected
    after = [
        bench.run(replace(request, request_id=f"{request.request_id} {n}"))[0]
        for n in range(3)
        for request in fine
    ]
    assert [outcome.tokens for outcome in after] == expected * 3
    bench.engine.close(drain=True)


def test_a_cpu_computes_packed_rows_unless_it_is_told_otherwise(model: Any) -> None:
    bench = model()
    model_info = bench.engine.model_info
    assert (model_info.attention, model_info.decode) == ("sdpa", "eager")
    assert not bench.executor.pipelined
    rows: list[int] = []
    on_static_steps(bench, rows.append)
    bench.run(JOBS[0])
    assert rows == []
    bench.engine.close(drain=True)


def test_an_engine_says_that_its_steps_are_static(model: Any) -> None:
    bench = model(decode="static")
    assert bench.engine.model_info.decode == "static"
    bench.engine.close(drain=True)


def test_shapes_have_one_width_where_a_kernel_reads_tables() -> None:
    shapes = choose_buckets(48, 4096, 16, gathers=False)
    assert [shape.rows for shape in shapes] == [1, 2, 4, 8, 16, 32, 48]
    assert {shape.width for shape in shapes} == {256}


def test_shapes_that_gather_have_some_widths_as_far_as_they_fit() -> None:
    shapes = choose_buckets(64, 40960, 16, gathers=True)
    assert {shape.width * 16 for shape in shapes if shape.rows == 1} == {512, 2048, 8192, 32768, 40960}
    assert {shape.width * 16 for shape in shapes if shape.rows == 64} == {512, 2048}


@pytest.mark.parametrize("name", ["decode", "attention"])
def test_an_unknown_way_to_compute_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} 'fast' is not known"):
        EngineConfig(model=None, **{name: "fast"})  # type: ignore[arg-type]
