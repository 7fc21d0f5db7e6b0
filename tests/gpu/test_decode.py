"""Recorded steps, kernels and steps ahead give on a GPU what plain ones give, also when memory runs out.

In float32 tokens are compared; in bfloat16, where two right answers may differ, likelihoods are.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.attention.paged_attention import LayerAttentionSpec
from engine.attention.selection import candidates, choose_attention
from engine.request import EngineRequest, Failed, TokenLogprobs, Tokens
from tests.support.engines import Bench, make_prompt, make_request, save_random_model, start_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

Start = Callable[..., Bench]
WINDOW = {"sliding_window": 12}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3Config": {},
    "MistralConfig": WINDOW,
    "Gemma2Config": WINDOW,
    "GptOssConfig": {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
}
RECORDABLE = ("Qwen3Config", "MistralConfig", "Gemma2Config")
"""In float32. For experts torch's grouped product is there in bfloat16 only; without it the host is asked."""

JOBS = [make_request(str(n), make_prompt(4 + 9 * n, n), 8 + 7 * n) for n in range(6)]
WAYS: list[dict[str, Any]] = [
    {"decode": "auto", "pipelined": False},
    {"decode": "auto", "pipelined": True},
    {"decode": "static", "pipelined": False},
    {"decode": "eager", "pipelined": True},
]
PLAIN: dict[str, Any] = {"decode": "eager", "pipelined": False, "attention": "sdpa"}


def start_on_gpu(config_name: str, **settings: Any) -> Bench:
    """Heads of a size that kernels have, which many small models here do not."""
    sizes = {"hidden_size": 128, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    path = save_random_model(config_name, num_hidden_layers=2, **{**sizes, **MODELS[config_name]})
    return start_model(path, **{"device": "cuda", "max_running": 4, "token_budget": 24, **settings})


def run(bench: Bench, *requests: EngineRequest) -> list[list[int]]:
    outcomes = bench.run(*requests)
    bench.engine.close(drain=True)
    assert not any(isinstance(outcome.last, Failed) for outcome in outcomes)
    return [outcome.tokens for outcome in outcomes]


@pytest.mark.parametrize("config_name", MODELS)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_tokens_are_those_of_plain_steps(config_name: str, way: dict[str, Any]) -> None:
    expected = run(start_on_gpu(config_name, **PLAIN), *JOBS)
    assert run(start_on_gpu(config_name, attention="sdpa", **way), *JOBS) == expected


@pytest.mark.parametrize("config_name", RECORDABLE)
def test_steps_are_recorded(config_name: str) -> None:
    bench = start_on_gpu(config_name)
    assert bench.engine.model_info.decode == "graphs"
    bench.engine.close(drain=True)


@pytest.mark.parametrize("config_name", MODELS)
def test_steps_of_every_model_are_recorded_in_bfloat16(config_name: str) -> None:
    bench = start_on_gpu(config_name, dtype="bfloat16")
    assert bench.engine.model_info.decode == "graphs"
    bench.engine.close(drain=True)


@pytest.mark.parametrize("config_name", MODELS)
@pytest.mark.parametrize("settings", [{"attention": "sdpa"}, {"attention": "auto"}], ids=str)
def test_in_bfloat16_likelihoods_are_about_those_of_plain_steps(
    config_name: str, settings: dict[str, Any]
) -> None:
    """`auto` is a kernel where one is installed; otherwise it is the same as the other case."""
    told = []
    for way in (PLAIN, settings):
        bench = start_on_gpu(config_name, dtype="bfloat16", **way)
        # The request says what it reads: tokens of its own could differ, and all after them.
        request = make_request("a", make_prompt(60), 1, logprobs=0, prompt_logprobs=0)
        bench.run(request, *(replace(other, request_id=f"{other.request_id}!") for other in JOBS[:3]))
        numbers = [said.chosen for said in _logprobs(bench, "a")]
        bench.engine.close(drain=True)
        told.append(numbers)
    assert told[0] == pytest.approx(told[1], abs=0.15, rel=0.05)


def _logprobs(bench: Bench, request_id: str) -> Iterator[TokenLogprobs]:
    for message in bench.listener.of(request_id):
        yield from getattr(message, "logprobs", None) or ()


@pytest.mark.parametrize("wanted", ["auto", "varlen", "sdpa"])
@pytest.mark.parametrize(
    "change", [{}, {"window": 100}, {"sinks": True}, {"window": 128, "sinks": True}], ids=str
)
def test_attention_is_right_on_this_device(wanted: Any, change: dict[str, Any]) -> None:
    """The choice compares it with plain arithmetic; `varlen` raises if it is not right."""
    needs = replace(LayerAttentionSpec(32, 8, 128, 128, None, sinks=False, softcap=None), **change)
    device = torch.device("cuda", torch.cuda.current_device())
    kernels = candidates(device, wanted, None)
    choice = choose_attention([needs], torch.bfloat16, device, requested=wanted, kernels=kernels)
    if wanted == "auto":
        assert choice.backend is not None
    else:
        assert choice.name == wanted


def test_a_gpu_without_memory_for_a_step_computes_less_at_a_time_and_goes_on() -> None:
    bench = start_on_gpu("Qwen3Config", token_budget=4096, max_running=8, kv_blocks=2000)
    expected = bench.run(*(replace(request, request_id=f"first {request.request_id}") for request in JOBS))
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(max(free - 8 * 2**20, 0), dtype=torch.uint8, device="cuda")
    try:
        outcomes = bench.run(*JOBS)
    finally:
        del hog
        torch.cuda.empty_cache()
    assert bench.engine.stats().alive
    for outcome, other in zip(outcomes, expected, strict=True):
        if isinstance(outcome.last, Failed):
            assert outcome.last.code == "out_of_memory"
        else:
            assert outcome.tokens == other.tokens
    again = bench.run(*(replace(request, request_id=f"again {request.request_id}") for request in JOBS))
    assert [outcome.tokens for outcome in again] == [outcome.tokens for outcome in expected]
    bench.engine.close(drain=True)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_tiny_pool_preempts_and_gives_the_same(way: dict[str, Any]) -> None:
    requests = [make_request(str(n), make_prompt(7 + 11 * n, n), 30) for n in range(5)]
    expected = run(start_on_gpu("Qwen3Config", **PLAIN), *requests)
    settings = {"kv_blocks": 8, "max_running": 64, "token_budget": 512, "attention": "sdpa"}
    bench = start_on_gpu("Qwen3Config", **settings, **way)
    assert run(bench, *requests) == expected
    assert bench.engine.stats().preemptions > 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "presence_penalty": 0.5},
        {"temperature": 0.7, "repetition_penalty": 1.1, "logit_bias": ((5, 1.0),)},
        {"min_tokens": 30},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        {"temperature": 1.0, "min_p": 0.05, "top_k": 90},
        {"temperature": 1.0, "logprobs": 5},
    ],
    ids=str,
)
def test_a_step_ahead_never_makes_the_host_wait(fields: dict[str, Any]) -> None:
    """torch raises where a call would wait for the device; tokens are read by an event, which is none."""
    bench = start_on_gpu("Qwen3Config")
    bench.run(make_request("warm", make_prompt(20), 40, **fields))
    seen = 0

    def watch(message: object) -> None:
        nonlocal seen
        seen += isinstance(message, Tokens)
        torch.cuda.set_sync_debug_mode("error" if 5 <= seen < 30 else "default")

    bench.listener.when_told = watch
    try:
        (outcome,) = bench.run(make_request("a", make_prompt(20, 1), 40, **fields))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    bench.engine.close(drain=True)
    assert len(outcome.tokens) == 40


def test_a_request_cancelled_on_a_gpu_is_told_of_once_more() -> None:
    bench = start_on_gpu("Qwen3Config")
    heard = 0

    def cancel(_message: object) -> None:
        nonlocal heard
        heard += 1
        if heard == 5:
            bench.engine.cancel("a")

    bench.listener.when_told = cancel
    (outcome,) = bench.run(make_request("a", make_prompt(20), 200))
    bench.engine.close(drain=True)
    assert len(outcome.tokens) == 5
