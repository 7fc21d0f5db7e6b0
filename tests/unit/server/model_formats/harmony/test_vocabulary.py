"""gpt-oss's vocabulary: found wherever it may lie, made from the tokenizer, and never the wrong one."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from server.model_formats.harmony import vocabulary
from server.model_formats.harmony.encoding import HarmonyEncoding
from server.model_formats.harmony.vocabulary import (
    FILE,
    TEXT_TOKENS,
    VocabularyPlaces,
    derive_vocabulary,
    find_vocabulary,
    read_tokens,
)
from tests.support.harmony import oracle, vocabulary_file
from tests.support.tiny_gpt_oss import write_tokenizer

LIBRARY_NAME = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""What openai-harmony calls the file in its cache."""


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with nothing but a tokenizer.json."""
    folder = tmp_path_factory.mktemp("snapshot")
    write_tokenizer(folder)
    return folder


def put(folder: Path, name: str = FILE, content: bytes | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(vocabulary_file() if content is None else content)
    return folder


def test_the_file_is_made_from_the_tokenizer_byte_for_byte(snapshot: Path) -> None:
    assert derive_vocabulary(snapshot) == vocabulary_file()


@pytest.mark.parametrize("where", ["user_folder", "library_cache", "snapshot"])
def test_the_file_is_found_wherever_it_lies(tmp_path: Path, where: str) -> None:
    folder = put(tmp_path / where, LIBRARY_NAME if where == "library_cache" else FILE)
    places = VocabularyPlaces() if where == "snapshot" else VocabularyPlaces(**{where: folder})
    assert find_vocabulary(folder if where == "snapshot" else tmp_path, places) == vocabulary_file()


@pytest.mark.parametrize("where", ["library_cache", "snapshot"])
def test_a_wrong_file_is_passed_over(tmp_path: Path, snapshot: Path, where: str) -> None:
    wrong = put(tmp_path / where, LIBRARY_NAME if where == "library_cache" else FILE, b"aGk= 0\n")
    places = VocabularyPlaces() if where == "snapshot" else VocabularyPlaces(**{where: wrong})
    if where == "snapshot":
        (wrong / "tokenizer.json").symlink_to(snapshot / "tokenizer.json")
    assert find_vocabulary(wrong if where == "snapshot" else snapshot, places) == vocabulary_file()
    assert len(list(wrong.iterdir())) <= 2, "what is not ours is left as it is"


def test_a_wrong_file_of_ones_own_is_told(tmp_path: Path, snapshot: Path) -> None:
    with pytest.raises(FileNotFoundError, match="TIKTOKEN_ENCODINGS_BASE"):
        find_vocabulary(snapshot, VocabularyPlaces(user_folder=tmp_path))
    put(tmp_path, content=b"aGk= 0\n")
    with pytest.raises(ValueError, match="TIKTOKEN_ENCODINGS_BASE points to"):
        find_vocabulary(snapshot, VocabularyPlaces(user_folder=tmp_path))


def test_a_folder_without_a_vocabulary_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=FILE):
        find_vocabulary(tmp_path, VocabularyPlaces())


def test_a_tokenizer_with_other_tokens_is_told(tmp_path: Path) -> None:
    demo = Path(__file__).parents[5] / "demo" / "holdfast-demo" / "tokenizer.json"
    (tmp_path / "tokenizer.json").symlink_to(demo)
    with pytest.raises(ValueError, match="does not hold the vocabulary of gpt-oss"):
        find_vocabulary(tmp_path, VocabularyPlaces())


def test_tokens_have_the_bytes_that_the_library_gives_them() -> None:
    tokens = read_tokens(vocabulary_file())
    assert len(tokens) == vocabulary.VOCABULARY
    for token in [*range(0, TEXT_TOKENS, 997), TEXT_TOKENS - 1]:
        assert oracle().decode([token], errors="strict" if tokens[token].isascii() else "replace") == (
            tokens[token].decode(errors="replace")
        )
    assert not any(tokens[TEXT_TOKENS:])


def test_the_library_is_told_where_the_file_is_for_as_long_as_it_loads(tmp_path: Path) -> None:
    getenv = ctypes.CDLL(None).getenv  # the process's environment, of which Python has a copy
    getenv.restype = ctypes.c_char_p
    HarmonyEncoding(vocabulary_file(), tmp_path)
    assert getenv(b"TIKTOKEN_ENCODINGS_BASE") == str(tmp_path).encode()
    HarmonyEncoding(vocabulary_file())
    assert getenv(b"TIKTOKEN_ENCODINGS_BASE") is None


def test_a_file_that_the_library_does_not_take_is_told() -> None:
    with pytest.raises(ValueError, match="does not take"):
        HarmonyEncoding(b"aGk= 0\n")


def test_the_library_is_loaded_for_models_that_need_it_only() -> None:
    code = "import server.model_formats.select_format, sys; sys.exit('openai_harmony' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
