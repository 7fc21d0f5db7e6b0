"""Why a path cannot be served as a model, by the names of its files and its config.json, with a way out.

Reads no weights and imports no torch, so that a mistake is answered at once and not after minutes of loading.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.config import GGUF_FILE
from server.errors import ConfigError

OTHER_ENGINE = (
    "vLLM or llama.cpp may serve it: see --engine vllm and --engine llama-server in docs/engines.md."
)
"""The way out of a model that the engine of this process does not compute."""
_AS_GGUF = (
    "holdfast serve FILE.gguf starts llama-server with it, or computes it here with holdfast[gguf] installed "
    "(docs/engines.md)."
)
_INCOMPLETE = "The download is not complete: fetch the repository's folder again."
_NO_TEXT = {
    "LMHeadModel": "",
    "RewardModel": "scores (a reward model)",
    "SequenceClassification": "scores (a classifier or a reranker)",
    "Classification": "labels",
    "QuestionAnswering": "marking answers in a text",
    "MultipleChoice": "scores",
    "MaskedLM": "filling gaps in a text",
    "PreTraining": "filling gaps in a text",
    "CTC": "writing down speech",
    "Retrieval": "embeddings",
    "FeatureExtraction": "embeddings",
    "Model": "embeddings",
}
"""The purpose of models that write no text, by the end of their architecture; the first end counts."""
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_OF_OTHER_PROGRAMS = ("*.onnx", "onnx/*.onnx", "*.h5", "*.msgpack", "*.ot", "*.npz")
_MAX_CONFIG_BYTES = 16 * 2**20
_MAX_HEADER_BYTES = 100_000_000
"""The longest header that the format safetensors allows."""


def refusal_without_config(path: Path) -> str:
    """The sentence for a path that has no config.json below it."""
    if path.is_file() and path.suffix.lower() == ".gguf":
        return f"{path} is a GGUF file, which this engine does not read: {_AS_GGUF}"
    if path.is_file():
        return f"{path} is a file: --model takes its folder, {path.parent}."
    if not path.is_dir():
        _, hub, rest = str(path).rpartition("huggingface.co/" if "huggingface.co/" in str(path) else "hf.co/")
        of_hub = f" (here: {'/'.join(rest.split('/')[:2])})" if hub else ""
        return (
            f"{path} does not exist: --model takes the folder of a model on this machine, or the id of a "
            f"hub's model, owner/name{of_hub}."
        )
    config = path / "config.json"
    if config.is_symlink():
        return (
            f"{path} is not a model folder: its config.json is a link to {os.readlink(config)}, which is not "
            "there. Of a Hugging Face cache, give the folder models--OWNER--NAME, which has the snapshots "
            "and what they link to; mount all of it in a container."
        )
    if adapter := _refusal_of_adapter(path):
        return adapter
    if _has(path, "*.gguf"):
        return f"{path} has a model as GGUF, which this engine does not read: {_AS_GGUF}"
    if (path / "model_index.json").is_file():
        return f"{path} is a diffusion pipeline, which makes pictures: --model takes what writes text."
    if (path / "params.json").is_file():
        return (
            f"{path} has a model in Mistral's own form (params.json): fetch the repository's config.json and "
            "model*.safetensors, or serve it by --engine vllm (docs/engines.md)."
        )
    inner = sorted(config.parent for config in path.glob("*/config.json"))
    has_it = f"{inner[0]}, which has it" if inner else "the folder that has it"
    return f"{path} is not a model folder: it has no config.json. --model takes {has_it}."


@contextmanager
def refused_if_unreadable() -> Iterator[None]:
    """Raises ConfigError for a file that may not be read."""
    try:
        yield
    except PermissionError as error:
        raise ConfigError(
            f"{error.filename} may not be read by the user with the id {os.geteuid()}, who runs this "
            "process; chmod -R a+rX on the model's folder lets everybody read it."
        ) from error


@refused_if_unreadable()
def check_files(folder: Path, *, with_weights: bool) -> None:
    """Raises ConfigError for a folder that cannot be served, `with_weights` if this process loads them."""
    config = _config_of(folder)
    refusal = _refusal_of_weights(folder) or _refusal_of_task(folder, config) if with_weights else None
    has_tokenizer = config.get("model_type") == "gpt_oss" or (folder / "tokenizer.json").is_file()
    if refusal is None and not has_tokenizer:
        refusal = (
            f"{folder} has no tokenizer.json: fetch it from the model's repository, or have transformers "
            "write it with AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        )
    if refusal is None and with_weights:
        refusal = next(filter(None, map(_refusal_of_file, sorted(folder.glob("model*.safetensors")))), None)
    if refusal:
        raise ConfigError(refusal)


def check_template(folder: Path, file: Path | None) -> None:
    """Raises ConfigError for a `chat_template` setting that cannot be used with the model."""
    if file is None:
        return
    if not file.is_file():
        raise ConfigError(f"chat-template {file} is not a file; it takes a file with a template in Jinja.")
    if _config_of(folder).get("model_type") == "gpt_oss":
        raise ConfigError("chat-template is not for gpt-oss, whose prompts no template writes.")


def _config_of(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        if file.stat().st_size > _MAX_CONFIG_BYTES:
            raise ConfigError(f"{file} has more than {_MAX_CONFIG_BYTES} bytes. {_INCOMPLETE}")
        config = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON ({error}). {_INCOMPLETE}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} is not a JSON object. {_INCOMPLETE}")
    return config


def _refusal_of_weights(folder: Path) -> str | None:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            named = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
        except (ValueError, LookupError, TypeError, AttributeError):
            return f"{index} does not say which file has which weights. {_INCOMPLETE}"
        missing = sorted(name for name in named if not (folder / name).is_file())
        return (
            f"{folder} lacks {missing[0]}, which its {index.name} names. {_INCOMPLETE}" if missing else None
        )
    if (folder / "model.safetensors").is_file() or (folder / GGUF_FILE).is_symlink():
        return None
    if adapter := _refusal_of_adapter(folder):
        return adapter
    if _has(folder, "*.gguf"):
        return f"{folder} has its weights as GGUF, which this engine does not read: {_AS_GGUF}"
    if any(_has(folder, pattern) for pattern in _PICKLED):
        return (
            f"{folder} has its weights as pickles, which run code when they are read: convert them to "
            "safetensors with transformers' save_pretrained, or serve the folder by --engine vllm "
            "(docs/engines.md)."
        )
    if other := next((file for pattern in _OF_OTHER_PROGRAMS for file in folder.glob(pattern)), None):
        return (
            f"{folder} has its weights for another program ({other.name}): take the repository that it was "
            "made of, whose weights are safetensors."
        )
    return f"{folder} has no weights: there is neither model.safetensors nor {index.name}. {_INCOMPLETE}"


def _refusal_of_file(file: Path) -> str | None:
    """The sentence for a safetensors file that is not whole; its header says how long it is."""
    again = f"Delete {file.resolve()} and fetch it again."
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        if start == b"version ":
            return f"{file} is a pointer of Git LFS and no weights: run `git lfs pull` in the folder."
        length = int.from_bytes(start, "little")
        text = opened.read(length) if length <= _MAX_HEADER_BYTES else b""
    try:
        tensors = [entry for name, entry in json.loads(text).items() if name != "__metadata__"]
        whole = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"{file} is not in the format safetensors: the download is damaged. {again}"
    return None if size == whole else f"{file} has {size} bytes of {whole}. {again}"


def _refusal_of_task(folder: Path, config: dict[str, Any]) -> str | None:
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    purpose = next((purpose for end, purpose in _NO_TEXT.items() if architecture.endswith(end)), "")
    if _has(folder, "modules.json") or _has(folder, "config_sentence_transformers.json"):
        purpose = purpose or "embeddings"
    if purpose:
        return (
            f"{folder} ({architecture or config.get('model_type')}) is a model for {purpose}, which "
            "generates no text: --model takes one that does."
        )
    if config.get("is_encoder_decoder") is True:
        kind = config.get("model_type")
        return f"{folder} ({kind}) is an encoder and a decoder; only decoders are served, by every engine."
    return None


def _refusal_of_adapter(folder: Path) -> str | None:
    settings = folder / "adapter_config.json"
    if not settings.is_file():
        return None
    try:
        base = json.loads(settings.read_bytes())["base_model_name_or_path"]
    except (ValueError, LookupError, TypeError):
        base = None
    of = f" of {base}" if isinstance(base, str) and base else ""
    return (
        f"{folder} is a LoRA adapter, not a model: set --model to the folder of its base model{of}, and "
        f"--adapters {folder.name}={folder} (docs/models.md)."
    )


def _has(folder: Path, pattern: str) -> bool:
    return next(folder.glob(pattern), None) is not None
