"""What of peft's format is understood, and the sentence for all that is not."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine.config import EngineConfig, ModelRefused
from engine.model.loader import load_model
from engine.model.lora_adapter_files import read_settings
from engine.model.lora_layers import (
    AdaptedLayer,
    install_adapters,
)
from tests.support.adapters import ATTENTION, DENSE, MadeAdapter, make_adapter, merge, new_folder, read_base
from tests.support.engines import save_random_model, tiny_model

Q = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"


def install(model: Path, adapter: MadeAdapter | Path) -> Any:
    folder = adapter if isinstance(adapter, Path) else adapter.folder
    network = load_model(EngineConfig(model=model, device="cpu", torch_threads=1), lambda _: None).network
    install_adapters(network, [("ours", folder)])
    return network


def refused(adapter: MadeAdapter | Path, model: Path | None = None) -> str:
    with pytest.raises(ModelRefused) as refusal:
        install(model or tiny_model(), adapter)
    assert "ours" in str(refusal.value)
    return str(refusal.value)


def changes_of(network: Any) -> dict[str, torch.Tensor]:
    """What the installed adapter adds to each weight."""
    return {
        name: (module.down.T @ module.up).T
        for name, module in network.named_modules()
        if isinstance(module, AdaptedLayer)
    }


# What is understood


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"ranks": {"q_proj": 2, "down_proj": 9}, "alphas": {"q_proj": 3.5}},
        {"ranks": {"q_proj": 2}, "use_rslora": True, "alphas": {"k_proj": 1}},
        {"r": 1, "lora_alpha": 1},
        {"target_modules": r"model\.layers\.\d\.(self_attn|mlp)\.[a-z]+_proj"},
        {"target_modules": "all-linear"},
        {"exclude_modules": ["lm_head"], "bias": "none", "init_lora_weights": "gaussian"},
        {"fan_in_fan_out": True, "lora_dropout": 0.1, "peft_version": "0.21.2"},
    ],
    ids=str,
)
def test_each_layer_is_changed_as_the_settings_say(settings: dict[str, Any]) -> None:
    adapter = make_adapter(tiny_model(), **settings)
    found = changes_of(install(tiny_model(), adapter))
    assert found.keys() == adapter.changes.keys()
    assert len(found) == 2 * len(DENSE)
    for name, change in found.items():
        torch.testing.assert_close(change, adapter.changes[name])


def test_an_adapter_for_some_layers_leaves_the_others_as_they_are() -> None:
    adapter = make_adapter(tiny_model(), ("q_proj",), layers_to_transform=[1])
    adapter.edit_weights(**{Q.format(0, part).replace(".", "__"): None for part in "AB"})
    network = install(tiny_model(), adapter)
    assert list(changes_of(network)) == ["model.layers.1.self_attn.q_proj"]
    assert type(network.model.layers[0].self_attn.q_proj) is nn.Linear


def test_a_model_without_adapters_is_not_touched() -> None:
    network = load_model(EngineConfig(model=tiny_model(), device="cpu"), lambda _: None).network
    before = {name: type(module) for name, module in network.named_modules()}
    assert install_adapters(network, []).indexes == {}
    assert {name: type(module) for name, module in network.named_modules()} == before


@pytest.mark.parametrize("number", [torch.bfloat16, torch.float16])
def test_weights_take_the_models_number_format(number: torch.dtype) -> None:
    adapter = make_adapter(tiny_model(), ("q_proj",))
    adapter.edit_weights(
        **{
            Q.format(layer, part).replace(".", "__"): torch.ones(shape, dtype=number)
            for layer in (0, 1)
            for part, shape in (("A", (4, 32)), ("B", (32, 4)))
        }
    )
    layer = install(tiny_model(), adapter).model.layers[0].self_attn.q_proj
    assert (layer.down.dtype, layer.up.dtype) == (torch.float32, torch.float32)
    assert float(layer.up[0, 0]) == 2.0


# Refusals


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"use_qalora": True}, "use_qalora"),
        ({"something_new": {"a": 1}}, "something_new"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"init_lora_weights": "loftq"}, "loftq"),
        ({"r": 0}, "has a r "),
        ({"r": True}, "has a r "),
        ({"r": 5}, r"must be \[5, 48\]"),
        ({"lora_alpha": "x"}, "lora_alpha"),
        ({"lora_alpha": float("inf")}, "lora_alpha"),
        ({"rank_pattern": {"q_proj": "x"}}, "rank_pattern"),
        ({"rank_pattern": {"(": 4}}, "missing \\)|unterminated"),
        ({"alpha_pattern": [1]}, "alpha_pattern"),
    ],
    ids=str,
)
def test_settings_that_are_not_served_are_refused_by_name(settings: dict[str, Any], word: str) -> None:
    adapter = make_adapter(tiny_model())
    adapter.edit_config(**settings)
    with pytest.raises(ModelRefused, match=word):
        install(tiny_model(), adapter)


def weights(**changes: torch.Tensor | None) -> MadeAdapter:
    adapter = make_adapter(tiny_model(), ("q_proj",))
    adapter.edit_weights(**changes)
    return adapter


def of_q(part: str) -> str:
    return Q.format(0, part).replace(".", "__")


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: weights(**{of_q("A"): torch.ones(4, 31)}), "not [4, 31]"),
        (lambda: weights(**{of_q("B"): torch.ones(32, 5)}), "[32, 5]"),
        (lambda: weights(**{of_q("A"): torch.full((4, 32), float("nan"))}), "finite"),
        (lambda: weights(**{of_q("B"): torch.full((32, 4), 3e38)}), "finite"),
        (lambda: weights(**{of_q("A"): torch.ones(4, 32, dtype=torch.int8)}), "int8"),
        (lambda: weights(**{of_q("A"): None}), "only lora_B"),
        (lambda: weights(base_model__model__lm_head__weight=torch.ones(97, 32)), "not LoRA's"),
        (
            lambda: weights(
                base_model__model__model__layers__0__self_attn__q_proj__lora_magnitude_vector=torch.ones(32)
            ),
            "DoRA",
        ),
        (
            lambda: weights(base_model__model__model__embed_tokens__lora_embedding_A=torch.ones(4, 97)),
            "embeddings",
        ),
        (
            lambda: weights(base_model__model__model__layers__0__self_attn__q_proj__bias=torch.ones(32)),
            "biases",
        ),
        (
            lambda: weights(
                base_model__model__model__layers__7__self_attn__q_proj__lora_A__weight=torch.ones(4, 32)
            ),
            "model.layers.7.self_attn.q_proj, which the model does not have",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(make: Callable[[], MadeAdapter], word: str) -> None:
    assert word in refused(make())


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "no adapter_config.json" in refused(tmp_path / "nowhere")
    (tmp_path / "adapter_config.json").write_text("{")
    assert "cannot be read" in refused(tmp_path)
    (tmp_path / "adapter_config.json").write_text("[]")
    assert "is not an object" in refused(tmp_path)
    config = {"peft_type": "LORA", "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    torch.save({}, tmp_path / "adapter_model.bin")
    assert "no adapter_model.safetensors" in refused(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x" * 20)
    assert "cannot be read" in refused(tmp_path)


def test_an_adapter_of_another_model_is_refused() -> None:
    other = save_random_model("Qwen3Config", num_hidden_layers=2, hidden_size=64)
    assert "not [4, 48] and [64, 4]" in refused(make_adapter(other))


def test_the_output_embeddings_are_refused() -> None:
    with pytest.raises(ModelRefused, match="lm_head are not served"):
        install(tiny_model(), make_adapter(tiny_model(), ("lm_head",)))


def test_layers_that_are_not_linear_are_refused() -> None:
    adapter = make_adapter(tiny_model(), ("q_proj",))
    down, up = torch.ones(4, 8), torch.ones(8, 4)
    key = "base_model__model__model__layers__0__self_attn__q_norm__lora_{}__weight"
    adapter.edit_weights(**{key.format("A"): down, key.format("B"): up})
    adapter.edit_config(target_modules=["q_proj", "q_norm"])
    assert "Qwen3RMSNorm and not a plain linear layer" in refused(adapter)


def test_experts_are_refused_by_name() -> None:
    model = save_random_model(
        "Qwen3MoeConfig", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, hidden_size=64
    )
    adapter = make_adapter(model, ATTENTION)
    key = "base_model__model__model__layers__0__mlp__experts__0__gate_proj__lora_{}__weight"
    adapter.edit_weights(**{key.format("A"): torch.ones(4, 64), key.format("B"): torch.ones(24, 4)})
    adapter.edit_config(target_modules=[*ATTENTION, "gate_proj"])
    assert "layers.0.mlp.experts.0.gate_proj, one of the experts" in refused(adapter, model)


# peft


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True, "r": 3},
        {
            "target_modules": r".*\.(q|v)_proj",
            "rank_pattern": {"q_proj": 2, "layers.1.self_attn.v_proj": 5},
            "alpha_pattern": {r"layers\.0\.self_attn\.[qk]_proj": 3},
        },
        {"target_modules": ["o_proj", "layers.0.self_attn.v_proj"]},
        {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
        {"target_modules": "all-linear", "exclude_modules": ["up_proj"]},
    ],
    ids=str,
)
def test_what_peft_writes_is_read_as_peft_reads_it(settings: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed; it is no dependency")
    folder = new_folder()
    torch.manual_seed(3)
    config = peft.LoraConfig(
        **{"target_modules": ["q_proj"], "lora_alpha": 7, "init_lora_weights": False, **settings}
    )
    row = torch.arange(20)[None]
    with warnings.catch_warnings(action="ignore"):
        theirs = peft.get_peft_model(read_base(tiny_model()), config)
        theirs.save_pretrained(folder)
        theirs.eval()
        truth = theirs(row).logits.detach()
    ours = merge(tiny_model(), MadeAdapter(folder, changes_of(install(tiny_model(), folder))))
    torch.testing.assert_close(ours(row).logits.detach(), truth, atol=1e-4, rtol=1e-4)
    plain = read_base(tiny_model())(row).logits.detach()
    assert (plain - truth).abs().max() > 0.1
    assert read_settings("ours", folder).rank == config.r
