"""Layers of the common shape are computed in fewer operations, with the bits of transformers' own code."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.attention.paged_attention import IMPLEMENTATION, LayerCall, attending
from engine.model.fused_layers import fuse_layers
from engine.model.prepacked_linear import prepack_weights
from tests.unit.engine.model.test_prepacked_linear import with_bfloat16

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SCALED_FROM_20 = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 16.0,
    "original_max_position_embeddings": 20,
    "llama_4_scaling_beta": 0.1,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
"""Queries from this position on are scaled."""
WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


class Averaging:
    """An attention that depends on all that it is given, in a few operations."""

    def attend(self, call: LayerCall) -> torch.Tensor:
        group = call.query.shape[1] // call.key.shape[1]
        both = (call.key + call.value).repeat_interleave(group, dim=1)
        return call.query * (call.scale or 1) + both.cumsum(0) / (call.window or 100)


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **kwargs or {})


def make(model_type: str, others: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(5)
    config = AutoConfig.for_model(model_type, **SIZES, **others)
    made: Any = AutoModelForCausalLM
    network: PreTrainedModel = made.from_config(config, dtype=torch.bfloat16).eval()
    for name, parameter in network.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    network.set_attn_implementation(IMPLEMENTATION)
    prepack_weights(network)
    return network


def compute(network: PreTrainedModel, tokens: int) -> tuple[torch.Tensor, int]:
    """The logits of some tokens, and the number of operations that computed them."""
    places = torch.arange(tokens)[None]
    with torch.inference_mode(), attending(Averaging()), Operations() as operations:
        logits = network(input_ids=places + 7, position_ids=places + 3, use_cache=False).logits
    return logits, operations.count


@with_bfloat16
@pytest.mark.parametrize(
    ("model_type", "others"),
    [
        ("llama", {}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
        ("mistral", {"sliding_window": 8}),
        ("qwen2", WINDOW),
        ("qwen3", WINDOW),
        ("qwen3_moe", EXPERTS),
    ],
)
def test_a_layer_of_the_common_shape_has_the_same_bits_in_fewer_operations(
    model_type: str, others: dict[str, Any]
) -> None:
    own, fused = make(model_type, others), make(model_type, others)
    fuse_layers(fused, 100)
    for tokens in (1, 2, 33, 70):
        expected, operations = compute(own, tokens)
        logits, fewer = compute(fused, tokens)
        assert torch.equal(logits, expected)
        assert fewer <= operations - 3 * 15


@with_bfloat16
@pytest.mark.parametrize(
    ("model_type", "others"),
    [
        ("granite", {"residual_multiplier": 0.5}),
        ("gemma", {}),
        ("olmo2", {}),
        ("llama", {"hidden_act": "gelu"}),
        ("ministral3", {"rope_parameters": SCALED_FROM_20}),
        ("glm4", {"pad_token_id": 0}),
        ("smollm3", {"no_rope_layers": [0, 0, 0], "pad_token_id": 0}),
    ],
)
def test_a_layer_of_another_shape_stays_as_it_is(model_type: str, others: dict[str, Any]) -> None:
    own, same = make(model_type, others), make(model_type, others)
    fuse_layers(same, 100)
    expected, operations = compute(own, 5)
    logits, as_many = compute(same, 5)
    assert torch.equal(logits, expected)
    assert as_many == operations
