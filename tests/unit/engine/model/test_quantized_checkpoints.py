"""Checkpoints in few bits, made here by each format's package, give what transformers gives with them.

In float32, so that two right answers are the same. Skipped without the packages, the extra `quantization`.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from engine.model.quantization import load_options
from tests.support.engines import make_prompt, make_request, save_random_model, start_model

BLOCK = 32
COMPRESSED = {
    "int4": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": BLOCK}, 7),
    "int8": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, 127),
    "fp8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, 448),
}
"""compressed-tensors: the format, the weights' arguments, and the largest number that they write."""


@pytest.fixture
def plain() -> Path:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    return save_random_model("Qwen3Config", **heads, **sizes)


def in_blocks_of_float8(plain: Path, folder: Path) -> None:
    """DeepSeek's format: a scale for each block of 32 by 32."""
    pytest.importorskip("accelerate")
    shutil.copytree(plain, folder)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        rows, columns = weights[name].shape
        blocks = weights[name].float().reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK).transpose(1, 2)
        scales = blocks.abs().amax((-1, -2)) / 448
        numbers = (blocks / scales[..., None, None]).transpose(1, 2).reshape(rows, columns)
        weights[name], weights[f"{name}_scale_inv"] = numbers.to(torch.float8_e4m3fn), scales
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    }
    (folder / "config.json").write_text(json.dumps(config))


def by_compressed_tensors(kind: str) -> Callable[[Path, Path], None]:
    def make(plain: Path, folder: Path) -> None:
        pytest.importorskip("compressed_tensors")
        from compressed_tensors import quantization as formats
        from compressed_tensors.compressors import ModelCompressor

        written, arguments, largest = COMPRESSED[kind]
        network: Any = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
        weights = formats.QuantizationArgs(symmetric=True, **arguments)
        groups = {"group_0": formats.QuantizationScheme(targets=["Linear"], weights=weights)}
        settings = formats.QuantizationConfig(config_groups=groups, ignore=["lm_head"], format=written)
        formats.apply_quantization_config(network, settings)
        for module in network.modules():
            if getattr(module, "quantization_scheme", None) is not None:
                shape = module.weight_scale.shape
                scales = module.weight.data.reshape(*shape, -1).abs().amax(-1) / largest
                module.weight_scale.data = scales.to(module.weight_scale.dtype)
        compressor: Any = ModelCompressor.from_pretrained_model(network, written)
        compressor.compress_model(network)
        shutil.copytree(plain, folder)
        state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        compressor.update_config(str(folder))

    return make


def by_transformers(package: str, settings: Callable[[], Any]) -> Callable[[Path, Path], None]:
    def make(plain: Path, folder: Path) -> None:
        pytest.importorskip(package)
        pytest.importorskip("accelerate")
        network: Any = AutoModelForCausalLM.from_pretrained(
            plain, dtype=torch.float32, quantization_config=settings(), device_map="cpu"
        )
        shutil.copytree(plain, folder)
        network.save_pretrained(folder)

    return make


def four_bits() -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True)  # type: ignore[no-untyped-call]


def int8_of_torchao() -> Any:
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


FORMATS: dict[str, Callable[[Path, Path], None]] = {
    "fp8": in_blocks_of_float8,
    **{f"compressed-tensors {kind}": by_compressed_tensors(kind) for kind in COMPRESSED},
    "bitsandbytes": by_transformers("bitsandbytes", four_bits),
    "torchao int8": by_transformers("torchao", int8_of_torchao),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FORMATS)
def test_weights_in_few_bits_are_served_as_generate_would_run_them(
    plain: Path, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "model"
    FORMATS[kind](plain, folder)
    bench = start_model(folder, dtype="float32")
    prompts = [make_prompt(5 + 12 * n, n) for n in range(3)]
    outcomes = bench.run(*(make_request(str(n), prompt, 12) for n, prompt in enumerate(prompts)))
    bench.engine.close(drain=True)
    options = load_options(AutoConfig.from_pretrained(folder), torch.device("cpu"))[0]
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    if kind == "fp8":
        reference.to(torch.float32)
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        out = reference.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        assert outcome.tokens == out[0, len(prompt) :].tolist()
