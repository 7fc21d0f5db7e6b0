"""Weights in few bits: written out where no kernel computes with them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PretrainedConfig

from engine.config import EngineConfig, ModelRefused
from engine.model import loader, quantization
from engine.model.loader import load_model
from engine.model.quantization import load_options
from tests.support.engines import make_prompt, make_request, save_random_model, start_model, tiny_model

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What three bits stand for; the fourth is the sign."""


def save_mxfp4_model() -> tuple[Path, dict[str, torch.Tensor]]:
    """A tiny gpt-oss in the checkpoint format of the real ones, and the experts' weights written out."""
    path = save_random_model(
        "GptOssConfig",
        num_hidden_layers=2,
        sliding_window=12,
        num_local_experts=4,
        num_experts_per_tok=2,
        hidden_size=64,
        intermediate_size=64,
    )
    weights = load_file(path / "model.safetensors")
    dice = torch.Generator().manual_seed(1)
    plain = {}
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = weights.pop(name).shape
        shape = (experts, outputs, inputs // 32, 16)
        blocks = torch.randint(0, 256, shape, generator=dice, dtype=torch.uint8)
        scales = torch.randint(122, 126, shape[:3], generator=dice, dtype=torch.uint8)
        weights[f"{name}_blocks"], weights[f"{name}_scales"] = blocks, scales
        plain[name] = write_out(blocks, scales)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (path / "config.json").write_text(json.dumps(config))
    return path, plain


def write_out(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """By the format's definition: two numbers a byte, the lower half first, and a power of two for 32."""
    table = torch.tensor([*FP4, *(-number for number in FP4)])
    numbers = torch.stack((table[(blocks & 15).long()], table[(blocks >> 4).long()]), dim=-1).flatten(3)
    numbers = numbers * torch.exp2(scales.float() - 127)[..., None]
    return numbers.flatten(2).transpose(1, 2)


def test_mxfp4_is_written_out_on_a_cpu_and_served_as_generate_would_run_it() -> None:
    path, plain = save_mxfp4_model()
    bench = start_model(path)
    found = bench.network.state_dict()
    for name, weight in plain.items():
        assert torch.equal(found[name], weight), name
    prompts = [make_prompt(5 + 12 * n, n) for n in range(3)]
    outcomes = bench.run(*(make_request(str(n), prompt, 12) for n, prompt in enumerate(prompts)))
    bench.engine.close(drain=True)
    reference: Any = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=torch.float32,
        attn_implementation="eager",
        **load_options(MXFP4, CPU)[0],
    )
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        out = reference.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        assert outcome.tokens == out[0, len(prompt) :].tolist()


CPU, GPU = torch.device("cpu"), torch.device("cuda")


def settings_with(method: str) -> PretrainedConfig:
    return PretrainedConfig(quantization_config={"quant_method": method})  # type: ignore[call-arg]


MXFP4 = settings_with("mxfp4")


def test_plain_weights_are_read_into_the_devices_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """transformers asks whether `accelerate` is there and does without it; `meta` stands for the device."""
    monkeypatch.setattr(quantization, "find_spec", lambda name: name == "accelerate" or None)
    monkeypatch.setattr("transformers.integrations.accelerate.is_accelerate_available", lambda: True)
    options, plain = load_options(PretrainedConfig(), torch.device("meta"))
    network: Any = AutoModelForCausalLM.from_pretrained(tiny_model(), **options)
    assert all(weight.is_meta for weight in network.parameters())
    assert not plain
    assert load_options(PretrainedConfig(), CPU) == [{}]
    assert load_options(settings_with("fp8"), GPU) == [{}]
    monkeypatch.setattr(quantization, "find_spec", lambda _name: None)
    assert load_options(PretrainedConfig(), GPU) == [{}]


def test_mxfp4_stays_as_it_is_only_on_a_gpu_with_all_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    there = set(quantization.MXFP4_PACKAGES)
    monkeypatch.setattr(quantization, "find_spec", lambda name: name in there or None)
    first, last = load_options(MXFP4, GPU)
    assert first == {"device_map": {"": GPU}}
    assert last["quantization_config"].dequantize
    (only,) = load_options(MXFP4, CPU)
    assert only["quantization_config"].dequantize
    there.remove("kernels")
    (only,) = load_options(MXFP4, GPU)
    assert only["quantization_config"].dequantize


def test_a_way_that_does_not_work_is_told_and_the_next_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny_model()
    wrong: dict[str, Any] = {"attn_implementation": "nonsense"}
    options = [wrong, {}]
    monkeypatch.setattr(loader, "load_options", lambda *_: options)
    load_model(EngineConfig(model=path, device="cpu"), lambda _line: None)
    assert "read in another way" in caplog.text
    options.pop()
    with pytest.raises(ModelRefused, match="nonsense"):
        load_model(EngineConfig(model=path, device="cpu"), lambda _line: None)


def test_a_format_whose_package_is_missing_refuses_the_model_by_name(tmp_path: Path) -> None:
    path, _ = save_mxfp4_model()
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "aqlm"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelRefused, match=r"(?i)aqlm"):
        load_model(EngineConfig(model=tmp_path, device="cpu"), lambda _line: None)
