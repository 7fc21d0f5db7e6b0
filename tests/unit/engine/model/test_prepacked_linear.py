"""Layers whose weights are arranged for the processor compute what they did, and models do with them."""

from collections.abc import Iterator
from math import inf
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import engine.model.prepacked_linear
from engine.model.lora_adapter_files import sizes_of
from engine.model.prepacked_linear import (
    MIN_OUTPUT_RATIO,
    MIN_WEIGHTS,
    UNPACKED_ROWS,
    PrepackedLinear,
    ProductTrials,
    prepack_weights,
)
from tests.support.engines import make_prompt, make_request, save_random_model, start_model
from tests.support.equal_bits import with_equal_bits
from tests.support.tiny_architectures import architectures, save_tiny
from tests.unit.engine.model.test_architectures import generate

INPUTS = 128
OUTPUTS = MIN_OUTPUT_RATIO * INPUTS
HAS_BFLOAT16: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""Whether oneDNN computes bfloat16 on this processor; without, it does not prepack such weights either."""
with_bfloat16 = pytest.mark.skipif(not HAS_BFLOAT16, reason="oneDNN has no bfloat16 on this processor")


def plain(inputs: int, outputs: int, dtype: torch.dtype, *, bias: bool = False) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(inputs, outputs, bias=bias, dtype=dtype).requires_grad_(False)


@pytest.mark.parametrize("rows", [1, UNPACKED_ROWS, UNPACKED_ROWS + 1, 70])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "near"),
    [
        pytest.param(torch.float32, 1e-5, id="float32"),
        pytest.param(torch.bfloat16, 2e-2, id="bfloat16", marks=with_bfloat16),
    ],
)
def test_a_layer_computes_what_it_was_made_of(dtype: torch.dtype, near: float, bias: bool, rows: int) -> None:
    layer = plain(INPUTS, OUTPUTS, dtype, bias=bias)
    hidden = torch.randn(1, rows, INPUTS, dtype=dtype)
    torch.testing.assert_close(PrepackedLinear(layer)(hidden), layer(hidden), atol=near, rtol=near)


@with_equal_bits
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(576, 1536), (1536, 576), (100, 44), (64, 2000), (8960, 1536)]
)
def test_a_row_has_the_same_bits_whatever_is_computed_beside_it(
    inputs: int, outputs: int, bias: bool
) -> None:
    layer = PrepackedLinear(plain(inputs, outputs, torch.bfloat16, bias=bias), ProductTrials())
    hidden = torch.randn(1, 1100, inputs, dtype=torch.bfloat16)
    alone = torch.cat([layer(hidden[:, n : n + 1]) for n in range(40)], dim=1)
    for rows in (2, 31, 32, 33, 64, 65, 100, 188, 300, 512, 700, 1100):
        assert torch.equal(layer(hidden[:, :rows])[:, :40], alone[:, :rows]), f"{rows} rows"


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@with_equal_bits
@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("threads", [2, 32])
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 576), (896, 1152), (3072, 1024)])
def test_many_threads_change_nothing_of_it_also_where_they_are_chosen_late(
    inputs: int, outputs: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.model.prepacked_linear, "MAX_SLOWNESS", inf)  # so many threads are slow here
    torch.set_num_threads(threads)
    layer = PrepackedLinear(plain(inputs, outputs, torch.bfloat16), ProductTrials())
    torch.set_num_threads(32)
    assert layer.keeps_bits(ProductTrials())
    hidden = torch.randn(70, inputs, dtype=torch.bfloat16)
    whole = layer(hidden)
    for rows in range(1, 40):
        assert torch.equal(layer(hidden[:rows]), whole[:rows]), f"{rows} rows"


@with_bfloat16
def test_arranged_weights_give_no_wrong_numbers_to_who_reads_them_by_himself() -> None:
    layer = PrepackedLinear(plain(INPUTS, OUTPUTS, torch.bfloat16))
    assert (layer.weight.dtype, layer.weight.numel()) == (torch.bfloat16, INPUTS * OUTPUTS)
    with pytest.raises(NotImplementedError):
        nn.functional.linear(torch.randn(1, INPUTS, dtype=torch.bfloat16), layer.weight)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=with_bfloat16)], ids=str)
def test_an_adapter_may_be_for_an_arranged_layer(dtype: torch.dtype) -> None:
    layer = plain(INPUTS, OUTPUTS, dtype)
    assert sizes_of(PrepackedLinear(layer)) == sizes_of(layer) == (INPUTS, OUTPUTS)


@pytest.mark.parametrize(
    ("inputs", "outputs", "dtype", "gains"),
    [
        (INPUTS, OUTPUTS, torch.float32, True),
        (INPUTS, OUTPUTS - 1, torch.float32, False),
        (INPUTS, MIN_WEIGHTS // INPUTS, torch.bfloat16, HAS_BFLOAT16),
        (INPUTS, 3, torch.bfloat16, HAS_BFLOAT16),
        (INPUTS, OUTPUTS, torch.float64, False),
    ],
)
def test_only_layers_that_gain_are_arranged(
    inputs: int, outputs: int, dtype: torch.dtype, gains: bool
) -> None:
    network: Any = nn.ModuleDict({"a": plain(inputs, outputs, dtype)})
    network["b"] = network["a"]
    prepack_weights(network)
    assert isinstance(network["a"], PrepackedLinear) == gains
    assert network["b"] is network["a"]


@with_bfloat16
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("order", [("q_proj", "k_proj", "v_proj"), ("v_proj", "q_proj", "q_proj", "k_proj")])
def test_layers_of_one_input_are_one_product_and_compute_what_they_did(
    order: tuple[str, ...], bias: bool
) -> None:
    sizes = {"q_proj": 96, "k_proj": 32, "v_proj": 32}
    layers = {name: plain(INPUTS, size, torch.bfloat16, bias=bias) for name, size in sizes.items()}
    network: Any = nn.ModuleDict(layers)
    prepack_weights(network)
    assert len({id(network[name].weight) for name in sizes}) == 1
    one, other = (torch.randn(1, 5, INPUTS, dtype=torch.bfloat16) for _ in range(2))
    for hidden in (one, other, one):
        for name in order:
            torch.testing.assert_close(network[name](hidden), layers[name](hidden), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(network["k_proj"](other), layers["k_proj"](other), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(network["v_proj"](one), layers["v_proj"](one), atol=2e-2, rtol=2e-2)
    assert [sizes_of(network[name]) for name in sizes] == [sizes_of(layer) for layer in layers.values()]


@pytest.fixture
def _small_layers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.model.prepacked_linear, "MIN_WEIGHTS", 1)


@pytest.mark.usefixtures("_small_layers_count")
def test_bfloat16_layers_stay_plain_and_generate_where_onednn_has_no_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    bench = start_model(save_random_model("Qwen3Config"), dtype="bfloat16")
    linear = [module for module in bench.network.modules() if isinstance(module, nn.Linear)]
    assert {(type(layer), layer.weight.dtype) for layer in linear} == {(nn.Linear, torch.bfloat16)}
    (outcome,) = bench.run(make_request("a", make_prompt(29, 1), 14))
    assert len(outcome.tokens) == 14
    bench.engine.close(drain=True)


@with_bfloat16
@pytest.mark.parametrize("config", ["MambaConfig", "LongcatFlashConfig", "RwkvConfig"])
def test_layers_whose_weights_are_read_directly_stay_plain(config: str) -> None:
    bench = start_model(save_tiny(architectures()[config])[0], dtype="bfloat16")
    (outcome,) = bench.run(make_request("1", make_prompt(9), 5))
    assert len(outcome.tokens) == 5
    bench.engine.close(drain=True)


@pytest.mark.usefixtures("_small_layers_count")
@pytest.mark.parametrize("config", ["Qwen3Config", "Gemma2Config", "GPT2Config", "GptOssConfig"])
def test_greedy_tokens_equal_those_of_generate_when_all_layers_are_arranged(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.model.prepacked_linear, "MIN_OUTPUT_RATIO", 0)
    monkeypatch.setattr(engine.model.prepacked_linear, "UNPACKED_ROWS", 0)
    model = save_random_model(config)
    reference: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )
    bench = start_model(model)
    assert any(isinstance(module, PrepackedLinear) for module in bench.network.modules())
    prompts = [make_prompt(length, length) for length in (5, 29, 50)]
    outcomes = bench.run(*(make_request(str(n), p, 14) for n, p in enumerate(prompts)))
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.tokens == generate(reference, prompt, 14)
    bench.engine.close(drain=True)
