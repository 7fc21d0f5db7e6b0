"""The recipe runs from nothing to a folder, and learns from what it should learn from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from demo import evaluate, make
from demo.batches import UNTRAINED, Batch
from demo.evaluate import KINDS, Mistake, Result, is_good_enough
from demo.evaluation_cases import Case
from demo.export import FILES
from demo.tokenizer import train_tokenizer
from demo.train import Shape, answer_loss, new_model
from tests.unit.demo.shipped import SHIPPED

TINY = Shape(hidden=16, intermediate=32, layers=1, heads=2, key_value_heads=1, head_size=8)


def batch_saying(first: int, positions: list[int]) -> Batch:
    ids = torch.tensor([[first, 7, 8, 9, 10, 11]])
    labels = ids.clone()
    labels[:, :4] = UNTRAINED
    return Batch(ids, labels, torch.tensor([positions]))


def test_training_sees_what_was_said_before_a_jump_of_positions() -> None:
    torch.manual_seed(1)
    model = new_model(train_tokenizer(conversations=5, seed=1, size=400), TINY)
    jump = [0, 1, 2, 503, 504, 505]

    one = answer_loss(model, batch_saying(first=5, positions=jump))
    other = answer_loss(model, batch_saying(first=6, positions=jump))

    assert one.item() != other.item()


def test_make_goes_from_nothing_to_a_loadable_folder_when_it_smokes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"

    assert make.main(["--smoke", "--out", str(folder)]) == 0

    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype is torch.bfloat16
    assert "step 2, loss" in capsys.readouterr().out


def test_evaluation_fails_when_a_kind_is_below_its_floor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind = KINDS[0]
    mistake = Mistake(Case((), "Hello!"), "Bye!")

    assert not is_good_enough([Result(kind, cases=2, mistakes=(mistake,))])
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
