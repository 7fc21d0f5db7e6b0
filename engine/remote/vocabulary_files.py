"""`read_model_folder`: vocabulary and sampling defaults of a model folder, without weights, without torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.config import ModelRefused
from engine.remote.engine_protocol import ExpectedModel
from engine.request import ModelInfo, is_count
from engine.vocabulary import Vocabulary, read_vocabulary

MAX_FILE_BYTES = 16 * 2**20
"""Bound of config.json and generation_config.json; real ones have a few KiB."""
IMAGE_FAMILIES = frozenset({
    "glm4v", "glm4v_moe", "internvl", "llava", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe",
})  # fmt: skip
"""The `model_type`s whose chat templates write one token for a picture, which their processors repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder(ExpectedModel):
    model_info: ModelInfo
    """The facts of the folder; `context_length` is 0, because the server's counts."""
    vocabulary: Vocabulary | None
    """None without a tokenizer.json, or if its tokens have no bytes of their own."""


def read_model_folder(folder: Path, name: str | None = None) -> ModelFolder:
    """Reads config.json, generation_config.json and tokenizer.json. Raises `ModelRefused` with a sentence."""
    config = _read_json(folder / "config.json")
    if config is None:
        raise ModelRefused("it has no config.json; a tokenizer and a chat template are not enough.")
    text_config = config.get("text_config")
    text = {**config, **text_config} if isinstance(text_config, dict) else config
    vocab_size = text.get("vocab_size")
    if not is_count(vocab_size) or not vocab_size:
        raise ModelRefused("its config.json has no vocab_size.")
    defaults = _read_json(folder / "generation_config.json") or {}
    try:
        vocabulary = read_vocabulary(folder, vocab_size)
    except ValueError:
        vocabulary = None  # tokens without bytes of their own: no stop strings, grammars and logprobs
    model_info = ModelInfo.of_folder(vocab_size, 0, text, defaults)
    token_id = _image_token_id(config)
    if vocabulary is not None and token_id in vocabulary.special:
        model_info = replace(
            model_info, image_token_id=token_id, image_placeholder=vocabulary.piece(token_id)
        )
    known = Vocabulary(()) if vocabulary is None else vocabulary
    return ModelFolder(
        name=name, tokens=known.tokens, special=known.special, model_info=model_info, vocabulary=vocabulary
    )


def _image_token_id(config: Mapping[str, Any]) -> int | None:
    """The token that stands for a picture; None for models of other families than `IMAGE_FAMILIES`."""
    token_id = config.get("image_token_id", config.get("image_token_index"))
    return token_id if config.get("model_type") in IMAGE_FAMILIES and is_count(token_id) else None


def _read_json(file: Path) -> dict[str, Any] | None:
    """The object in the file; None if there is no such file. Raises `ModelRefused`."""
    if not file.is_file():
        return None
    if file.stat().st_size > MAX_FILE_BYTES:
        raise ModelRefused(f"its {file.name} has more than {MAX_FILE_BYTES} bytes.")
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"its {file.name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelRefused(f"its {file.name} is not a JSON object.")
    return content
