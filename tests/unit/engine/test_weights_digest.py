"""The digest of a model folder's weights: equal for copies, another one for other weights, and soon made."""

import shutil
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from engine.weights_digest import (
    BLOCK_BYTES,
    BLOCKS_OF_FILE,
    HEAD_BYTES,
    MAX_READS,
    digests_by_adapter,
    weights_digest,
)

SIZE = 4 * 2**20


def make(folder: Path, *, shards: int = 2, size: int = SIZE) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "tokenizer.json").write_text("{}")
    for number in range(shards):
        content = bytes((number + place) % 251 for place in range(251)) * (size // 251 + 1)
        (folder / f"model-{number}.safetensors").write_bytes(content[:size])
    return folder


def overwrite(file: Path, offset: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)
        opened.seek(offset)
        opened.write(bytes([byte[0] ^ 1]))


def test_a_copy_of_the_folder_has_the_same_digest(tmp_path: Path) -> None:
    folder = make(tmp_path / "model")
    copy = shutil.copytree(folder, tmp_path / "copy")
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in folder.iterdir():
        (linked / file.name).symlink_to(file)
    (copy / "README.md").write_text("Read me.")
    assert weights_digest(folder) == weights_digest(copy) == weights_digest(linked)


@pytest.mark.parametrize(
    "offset", [0, HEAD_BYTES - 1, HEAD_BYTES + (SIZE - BLOCK_BYTES - HEAD_BYTES) // BLOCKS_OF_FILE, SIZE - 1]
)
def test_a_byte_of_a_head_or_of_a_sampled_block_makes_another_digest(tmp_path: Path, offset: int) -> None:
    folder = make(tmp_path / "model")
    before = weights_digest(folder)
    overwrite(folder / "model-1.safetensors", offset)
    assert weights_digest(folder) != before


@pytest.mark.parametrize("size", [1, HEAD_BYTES, HEAD_BYTES + 1, HEAD_BYTES + BLOCK_BYTES + 1])
def test_of_a_small_file_the_last_byte_counts(tmp_path: Path, size: int) -> None:
    folder = make(tmp_path / "model", size=size)
    before = weights_digest(folder)
    overwrite(folder / "model-1.safetensors", size - 1)
    assert weights_digest(folder) != before


def test_sizes_names_and_settings_count(tmp_path: Path) -> None:
    folder = make(tmp_path / "model")
    seen = {weights_digest(folder)}
    with (folder / "model-0.safetensors").open("r+b") as opened:
        opened.truncate(SIZE - 1)
    seen.add(weights_digest(folder))
    (folder / "model-0.safetensors").rename(folder / "model-2.safetensors")
    seen.add(weights_digest(folder))
    (folder / "config.json").write_text('{"model_type": "qwen3", "rope_theta": 2}')
    seen.add(weights_digest(folder))
    (folder / "model-1.safetensors").unlink()
    seen.add(weights_digest(folder))
    assert len(seen) == 5


def test_an_adapters_digest_is_of_its_own_weights_and_of_its_base(tmp_path: Path) -> None:
    base, other, adapter = (make(tmp_path / name) for name in ("base", "other", "adapter"))
    (other / "config.json").write_text("{}")
    (adapter / "adapter_config.json").write_text('{"r": 8}')
    digests = digests_by_adapter(base, [("sql", adapter)])
    assert digests.keys() == {"", "sql"}
    assert digests[""] == weights_digest(base, base="float32")
    assert digests_by_adapter(other, [("sql", adapter)])["sql"] != digests["sql"]
    (adapter / "adapter_config.json").write_text('{"r": 16}')
    assert digests_by_adapter(base, [("sql", adapter)])["sql"] != digests["sql"]


def test_a_folder_of_a_hundred_gigabytes_is_read_in_a_moment(tmp_path: Path) -> None:
    folder = make(tmp_path / "model", shards=0)
    for number in range(20):
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            file.truncate(5 * 2**30)
    began = monotonic()
    weights_digest(folder)
    assert monotonic() - began < 1


def test_however_many_files_there_are_few_blocks_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "model", shards=MAX_READS + 100, size=300)
    opened: list[str] = []
    usual: Any = Path.open

    def count(self: Path, mode: str) -> Any:
        opened.append(self.name)
        return usual(self, mode)

    monkeypatch.setattr(Path, "open", count)
    before = weights_digest(folder)
    assert len(opened) == MAX_READS + 1
    (folder / f"model-{MAX_READS + 99}.safetensors").unlink()
    assert weights_digest(folder) != before
