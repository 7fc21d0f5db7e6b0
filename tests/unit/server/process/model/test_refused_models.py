"""What is said of a folder that cannot be served: the reason, and the way out."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from server.configuration.settings import Config
from server.configuration.shipped_files import demo_model_folder
from server.errors import ConfigError
from server.process.model.load_model import load_model
from tests.support.engines import save_random_model

BERT = {"model_type": "bert", "architectures": ["BertModel"], "num_hidden_layers": 1}
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
INDEX = json.dumps(
    {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
)
ADAPTER = json.dumps({"base_model_name_or_path": "Qwen/Qwen3-0.6B", "peft_type": "LORA"})
MISLEADING = ("trust_remote_code", "http", "--upgrade", "missing_keys", "huggingface.co", "Traceback", "\n")
LLAMA_SERVER = ("starts llama-server with it", "docs/engines.md")
VLLM = ("--engine vllm", "docs/engines.md")


def files(config: dict[str, Any] | None, **others: str) -> Callable[[Path], Path]:
    """Makes a folder of files, whose names have `__` for a dot."""

    def make(folder: Path) -> Path:
        for name, content in others.items():
            (folder / name.replace("__", ".")).write_text(content)
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


def a_file(name: str) -> Callable[[Path], Path]:
    return lambda folder: files(None, **{name.replace(".", "__"): "{}"})(folder) / name


def demo_with(**changes: Any) -> Callable[[Path], Path]:
    """The demo model with another config.json."""

    def make(folder: Path) -> Path:
        shutil.copytree(demo_model_folder(), folder, dirs_exist_ok=True)
        config = folder / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
        return folder

    return make


def demo_file(**contents: str) -> Callable[[Path], Path]:
    """The demo model with other files."""
    return lambda folder: files(None, **contents)(demo_with()(folder))


def demo_cut(size: int) -> Callable[[Path], Path]:
    """The demo model with the first bytes of its weights."""

    def make(folder: Path) -> Path:
        os.truncate(demo_with()(folder) / "model.safetensors", size)
        return folder

    return make


def without_a_tensor(folder: Path) -> Path:
    demo_with()(folder)
    weights = load_file(folder / "model.safetensors")
    for name in sorted(weights)[:2]:
        del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def of_both_directions(folder: Path) -> Path:
    made = save_random_model("BertConfig", num_hidden_layers=2, pad_token_id=0)
    shutil.copytree(made, folder, dirs_exist_ok=True)
    shutil.copy(demo_model_folder() / "tokenizer.json", folder)
    return folder


REFUSED: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "nowhere": (lambda folder: folder / "nowhere", ("does not exist", "--model takes the folder")),
    "empty folder": (files(None), ("no config.json", "--model takes the folder")),
    "GGUF file": (a_file("small.gguf"), ("is a GGUF file", *LLAMA_SERVER)),
    "config.json itself": (a_file("config.json"), ("is a file", "--model takes its folder")),
    "GGUF alone": (files(None, small__gguf=""), ("as GGUF", *LLAMA_SERVER)),
    "GGUF with a config": (files(LLAMA, small__gguf=""), ("as GGUF", *LLAMA_SERVER)),
    "LoRA": (
        files(None, adapter_config__json=ADAPTER, adapter_model__safetensors=""),
        ("LoRA adapter", "--adapters", "Qwen/Qwen3-0.6B", "docs/models.md"),
    ),
    "LoRA with a config": (
        files(LLAMA, adapter_config__json=ADAPTER, adapter_model__safetensors=""),
        ("LoRA adapter", "--adapters"),
    ),
    "page of the hub": (
        lambda _folder: Path("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main"),
        ("does not exist", "owner/name (here: Qwen/Qwen3-0.6B)"),
    ),
    "name without an owner": (lambda _folder: Path("Qwen3-0.6B"), ("does not exist", "owner/name")),
    "name of Ollama's": (lambda _folder: Path("qwen3:0.6b"), ("does not exist", "owner/name")),
    "folder above the model's": (
        lambda folder: demo_with()(folder / "demo").parent,
        ("--model takes ", "/demo, which has it"),
    ),
    "diffusion": (files(None, model_index__json="{}"), ("diffusion pipeline", "what writes text")),
    "Mistral's own form": (files(None, params__json="{}"), ("Mistral's own form", *VLLM)),
    "weights for another program": (
        files(LLAMA, model__onnx="", tokenizer__json="{}"),
        ("for another program (model.onnx)", "safetensors"),
    ),
    "half a configuration": (
        files(None, config__json='{"model_type": "lla'),
        ("is not JSON", "not complete"),
    ),
    "list as a configuration": (files(None, config__json="[]"), ("is not a JSON object", "not complete")),
    "index that is cut": (
        files(LLAMA, model__safetensors__index__json='{"weight_map": {"a'),
        ("does not say which file has which weights", "not complete"),
    ),
    "weights that are cut": (demo_cut(100_000), ("has 100000 bytes of ", "Delete ", "fetch it again")),
    "header that is cut": (demo_cut(100), ("is not in the format safetensors", "Delete ")),
    "no bytes": (demo_cut(0), ("is not in the format safetensors", "Delete ")),
    "pointer of Git LFS": (
        demo_file(model__safetensors="version https://git-lfs.github.com/spec/v1"),
        ("is a pointer of Git LFS", "git lfs pull"),
    ),
    "page in the place of weights": (
        demo_file(model__safetensors="<!DOCTYPE html><html></html>"),
        ("is not in the format safetensors", "Delete "),
    ),
    "damaged tokenizer": (demo_file(tokenizer__json='{"model": 5}'), ("tokenizer.json", "cannot be read")),
    "damaged template": (demo_file(chat_template__jinja="{% if %}"), ("chat template", "not valid")),
    "rerankers": (
        files(
            {"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"]},
            model__safetensors="",
        ),
        ("a reranker", "generates no text"),
    ),
    "BERT": (
        files({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, model__safetensors=""),
        ("filling gaps", "generates no text"),
    ),
    "configuration of the future": (
        demo_with(rope_parameters={"rope_type": "warp", "rope_theta": 10000.0}),
        ("warp", *VLLM),
    ),
    "number format of the future": (demo_with(dtype="float5"), ("float5", *VLLM)),
    "no weights": (files(LLAMA, tokenizer__json="{}"), ("no weights", "fetch the repository's folder again")),
    "one shard missing": (
        files(LLAMA, model__safetensors__index__json=INDEX),
        ("lacks model-00001-of-00002.safetensors", "fetch the repository's folder again"),
    ),
    "pickles": (files(LLAMA, pytorch_model__bin=""), ("convert them to safetensors", *VLLM)),
    "no tokenizer": (files(LLAMA, model__safetensors=""), ("no tokenizer.json", "save_pretrained")),
    "embeddings": (files(BERT, model__safetensors=""), ("BertModel", "generates no text")),
    "sentence transformers": (
        files(LLAMA, model__safetensors="", modules__json="[]"),
        ("for embeddings", "generates no text"),
    ),
    "encoder and decoder": (files(T5, model__safetensors=""), ("t5", "only decoders are served")),
    "half a config.json": (a_file("nothing"), ("is a file",)),
    "unknown architecture": (demo_with(model_type="homemade"), ("homemade", "never run", *VLLM)),
    "architecture with code of its own": (
        demo_with(model_type="homemade", auto_map={"AutoConfig": "evil.Config"}),
        ("homemade", "never run", *VLLM),
    ),
    "no architecture": (demo_with(model_type=None), ("no model_type",)),
    "a model that fills gaps": (of_both_directions, ("BertLMHeadModel looks at later tokens", *VLLM)),
    "weights without some tensors": (without_a_tensor, ("lack tensors", " more. ", "not complete")),
    "other shapes": (demo_with(intermediate_size=24), ("other shapes", "config.json is another model's")),
    "unknown quantization": (
        demo_with(quantization_config={"quant_method": "homemade"}),
        ("'homemade'", *VLLM),
    ),
    "8 bits of bitsandbytes": (
        demo_with(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}),
        ("answers would depend on other requests", *VLLM),
    ),
    "quantization without its package": (
        demo_with(quantization_config={"quant_method": "awq", "bits": 4, "group_size": 32}),
        ("pip install gptqmodel", *VLLM),
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refusal_of_a_model_names_the_reason_and_the_way_out(tmp_path: Path, kind: str) -> None:
    make, parts = REFUSED[kind]
    path = make(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_model(Config(model=path), lambda _messages: None, lambda _line: None, lambda _why: None)
    sentence = str(caught.value)
    assert [part for part in parts if part not in sentence] == [], sentence
    assert [word for word in MISLEADING if word in sentence.replace(str(path), "")] == [], sentence
    assert str(path) in sentence
    assert len(sentence) < 600


@pytest.mark.parametrize(
    ("config", "sentence"),
    [({}, "chat-template /nowhere is not a file"), ({"model_type": "gpt_oss"}, "not for gpt-oss")],
)
def test_chat_template_that_cannot_be_used_is_refused_before_weights_are_read(
    tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    folder = demo_with(**config)(tmp_path)
    template = folder / "chat_template.jinja" if config else Path("/nowhere")
    with pytest.raises(ConfigError, match=sentence):
        load_model(
            Config(model=folder, chat_template=template),
            lambda _messages: None,
            lambda _line: None,
            lambda _why: None,
        )
