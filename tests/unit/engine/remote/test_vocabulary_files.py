"""What a model folder says without its weights."""

import json
from pathlib import Path

import pytest

from engine.config import EngineConfig, ModelRefused
from engine.core.local_engine import load
from engine.remote.vocabulary_files import MAX_FILE_BYTES, read_model_folder
from engine.request import ModelInfo
from tests.support.engines import Listener
from tests.support.grammars import TOKENS, readable_model

DEMO = Path(__file__).parents[4] / "demo" / "holdfast-demo"


def test_a_folder_says_the_same_with_and_without_its_weights() -> None:
    engine = load(EngineConfig(model=DEMO, device="cpu", dtype="float32", torch_threads=1), Listener())
    engine.close(drain=False)
    folder = read_model_folder(DEMO)
    for name in ("vocab_size", "stop_ids", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        assert getattr(folder.model_info, name) == getattr(engine.model_info, name)
    assert folder.vocabulary is not None


def test_the_tokens_are_those_of_the_tokenizer() -> None:
    folder = read_model_folder(readable_model(), "served")
    assert [token.decode() for token in folder.tokens] == list(TOKENS)
    assert folder.special == {0, 1}
    assert folder.name == "served"


def write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)
    return folder


def test_a_nested_text_config_and_sampling_defaults_are_read(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        config={"vision_config": {}, "eos_token_id": 3, "text_config": {"vocab_size": 10}},
        generation_config={"do_sample": True, "top_k": 20, "temperature": 0.6, "eos_token_id": [4, 11, "x"]},
    )
    assert read_model_folder(folder).model_info == ModelInfo(
        vocab_size=10,
        context_length=0,
        stop_ids=frozenset({4}),
        temperature=0.6,
        top_p=1.0,
        top_k=20,
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a JSON object"),
        ({}, "no vocab_size"),
        ({"vocab_size": -1}, "no vocab_size"),
        ({"vocab_size": True}, "no vocab_size"),
        (" " * (MAX_FILE_BYTES + 1), "bytes"),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused_with_a_sentence(
    tmp_path: Path, config: object, words: str
) -> None:
    with pytest.raises(ModelRefused, match=words):
        read_model_folder(write(tmp_path, config=config))
    with pytest.raises(ModelRefused, match=r"no config\.json"):
        read_model_folder(tmp_path / "nothing")


def test_the_token_of_pictures_is_read_for_families_whose_templates_write_one(tmp_path: Path) -> None:
    demo = DEMO.parent / "holdfast-vision"
    info = read_model_folder(demo).model_info
    assert (info.image_placeholder, info.image_token_id) == ("<image>", 1280)
    assert read_model_folder(DEMO).model_info.image_placeholder is None
    config = json.loads((demo / "config.json").read_text())
    (tmp_path / "tokenizer.json").write_bytes((demo / "tokenizer.json").read_bytes())
    for change in ({"model_type": "gemma3"}, {"image_token_index": 3}, {"image_token_index": "x"}):
        write(tmp_path, config={**config, **change})
        assert read_model_folder(tmp_path).model_info.image_token_id is None
