"""A GGUF file's tokenizer, template and sizes become a folder; a damaged one is refused with a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine.config import ModelRefused
from engine.remote.gguf_folder import write_folder
from engine.remote.gguf_metadata import read_metadata
from server.configuration.shipped_files import demo_model_folder
from tests.support.gguf_file import write_gguf

DEMO: dict[str, Any] = json.loads((demo_model_folder() / "tokenizer.json").read_bytes())
SPECIAL = {token["content"] for token in DEMO["added_tokens"]}
VOCABULARY = DEMO["model"]["vocab"] | {token["content"]: token["id"] for token in DEMO["added_tokens"]}
TOKENS = sorted(VOCABULARY, key=lambda token: int(VOCABULARY[token]))
END = next(token for token in TOKENS if token in SPECIAL)
VALUES: dict[str, object] = {
    "general.architecture": "gpt-oss",
    "gpt-oss.context_length": 512,
    "gpt-oss.rope.freq_base": 1e4,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in TOKENS],
    "tokenizer.ggml.merges": [" ".join(merge) for merge in DEMO["model"]["merges"]],
    "tokenizer.ggml.eos_token_id": VOCABULARY[END],
    "tokenizer.chat_template": "{{ messages }}",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    write_gguf(file, VALUES)
    return file


def test_the_head_is_read_as_it_was_written(file: Path) -> None:
    assert read_metadata(file) == VALUES


def test_the_folder_has_what_prompts_are_written_with(file: Path, tmp_path: Path) -> None:
    write_folder(file, tmp_path)
    config = json.loads((tmp_path / "config.json").read_bytes())
    assert (config["model_type"], config["vocab_size"]) == ("gpt_oss", len(TOKENS))
    assert config["max_position_embeddings"] == 512
    settings = json.loads((tmp_path / "tokenizer_config.json").read_bytes())
    assert (settings["chat_template"], settings["eos_token"]) == ("{{ messages }}", END)
    assert json.loads((tmp_path / "generation_config.json").read_bytes()) == {
        "eos_token_id": [VOCABULARY[END]]
    }


@pytest.mark.parametrize(
    "split", ["qwen2", "llama-bpe", "qwen35", "smollm", "gpt-2", "gpt-4o", "tekken", "deepseek-v3", "unheard"]
)
@pytest.mark.parametrize(
    "text", ["Hello  world\n\n", "I've 12345 wörds, don't I?", "你好世界 カナ 42", "\t\r\n x"]
)
def test_tokens_are_of_the_text(tmp_path: Path, split: str, text: str) -> None:
    file = tmp_path / "model.gguf"
    write_gguf(file, {**VALUES, "tokenizer.ggml.pre": split})
    write_folder(file, tmp_path)
    tokenizer: Any = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encoded = tokenizer.encode(f"{text}{END}").ids
    assert encoded[-1] == VOCABULARY[END]
    assert tokenizer.decode(encoded[:-1], skip_special_tokens=False) == text


def test_a_number_is_split_as_the_model_was_trained(tmp_path: Path) -> None:
    pieces = {}
    for split in ("qwen2", "llama-bpe", "gpt-2"):
        file = tmp_path / "model.gguf"
        write_gguf(file, {**VALUES, "tokenizer.ggml.pre": split})
        write_folder(file, tmp_path)
        tokenizer: Any = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        pieces[split] = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("12345")]
    assert pieces == {"qwen2": [*"12345"], "llama-bpe": ["123", "45"], "gpt-2": ["12345"]}


def test_a_file_that_is_cut_anywhere_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for size in [*range(1, 200), len(whole) // 2, len(whole) - 1]:
        file.write_bytes(whole[:size])
        with pytest.raises(ModelRefused, match=r"cannot be read as a GGUF file: .* Fetch it again\."):
            write_folder(file, file.parent)


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_gguf(file, {"general.architecture": "clip"})
    with pytest.raises(ModelRefused, match="has no tokenizer in it"):
        write_folder(file, tmp_path)
