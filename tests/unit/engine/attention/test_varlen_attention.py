"""torch's kernel for pages: what it is given, where it is left, and a whole engine on a stand-in."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen

from engine.attention.flash_attention import DECODE_SPLITS, PAGE_SIZE, VarlenAttentionBackend
from engine.attention.paged_attention import LayerAttentionSpec, LayerCall
from engine.attention.selection import AttentionChoice, Candidate, choose_attention
from engine.kv_cache import KVCache, LayerShape
from engine.request import Failed
from engine.runner.input_builder import PagedInputBuilder
from engine.scheduling.block_pool import BLANK_BLOCK
from tests.support.engines import (
    Bench,
    attend_with,
    make_prompt,
    make_request,
    save_random_model,
    start_model,
)
from tests.support.steps import make_chunk
from tests.support.varlen import varlen_attn

CPU = torch.device("cpu")
AMPERE = (8, 0)
PLAIN = LayerAttentionSpec(
    num_heads=4, num_kv_heads=2, key_size=16, value_size=16, window=None, sinks=False, softcap=None
)
SERVED = [
    PLAIN,
    replace(PLAIN, num_heads=2),
    replace(PLAIN, window=12),
    replace(PLAIN, window=700),
    replace(PLAIN, window=40, sinks=True),
    replace(PLAIN, sinks=True, num_heads=6, num_kv_heads=1),
]


def choose(
    *specs: LayerAttentionSpec,
    function: Callable[..., Any] = varlen_attn,
    dtype: torch.dtype = torch.bfloat16,
    capability: tuple[int, int] = AMPERE,
    block_size: int | None = None,
) -> AttentionChoice:
    kernel = Candidate("varlen", partial(VarlenAttentionBackend, capability, function), PAGE_SIZE)
    return choose_attention(specs, dtype, CPU, block_size=block_size, kernels=[kernel])


@pytest.mark.parametrize("spec", SERVED, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_layer_that_it_serves_is_computed_right(spec: LayerAttentionSpec, dtype: torch.dtype) -> None:
    choice = choose(spec, dtype=dtype)
    assert (choice.name, choice.block_size) == ("varlen", 256)


@pytest.mark.parametrize(
    ("spec", "settings", "why"),
    [
        (PLAIN, {"dtype": torch.float32}, "it does not compute in float32"),
        (PLAIN, {"capability": (7, 5)}, "it needs compute capability 8.0, and this GPU has 7.5"),
        (PLAIN, {"block_size": 16}, "its blocks have a multiple of 256 tokens, and block_size is 16"),
        (replace(PLAIN, value_size=8), {}, "keys of 16 and values of 8 differ in size"),
        (replace(PLAIN, key_size=512, value_size=512), {}, "heads of 512 are not served"),
        (replace(PLAIN, key_size=20, value_size=20), {}, "heads of 20 are not served"),
        (replace(PLAIN, softcap=5.0), {}, "it cannot cap scores"),
    ],
    ids=str,
)
def test_it_is_left_for_what_it_cannot_do(
    spec: LayerAttentionSpec, settings: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    choice = choose(PLAIN, spec, **settings)
    assert choice.backend is None
    assert caplog.messages == [f"the attention kernel varlen is not used: {why}"]


def test_the_operators_blocks_may_hold_several_pages() -> None:
    assert choose(PLAIN, block_size=512).block_size == 512


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("window_size", lambda window: (window[0] + 1, window[1]) if window[0] >= 0 else (-1, -1)),
        ("seqused_k", lambda lengths: lengths - (lengths > 1).int()),
        ("scale", lambda _scale: 1.0),
        ("block_table", lambda tables: tables.roll(1, dims=1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_build_of_torch_that_takes_an_argument_otherwise_is_left(
    argument: str, change: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    def spoiled(*args: Any, **given: Any) -> Any:
        given[argument] = change(given[argument])
        if argument == "seqused_k":
            args = (*args[:4], torch.nn.functional.pad(given[argument].cumsum(0), (1, 0)).int(), *args[5:])
        return varlen_attn(*args, **given)

    for spec in (PLAIN, replace(PLAIN, window=40)):
        assert choose(spec, function=spoiled).backend is None
        assert "it differs from the reference by " in caplog.messages[-1]


def test_a_log_sum_of_another_layout_is_found_out() -> None:
    def spoiled(*args: Any, **given: Any) -> Any:
        out, logsumexp = varlen_attn(*args, **given)
        return out, logsumexp.flatten().view(logsumexp.shape[::-1]).T

    assert choose(replace(PLAIN, sinks=True), function=spoiled).backend is None


def test_the_stand_in_has_torchs_parameters() -> None:
    ours, torchs = (inspect.signature(each).parameters for each in (varlen_attn, varlen.varlen_attn))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in torchs.values()
    ]


def test_torch_does_not_log_a_line_for_every_call() -> None:
    assert not logging.getLogger(varlen.__name__).isEnabledFor(logging.INFO)


# What it is given


LONGEST = 2000
"""Tokens of the longest context in these steps."""


def calls_of_kernel(
    *chunks: Any, window: int | None = None, heads: int = 4
) -> tuple[list[dict[str, Any]], torch.Tensor]:
    """The arguments of the kernel for one step over a cache of 8 blocks of 256, and the step's result.

    Every request finds the same queries, and the same keys in its blocks.
    """
    seen: list[dict[str, Any]] = []

    def note(*args: Any, **given: Any) -> Any:
        seen.append(inspect.signature(varlen_attn).bind(*args, **given).arguments)
        return varlen_attn(*args, **given)

    store = KVCache([LayerShape(2, 16, 16)], 8, PAGE_SIZE, torch.float32, CPU)
    builder = PagedInputBuilder(store, VarlenAttentionBackend(AMPERE, note), {}, LONGEST)
    inputs = builder.build(chunks)
    dice = torch.Generator().manual_seed(3)
    for stored in (*store.keys, *store.values):
        stored.copy_(torch.randn(stored.shape, generator=dice))
    tokens = sum(chunk.count for chunk in chunks)
    query = torch.randn(1, heads, 16, generator=dice).expand(tokens, -1, -1)
    fresh = torch.randn(1, 2, 16, generator=dice).expand(tokens, -1, -1)
    assert inputs.attention is not None
    result = inputs.attention.attend(LayerCall(0, query, fresh, fresh, 0.25, window, None))
    return seen, result


def seen_by_kernel(*chunks: Any, **how: Any) -> dict[str, Any]:
    """The arguments of its only call."""
    (seen,), _ = calls_of_kernel(*chunks, **how)
    return seen


DECODE = make_chunk(300, 1, [3, 1])
MIDDLE = make_chunk(256, 40, [3, 5], more=9)
"""In the middle of its prompt; shares a block with the one that decodes."""
NEW = make_chunk(0, 7, [2])


def test_a_mixed_step_is_described_by_tables_and_lengths() -> None:
    seen = seen_by_kernel(DECODE, MIDDLE, NEW, heads=2)
    assert seen["block_table"].tolist() == [[3, 1], [3, 5], [2, BLANK_BLOCK]]
    assert seen["seqused_k"].tolist() == [301, 296, 7]
    assert seen["cu_seq_q"].tolist() == [0, 1, 41, 48]
    assert seen["cu_seq_k"].tolist() == [0, 301, 597, 604]
    assert (seen["max_q"], seen["max_k"]) == (40, 2048)
    assert (seen["window_size"], seen["scale"], seen["enable_gqa"]) == ((-1, 0), 0.25, False)
    assert seen["num_splits"] == 1
    assert seen.get("return_aux") is None


def test_where_heads_share_keys_requests_with_one_token_are_a_call_of_their_own() -> None:
    (folded, rest), result = calls_of_kernel(DECODE, MIDDLE, NEW)
    assert (len(folded["query"]), folded["max_q"], folded["cu_seq_q"].tolist()) == (1, 1, [0, 1])
    assert (folded["window_size"], folded["num_splits"]) == ((-1, -1), DECODE_SPLITS)
    assert (len(rest["query"]), rest["max_q"], rest["cu_seq_q"].tolist()) == (48, 40, [1, 41, 48])
    assert (rest["window_size"], rest["num_splits"]) == ((-1, 0), 1)
    assert rest["block_table"].tolist() == [[3, 5], [2, BLANK_BLOCK]]
    assert result.isfinite().all()


def test_a_window_counts_the_token_itself() -> None:
    assert seen_by_kernel(make_chunk(5, 1, [3]), window=12)["window_size"] == (11, 0)
    assert seen_by_kernel(make_chunk(5, 1, [3]), window=1)["window_size"] == (0, 0)


def test_heads_that_share_keys_are_folded_and_keys_split_where_each_request_has_one_token() -> None:
    decode = [make_chunk(300, 1, [3, 1]), make_chunk(5, 1, [2])]
    folded = seen_by_kernel(*decode)
    assert (folded["window_size"], folded["num_splits"]) == ((-1, -1), DECODE_SPLITS)
    for other in (seen_by_kernel(*decode, window=400), seen_by_kernel(*decode, heads=2)):
        assert other["window_size"][1] == 0
        assert other["num_splits"] == 1


@pytest.mark.parametrize(
    "others", [[make_chunk(1500, 1, [4, 5, 6, 7, 8, 2])], [NEW], [make_chunk(5, 1, [2]), MIDDLE]], ids=len
)
@pytest.mark.parametrize("heads", [2, 4])
def test_a_request_has_the_same_bits_whatever_runs_beside_it(others: list[Any], heads: int) -> None:
    """The kernel divides keys by the longest context that it is told, which is never that of the step."""
    (first, *_), alone = calls_of_kernel(DECODE, heads=heads)
    (other, *_), beside = calls_of_kernel(DECODE, *others, heads=heads)
    assert torch.equal(alone[0], beside[0])
    assert (first["max_k"], first["num_splits"]) == (other["max_k"], other["num_splits"])


def test_without_splits_it_is_used_where_they_are_not_right(caplog: pytest.LogCaptureFixture) -> None:
    def spoiled(*args: Any, **given: Any) -> Any:
        return varlen_attn(*args, **given) * (1 if given["num_splits"] == 1 else 2)

    kernels = [
        Candidate("varlen", partial(VarlenAttentionBackend, AMPERE, spoiled, splits=splits), PAGE_SIZE)
        for splits in (DECODE_SPLITS, 1, 0)
    ]
    choice = choose_attention([PLAIN], torch.bfloat16, CPU, kernels=kernels)
    assert isinstance(choice.backend, VarlenAttentionBackend)
    assert choice.backend.splits == 1
    assert "it differs from the reference by " in caplog.messages[-1]


def test_heads_are_not_folded_where_that_is_not_right() -> None:
    def spoiled(*args: Any, **given: Any) -> Any:
        return varlen_attn(*args, **given) * (1 if given["window_size"][1] == 0 else 2)

    folds = Candidate("folds", partial(VarlenAttentionBackend, AMPERE, spoiled, splits=1), PAGE_SIZE)
    plain = Candidate("plain", partial(VarlenAttentionBackend, AMPERE, spoiled, splits=0), PAGE_SIZE)
    assert choose_attention([PLAIN], torch.bfloat16, CPU, kernels=[folds, plain]).name == "plain"


def test_lengths_are_known_without_the_device() -> None:
    """They are the host's, so a step with other numbers may be a replay of the same graph."""
    seen = seen_by_kernel(make_chunk(3, 1, [3]))
    assert isinstance(seen["max_q"], int)
    assert isinstance(seen["max_k"], int)


# A whole engine on it

MODELS: dict[str, dict[str, Any]] = {
    "Qwen3Config": {},
    "GptOssConfig": {"sliding_window": 12, "num_local_experts": 4, "num_experts_per_tok": 2},
    "MistralConfig": {"sliding_window": 300},
}
LONG = make_prompt(590, 5)
JOBS = [
    make_request("long", LONG, 12),
    make_request("shares its first blocks", [*LONG[:520], 3, 1, 4], 12),
    make_request("is a first chunk", make_prompt(40, 2), 30),
    make_request("ends a block", make_prompt(250, 3), 12),
]


def run(bench: Bench) -> list[list[int]]:
    outcomes = bench.run(*JOBS)
    again = bench.run(make_request("again", [*LONG, *outcomes[0].tokens, 5, 6], 9))
    bench.engine.close(drain=True)
    assert not any(isinstance(outcome.last, Failed) for outcome in outcomes)
    if bench.engine.model_info.attention == "varlen":
        assert again[0].last.usage.cached == 512
    return [outcome.tokens for outcome in [*outcomes, *again]]


@pytest.mark.parametrize(
    "settings", [{"decode": "eager"}, {"decode": "static"}, {"decode": "static", "pipelined": True}], ids=str
)
@pytest.mark.parametrize("config_name", MODELS)
def test_an_engine_on_it_gives_the_same_tokens(
    config_name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, where two right answers do not differ; so the kernel is handed in, not looked for."""
    path = save_random_model(
        config_name, num_hidden_layers=2, max_position_embeddings=1024, **MODELS[config_name]
    )
    sizes = {"token_budget": 200, "max_running": 4}
    expected = run(start_model(path, **sizes))
    backend = VarlenAttentionBackend(AMPERE, varlen_attn)
    choice = AttentionChoice("varlen", PAGE_SIZE, backend)
    attend_with(monkeypatch, choice)
    assert run(start_model(path, **sizes, **{"kv_blocks": 16, **settings})) == expected
