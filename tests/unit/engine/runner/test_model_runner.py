"""What only a model can get wrong: chunks, preemption, reuse, and numbers that are none."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.executor import OutOfMemory
from engine.request import Failed, StructuredOutput, Tokens
from engine.runner.load_runner import load_runner
from engine.runner.torch_errors import translate_errors
from server.configuration.shipped_files import demo_model_folder
from tests.support.engines import (
    Bench,
    Outcome,
    make_prompt,
    make_request,
    save_random_model,
    start_model,
    tiny_model,
)

JOBS = [make_request(str(n), make_prompt(7 + 11 * n, n), 30) for n in range(5)]


@pytest.fixture(scope="module", params=["Qwen3Config", "GptOssConfig"])
def model(request: pytest.FixtureRequest) -> Callable[..., Bench]:
    """Starts an engine on a plain model, or on one with windows, sinks and experts."""
    path = save_random_model(
        request.param, sliding_window=12, num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=2
    )
    return lambda **settings: start_model(path, **settings)


def tokens(outcomes: list[Outcome]) -> list[list[int]]:
    assert not any(isinstance(outcome.last, Failed) for outcome in outcomes)
    return [outcome.tokens for outcome in outcomes]


@pytest.fixture(scope="module")
def alone(model: Callable[..., Bench]) -> list[list[int]]:
    """The tokens of each request with an engine of its own and nothing to share."""
    result = []
    for request in JOBS:
        bench = model(max_running=1)
        result += tokens(bench.run(request))
        bench.engine.close(drain=True)
    return result


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"token_budget": 5, "max_running": 5},
        {"kv_blocks": 8},
        {"kv_blocks": 9, "token_budget": 7, "max_running": 3},
        {"block_size": 1, "kv_blocks": 200},
        {"block_size": 64},
    ],
    ids=str,
)
def test_tokens_are_the_same_however_little_room_there_is(
    model: Callable[..., Bench], settings: dict[str, Any], alone: list[list[int]]
) -> None:
    bench = model(**settings)
    assert tokens(bench.run(*JOBS)) == alone
    bench.engine.close(drain=True)


def test_a_tiny_pool_preempts() -> None:
    bench = start_model(tiny_model(), kv_blocks=8)
    before = bench.run(*JOBS)
    # Without preemption each step would have given a token to all that had begun.
    assert sum(outcome.deliveries for outcome in before) == 5 * 30
    assert bench.engine.stats().steps > 31 + 5
    bench.engine.close(drain=True)


def test_tokens_are_the_same_when_the_beginning_is_reused(model: Callable[..., Bench]) -> None:
    fresh, warm = model(), model()
    history = make_prompt(60)
    warm.run(make_request("first", history, 20))
    (expected,) = fresh.run(make_request("second", history + make_prompt(15, 2), 20))
    (outcome,) = warm.run(make_request("second", history + make_prompt(15, 2), 20))
    assert (expected.last.usage.cached, outcome.last.usage.cached) == (0, 48)
    assert outcome.tokens == expected.tokens
    for bench in (fresh, warm):
        bench.engine.close(drain=True)


def test_a_running_requests_beginning_is_reused_while_it_runs(model: Callable[..., Bench]) -> None:
    bench = model()
    (expected,) = bench.run(make_request("alone", make_prompt(40), 20, cache_salt="other"))

    def submit_second(message: object) -> None:
        if len(bench.listener.of("first")) == 3 and isinstance(message, Tokens):
            bench.engine.submit(make_request("second", make_prompt(40), 20))

    bench.listener.when_told = submit_second
    (first,) = bench.run(make_request("first", make_prompt(40), 20))
    bench.listener.when_told = lambda _message: None
    second = bench.listener.outcome("second")
    assert second.last.usage.cached == 32
    assert first.tokens == second.tokens == expected.tokens
    bench.engine.close(drain=True)


def test_numbers_that_are_none_fail_their_request_and_reach_no_other() -> None:
    bench = start_model(tiny_model(), kv_blocks=8)
    poison = 96
    with torch.no_grad():
        bench.network.get_input_embeddings().weight[poison] = float("nan")
    bad = make_request("bad", [*(t % 96 for t in make_prompt(39, 9)), poison, 5, 6], 20)
    fine = [make_request(str(n), [t % 96 for t in make_prompt(20, n)], 12, temperature=0.0) for n in range(3)]
    expected = [
        bench.run(replace(request, request_id=f"first {request.request_id}"))[0].tokens for request in fine
    ]
    *others, failed = bench.run(*fine, bad)
    assert isinstance(failed.last, Failed)
    assert failed.last.code == "engine_error"
    # Three times round the pool: whatever the bad request left behind would be met.
    after = [
        bench.run(replace(request, request_id=f"{request.request_id} {n}"))[0]
        for n in range(3)
        for request in fine
    ]
    assert tokens(others) == expected
    assert tokens(after) == expected * 3
    (again,) = bench.run(replace(bad, request_id="again"))
    assert again.last.usage.cached == 0
    assert isinstance(again.last, Failed)
    bench.engine.close(drain=True)


def test_a_failed_device_ends_the_engine() -> None:
    bench = start_model(tiny_model())

    def fault(*_args: object, **_kwargs: object) -> None:
        raise torch.AcceleratorError("unspecified launch failure")

    bench.network.forward = fault
    (outcome,) = bench.run(make_request("a", make_prompt(20)))
    assert isinstance(outcome.last, Failed)
    assert outcome.last.code == "engine_dead"
    assert not bench.engine.stats().alive


def test_what_a_pass_without_memory_had_is_free_before_the_next() -> None:
    left: list[weakref.ref[torch.Tensor]] = []

    def fail() -> None:
        tensor = torch.zeros(100)
        left.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("none")

    with pytest.raises(OutOfMemory) as caught, translate_errors():
        fail()
    assert left[0]() is None, caught.value


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("none"),
        torch.OutOfMemoryError("none"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("NCCL Error 1: unhandled cuda error 'out of memory'"),
        torch.AcceleratorError("CUDA error: out of memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lack_of_memory_is_known_as_such(error: Exception) -> None:
    bench = start_model(tiny_model())
    forward = bench.network.forward

    def starve(*_args: object, **_kwargs: object) -> None:
        bench.network.forward = forward
        raise error

    starve.__signature__ = None  # type: ignore[attr-defined]
    bench.network.forward = starve
    (outcome,) = bench.run(make_request("a", [5]))
    assert isinstance(outcome.last, Failed)
    assert outcome.last.code == "out_of_memory"
    assert bench.engine.stats().alive
    bench.engine.close(drain=True)


def test_what_every_grammar_needs_is_made_while_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(model=demo_model_folder(), device="cpu", torch_threads=1)
    executor, _limits = load_runner(config, lambda _line: None)
    assert executor.grammars is not None
    monkeypatch.setattr("llguidance.LLTokenizer", None)  # which would keep every thread waiting
    try:
        executor.grammars.compiled(StructuredOutput(kind="regex", text="a"))
    finally:
        executor.grammars.close()
