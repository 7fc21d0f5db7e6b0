"""Attention kernels: which is taken, how it is called, and what happens to one that is wrong."""

import inspect
import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention.flash_attention import FlashAttentionBackend, kernel_sources
from engine.attention.paged_attention import LayerAttentionSpec
from engine.attention.selection import AttentionChoice, Candidate, choose_attention
from engine.request import Failed
from tests.support.engines import (
    Bench,
    attend_with,
    make_prompt,
    make_request,
    save_random_model,
    start_model,
)
from tests.support.flash import flash_attn_with_kvcache as flash

CPU = torch.device("cpu")
PLAIN = LayerAttentionSpec(
    num_heads=4, num_kv_heads=2, key_size=16, value_size=16, window=None, sinks=False, softcap=None
)
NEEDS = [
    PLAIN,
    replace(PLAIN, window=12),
    replace(PLAIN, window=40, sinks=True),
    replace(PLAIN, sinks=True, num_heads=6, num_kv_heads=1),
    replace(PLAIN, softcap=5.0),
]


def choose(
    needs: Collection[LayerAttentionSpec],
    dtype: torch.dtype,
    sources: Mapping[str, Callable[[], FlashAttentionBackend]],
) -> AttentionChoice:
    kernels = [Candidate(name, load) for name, load in sources.items()]
    return choose_attention(needs, dtype, CPU, kernels=kernels)


def find(
    function: Callable[..., Tensor], *needs: LayerAttentionSpec, dtype: torch.dtype = torch.bfloat16
) -> FlashAttentionBackend | None:
    found = choose(needs, dtype, {"a kernel": partial(FlashAttentionBackend, "a kernel", function)}).backend
    assert found is None or isinstance(found, FlashAttentionBackend)
    return found


@pytest.mark.parametrize("needs", NEEDS, ids=str)
def test_a_kernel_that_is_right_is_taken(needs: LayerAttentionSpec) -> None:
    kernel = find(flash, needs)
    assert kernel is not None
    assert kernel.name == "a kernel"


@pytest.mark.parametrize("needs", NEEDS, ids=str)
@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("window_size", lambda window: (window[0] + 1, window[1]) if window[0] >= 0 else (3, 0)),
        ("cache_seqlens", lambda lengths: lengths - (lengths > 1).int()),
        ("softmax_scale", lambda _scale: 1.0),
        ("page_table", lambda tables: tables.flip(1)),
        ("cu_seqlens_q", lambda starts: starts.clone().clamp(max=3)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_kernel_that_takes_an_argument_otherwise_is_left(
    needs: LayerAttentionSpec, argument: str, change: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert find(_spoiled(argument, change), needs) is None
    (line,) = caplog.messages
    assert line.startswith("the attention kernel a kernel is not used: ")


def _spoiled(argument: str, change: Callable[[Any], Any]) -> Callable[..., Tensor]:
    """The kernel, which understands one argument otherwise."""

    def spoiled(**given: Any) -> Tensor:
        return flash(**{**given, argument: change(given[argument])})

    spoiled.__signature__ = inspect.signature(flash)  # type: ignore[attr-defined]
    return spoiled


# What it cannot do at all


@pytest.mark.parametrize(
    ("needs", "dtype", "why"),
    [
        (PLAIN, torch.float32, "it does not compute in float32"),
        (replace(PLAIN, value_size=8), torch.bfloat16, "keys of 16 and values of 8 differ in size"),
        (replace(PLAIN, key_size=512, value_size=512), torch.bfloat16, "heads of 512 are not served"),
        (replace(PLAIN, key_size=20, value_size=20), torch.bfloat16, "heads of 20 are not served"),
        (replace(PLAIN, sinks=True), torch.float16, "it knows sinks in bfloat16 only"),
    ],
    ids=str,
)
def test_a_kernel_is_left_for_what_it_cannot_do(
    needs: LayerAttentionSpec, dtype: torch.dtype, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert find(flash, PLAIN, needs, dtype=dtype) is None
    assert caplog.messages == [f"the attention kernel a kernel is not used: {why}"]


@pytest.mark.parametrize(
    ("dropped", "needs", "why"),
    [
        ("s_aux", replace(PLAIN, sinks=True), "it does not know sinks"),
        ("softcap", replace(PLAIN, softcap=5.0), "it cannot cap scores"),
        ("page_table", PLAIN, "ValueError: it does not take page_table"),
        ("cu_seqlens_q", PLAIN, "ValueError: it does not take cu_seqlens_q"),
    ],
)
def test_a_kernel_without_a_parameter_is_left_where_that_is_needed(
    dropped: str, needs: LayerAttentionSpec, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    signature = inspect.signature(flash)
    kept = [p for name, p in signature.parameters.items() if name != dropped]

    def poorer(**given: Any) -> Tensor:
        assert dropped not in given
        return flash(**given)

    poorer.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    assert find(poorer, needs) is None
    assert caplog.messages == [f"the attention kernel a kernel is not used: {why}"]


@pytest.mark.parametrize(("known", "other"), [("page_table", "block_table"), ("s_aux", "learnable_sink")])
def test_a_kernel_may_call_its_arguments_otherwise(known: str, other: str) -> None:
    signature = inspect.signature(flash)
    renamed = [p.replace(name=other if n == known else n) for n, p in signature.parameters.items()]

    def same(**given: Any) -> Tensor:
        return flash(**{known if name == other else name: value for name, value in given.items()})

    same.__signature__ = signature.replace(parameters=renamed)  # type: ignore[attr-defined]
    assert find(same, replace(PLAIN, sinks=True)) is not None


def test_a_kernel_that_raises_is_left(caplog: pytest.LogCaptureFixture) -> None:
    def broken(**_given: Any) -> Tensor:
        raise RuntimeError("no kernel image is available\nfor this device")

    broken.__signature__ = inspect.signature(flash)  # type: ignore[attr-defined]
    assert find(broken, PLAIN) is None
    assert "no kernel image is available for this device" in caplog.messages[0]


# Where they come from


def test_nothing_is_said_where_no_kernel_is_installed(caplog: pytest.LogCaptureFixture) -> None:
    assert choose([PLAIN], torch.bfloat16, kernel_sources()).backend is None
    assert caplog.messages == []


def test_an_installed_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.SimpleNamespace(flash_attn_with_kvcache=flash)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    found = choose([PLAIN], torch.bfloat16, kernel_sources()).backend
    assert found is not None
    assert found.name == "flash_attn_interface"


def test_the_hub_is_asked_for_the_commit_that_the_operator_names_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Any] = []

    def get_kernel(name: str, revision: str) -> Any:
        asked.append((name, revision))
        if len(asked) > 1:
            raise OSError("the hub cannot be reached")
        return types.SimpleNamespace(flash_attn_with_kvcache=flash)

    monkeypatch.setitem(sys.modules, "kernels", types.SimpleNamespace(get_kernel=get_kernel))
    assert choose([PLAIN], torch.bfloat16, kernel_sources()).backend is None
    assert asked == []
    commit = "0123456789" * 4
    named = kernel_sources(f"kernels-community/vllm-flash-attn3@{commit}")
    found = choose([PLAIN], torch.bfloat16, named).backend
    assert found is not None
    assert found.name == f"kernels-community/vllm-flash-attn3@{commit}"
    assert choose([PLAIN], torch.bfloat16, named).backend is None
    assert "the hub cannot be reached" in caplog.messages[0]
    assert asked == [("kernels-community/vllm-flash-attn3", commit)] * 2


# A whole engine on it

MODELS: dict[str, dict[str, Any]] = {
    "Qwen3Config": {},
    "GptOssConfig": {"sliding_window": 12, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Gemma2Config": {"sliding_window": 12, "attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 1},
}
JOBS = [make_request(str(n), make_prompt(4 + 9 * n, n), 8 + 7 * n) for n in range(6)]


def run(bench: Bench) -> list[list[int]]:
    outcomes = bench.run(*JOBS)
    again = bench.run(make_request("again", [*JOBS[5].prompt, *outcomes[5].tokens, 5, 6], 9))
    assert again[0].last.usage.cached > 0
    bench.engine.close(drain=True)
    assert not any(isinstance(outcome.last, Failed) for outcome in outcomes)
    return [outcome.tokens for outcome in [*outcomes, *again]]


@pytest.mark.parametrize("decode", ["eager", "static"])
@pytest.mark.parametrize("config_name", MODELS)
def test_an_engine_with_a_kernel_gives_the_same_tokens(
    config_name: str, decode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, where two right answers do not differ; so the kernel is handed in, not looked for."""
    path = save_random_model(config_name, num_hidden_layers=2, **MODELS[config_name])
    settings: dict[str, Any] = {"token_budget": 24, "max_running": 4, "kv_blocks": 24}
    expected = run(start_model(path, **settings))
    calls = 0

    def counted(**given: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return flash(**given)

    counted.__signature__ = inspect.signature(flash)  # type: ignore[attr-defined]
    kernel = FlashAttentionBackend("a kernel", counted)
    choice = AttentionChoice("a kernel", 16, kernel)
    attend_with(monkeypatch, choice)
    bench = start_model(path, decode=decode, **settings)
    assert bench.engine.model_info.attention == "a kernel"
    assert run(bench) == expected
    assert calls > 100
