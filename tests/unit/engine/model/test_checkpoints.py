"""Checkpoints that would be read wrongly, or that break while they are read, are refused with a sentence."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig, ModelRefused
from engine.core.local_engine import load
from engine.model import loader as model_module
from engine.model.loader import load_model
from engine.request import Finished, RequestRefused
from tests.support.engines import make_prompt, make_request, start_model, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny model, to be changed."""
    return Path(shutil.copytree(tiny_model(), tmp_path / "model"))


def edit(folder: Path, file: str, **settings: Any) -> None:
    path = folder / file
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(kept | settings))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelRefused) as refused:
        load_model(EngineConfig(model=folder, device="cpu", torch_threads=1), lambda _line: None)
    return str(refused.value)


def write_in_float8(folder: Path, *, scales: str | None = "weight_scale", kind: Any = None) -> None:
    """One scale a matrix, as ModelOpt writes them; without a name for the scales they are nowhere."""
    weights = load_file(folder / "model.safetensors")
    for name, weight in list(weights.items()):
        if weight.ndim == 2 and "layers" in name:
            scale = weight.abs().max() / 448
            weights[name] = (weight / scale).to(kind or torch.float8_e4m3fn)
            if scales is not None:
                weights[name.removesuffix("weight") + scales] = scale
                weights[name.removesuffix("weight") + "input_scale"] = torch.tensor(1.0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_format_that_transformers_does_not_know_is_refused_by_name(folder: Path) -> None:
    write_in_float8(folder)
    edit(folder, "config.json", quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"})
    assert "'modelopt', which is not read here" in refusal(folder)


def test_a_format_without_a_name_is_refused(folder: Path) -> None:
    edit(folder, "config.json", quantization_config={"bits": 8})
    assert "quant_method" in refusal(folder)


def test_weights_of_modelopt_are_refused_where_only_its_own_file_tells(folder: Path) -> None:
    write_in_float8(folder)
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert "hf_quant_config.json" in refusal(folder)


@pytest.mark.parametrize("scales", ["weight_scale", None])
def test_weights_in_float8_are_refused_where_nothing_says_what_they_are(
    folder: Path, scales: str | None
) -> None:
    write_in_float8(folder, scales=scales)
    assert "F8_E4M3" in refusal(folder)


@pytest.mark.parametrize(
    "name",
    ["weight_scale", "weight_scale_inv", "qweight", "qzeros", "scales", "g_idx", "weight.absmax", "SCB"],
)
def test_scales_that_no_weight_takes_are_refused_by_name(folder: Path, name: str) -> None:
    """The weights are of a type and shape that anything could be."""
    weights = load_file(folder / "model.safetensors")
    key = f"model.layers.1.mlp.up_proj.{name}"
    weights[key] = torch.ones(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert key in refusal(folder)


def test_whole_parts_that_are_left_out_refuse_nothing(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["mtp.layers.0.mlp.up_proj.weight"] = torch.ones(4, 4)
    weights["mtp.layers.0.mlp.up_proj.weight_scale"] = torch.ones(1)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    bench = start_model(folder)
    bench.engine.close(drain=True)


def test_the_files_of_an_index_are_looked_into_as_well(folder: Path) -> None:
    write_in_float8(folder, scales=None)
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    names = dict.fromkeys(load_file(folder / "part-1.safetensors"), "part-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert "F8_E4M3" in refusal(folder)


# End tokens


def test_end_tokens_beyond_the_vocabulary_are_left_out_and_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit(folder, "generation_config.json", eos_token_id=[5, 97, 1_000_000])
    bench = start_model(folder)
    assert bench.engine.model_info.stop_ids == {5}
    assert "end token 97 is left out" in caplog.text
    stops = bench.engine.model_info.stop_ids
    (outcome,) = bench.run(make_request("a", make_prompt(20), 9, stop_ids=stops, min_tokens=4))
    assert isinstance(outcome.last, Finished)
    bench.engine.close(drain=True)


@pytest.mark.parametrize("stop", [97, 1_000_000, -1, "5", 2.0])
def test_a_request_whose_stop_id_is_no_token_is_refused_and_its_neighbour_goes_on(stop: Any) -> None:
    bench = start_model(tiny_model())
    with pytest.raises(RequestRefused, match="stop_ids must be") as refused:
        bench.engine.submit(make_request("bad", make_prompt(9), stop_ids=frozenset({stop}), min_tokens=3))
    assert refused.value.reason == "bad_stop"
    (outcome,) = bench.run(make_request("good", make_prompt(9), 5))
    assert len(outcome.tokens) == 5
    bench.engine.close(drain=True)


# Whatever breaks while a model is loaded


class Surprise(Exception):
    """Nothing that anybody expects."""


@pytest.mark.parametrize(
    "place", ["_read_weights", "read_context_length", "prepack_weights", "read_vocabulary"]
)
def test_whatever_breaks_while_loading_is_a_refusal_with_its_kind(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_more: object) -> None:
        raise Surprise("a model like no other")

    monkeypatch.setattr(model_module, place, fail)
    with pytest.raises(ModelRefused, match="Surprise: a model like no other"):
        load(EngineConfig(model=tiny_model(), device="cpu"), lambda _messages: None)


def test_a_configuration_with_several_texts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_more: object) -> None:
        raise ValueError("Multiple valid text configs were found")

    monkeypatch.setattr("transformers.PretrainedConfig.get_text_config", fail)
    assert "Multiple valid text configs" in refusal(tiny_model())
