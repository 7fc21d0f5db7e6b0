"""The check at load: what it finds in few bits, and what of it is remembered."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from engine.config import EngineConfig
from engine.runner.load_runner import load_runner
from engine.runner.model_runner import ModelRunner
from tests.support.engines import tiny_model

COMPARES = "comparing logits with those of the model's own forward"


def loaded(folder: Path | None = None, **settings: Any) -> tuple[str, list[str]]:
    """The kind of the way that is taken, and all that is told while the model is loaded."""
    said: list[str] = []
    config = EngineConfig(
        model=tiny_model(), device="cpu", torch_threads=1, kv_blocks=8, passed_checks=folder, **settings
    )
    runner, _ = load_runner(config, said.append)
    runner.close()
    return runner.model.way.kind, said


def test_a_model_that_has_passed_is_not_compared_again_with_the_same_settings(tmp_path: Path) -> None:
    assert COMPARES in loaded(tmp_path, dtype="float32")[1]
    assert COMPARES not in loaded(tmp_path, dtype="float32")[1]
    assert COMPARES in loaded(tmp_path, dtype="bfloat16")[1]
    assert COMPARES in loaded(dtype="float32")[1]


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        kind, said = loaded(tmp_path / "file" / "folder", dtype="float32")
        assert (kind, COMPARES in said) == ("packed", True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_wrong_row_is_enough_and_is_not_remembered(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = ModelRunner.logits

    def with_a_wrong_row(runner: ModelRunner, *arguments: Any) -> Tensor:
        logits = computed(runner, *arguments).clone()
        if runner.model.way.kind == "packed":
            logits[-1] = logits[-1].flip(0)
        return logits

    monkeypatch.setattr(ModelRunner, "logits", with_a_wrong_row)
    assert loaded(tmp_path, dtype=dtype)[0] == "cached"
    assert list(tmp_path.iterdir()) == []
