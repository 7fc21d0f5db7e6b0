import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig, ModelRefused
from engine.model.loader import LoadedNetwork, load_model
from tests.support.engines import save_random_model, start_model, tiny_model


def loaded(model: Path, **settings: Any) -> LoadedNetwork:
    config = EngineConfig(model=model, **{"device": "cpu", "torch_threads": 1, **settings})
    return load_model(config, lambda _line: None)


def refused(model: Path, **settings: Any) -> str:
    with pytest.raises(ModelRefused) as refusal:
        loaded(model, **settings)
    return str(refusal.value)


def test_loading_says_what_it_does() -> None:
    lines: list[str] = []
    load_model(EngineConfig(model=tiny_model(), device="cpu"), lines.append)
    assert len(lines) >= 3


def test_the_shapes_of_all_layers_are_learnt_from_the_model() -> None:
    shapes = [layer.kv_shape for layer in loaded(tiny_model()).layers]
    assert [(s.heads, s.key_size, s.value_size) for s in shapes] == [(2, 8, 8)] * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_model_has_the_dtype_that_was_asked_for(dtype: str) -> None:
    model = loaded(tiny_model(), dtype=dtype)
    assert model.dtype == model.network.dtype == getattr(torch, dtype)


@pytest.mark.parametrize(
    ("checkpoint", "features", "computed"),
    [
        ("bfloat16", {"avx512_bf16": True}, torch.bfloat16),
        ("bfloat16", {"amx_bf16": True}, torch.bfloat16),
        ("bfloat16", {"avx2": True, "avx512_bf16": False}, torch.float32),
        ("float16", {"avx512_bf16": True}, torch.float32),
        ("float32", {"avx512_bf16": True}, torch.float32),
    ],
)
def test_a_cpu_computes_in_bfloat16_where_checkpoint_and_instructions_are(
    checkpoint: str,
    features: dict[str, bool],
    computed: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy_model(tiny_model(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": checkpoint}))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert loaded(tmp_path).dtype == computed
    assert loaded(tmp_path, dtype="float32").dtype == torch.float32


def test_weights_in_another_data_type_are_other_weights() -> None:
    digests = {
        dtype: start_model(tiny_model(), dtype=dtype).engine.model_info.weights[""]
        for dtype in ("float32", "bfloat16")
    }
    assert len(set(digests.values())) == 2


def test_capabilities_come_from_the_models_generation_config(tmp_path: Path) -> None:
    copy_model(tiny_model(), tmp_path)
    sampling = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    defaults = {"do_sample": True, "eos_token_id": [3, 5], **sampling}
    (tmp_path / "generation_config.json").write_text(json.dumps(defaults))
    model_info = loaded(tmp_path).model_info
    assert (model_info.vocab_size, model_info.context_length) == (97, 256)
    assert model_info.stop_ids == {3, 5}
    assert {name: getattr(model_info, name) for name in sampling} == sampling


def test_capabilities_are_greedy_when_the_model_does_not_sample() -> None:
    model_info = loaded(save_random_model("LlamaConfig", eos_token_id=4)).model_info
    assert (model_info.temperature, model_info.top_p, model_info.top_k) == (0.0, 1.0, 0)
    assert model_info.stop_ids == {4}


def test_the_context_ends_where_the_position_encoding_would_change_for_all() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    model = save_random_model("LlamaConfig", rope_parameters=rope)
    assert loaded(model).model_info.context_length == 64


# Refusals


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    assert "config.json" in refused(tmp_path)


def test_a_model_of_unknown_kind_is_refused_and_its_code_not_run(tmp_path: Path) -> None:
    copy_model(tiny_model(), tmp_path)
    edit_config(tmp_path, model_type="homemade", auto_map={"AutoConfig": "evil.Config"})
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    assert "homemade" in refused(tmp_path) or "trust_remote_code" in refused(tmp_path)


def test_a_model_with_missing_weights_is_refused(tmp_path: Path) -> None:
    copy_model(tiny_model(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "model.layers.1.self_attn.q_proj.weight" in refused(tmp_path)


def test_weights_that_are_not_safetensors_are_refused(tmp_path: Path) -> None:
    copy_model(tiny_model(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert "safetensors" in refused(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_model_is_refused_when_the_device_is_not_there() -> None:
    assert "CUDA" in refused(tiny_model(), device="cuda")


def copy_model(model: Path, to: Path) -> None:
    for file in model.iterdir():
        (to / file.name).write_bytes(file.read_bytes())


def edit_config(model: Path, **changes: Any) -> None:
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_the_longest_output_of_a_generation_config_is_told(tmp_path: Path) -> None:
    copy_model(tiny_model(), tmp_path)
    assert loaded(tmp_path).model_info.max_new_tokens is None
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"max_new_tokens": 12}))
    assert loaded(tmp_path).model_info.max_new_tokens == 12
