"""The recipe runs from nothing to a folder that loads, and judges it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from demo.vision import evaluate, make
from demo.vision.evaluate import KINDS, Result, cases_of, is_good_enough
from demo.vision.export import FILES, SHIPPED
from demo.vision.tower import draw_pool


def test_make_goes_from_nothing_to_a_loadable_folder_when_it_smokes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"

    assert make.main(["--smoke", "--out", str(folder)]) == 0

    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert AutoModelForImageTextToText.from_pretrained(folder, dtype="auto").dtype is torch.bfloat16
    assert "talk: 100%" in capsys.readouterr().out


def test_stages_that_are_saved_are_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("one", "other"):
        make.make(make.SMOKE, tmp_path / folder, cases=1, stages_folder=tmp_path / "stages")

    assert capsys.readouterr().out.count("talk: 100%") == 1
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_pool_of_pictures_is_the_same_for_a_seed() -> None:
    one, same, other = (draw_pool(5, seed, 16) for seed in (1, 1, 2))

    assert torch.equal(one.pixels, same.pixels)
    assert not torch.equal(one.pixels, other.pixels)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_cases_are_the_same_for_a_seed_and_have_a_file_for_each_picture(kind: evaluate.Kind) -> None:
    cases = cases_of(kind, 5, seed=3)

    assert cases == cases_of(kind, 5, seed=3)
    for case in cases:
        parts = [p for m in case.messages if isinstance(m["content"], list) for p in m["content"]]
        assert [part["type"] for part in parts].count("image") == len(case.files)


def test_evaluation_fails_when_a_kind_is_below_its_floor(capsys: pytest.CaptureFixture[str]) -> None:
    kind = KINDS[0]
    [case] = cases_of(kind, 1)

    assert not is_good_enough([Result(kind, cases=2, mistakes=((case, "A green cow."),))])
    assert is_good_enough([Result(kind, cases=2, mistakes=())])
    assert kind.name in capsys.readouterr().out


def test_evaluation_command_exits_with_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result(KINDS[0], cases=1, mistakes=())
    asked: list[tuple[Path, int, int]] = []

    def answer(folder: Path, cases: int, *, seed: int) -> list[Result]:
        asked.append((folder, cases, seed))
        return [result]

    monkeypatch.setattr(evaluate, "evaluate", answer)

    assert evaluate.main([str(SHIPPED), "--cases", "3", "--seed", "4"]) == 0
    assert asked == [(SHIPPED, 3, 4)]
