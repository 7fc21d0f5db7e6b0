"""The recipe runs from nothing to a folder, and learns from what it should learn from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from demo import evaluate, make
from demo.batches import UNTRAINED, Batch, Batches, LongSettings
from demo.evaluate import KINDS, Mistake, Result, is_good_enough
from demo.evaluation_cases import Case
from demo.export import FILES
from demo.growth import deepened
from demo.tokenizer import shipped_tokenizer, train_tokenizer
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


def test_training_on_a_shared_setting_is_training_on_each_conversation_with_it() -> None:
    torch.manual_seed(1)
    tokenizer = shipped_tokenizer()
    model = new_model(tokenizer, TINY)
    batch = next(iter(Batches(tokenizer, 3, 1024, long=LongSettings(1.0, 200, 400))))
    assert batch.prefix is not None
    count, seen = len(batch.ids), batch.prefix.shape[1]
    whole = Batch(
        torch.cat([batch.prefix.repeat(count, 1), batch.ids], dim=1),
        torch.cat([torch.full((count, seen), UNTRAINED), batch.labels], dim=1),
        torch.cat([torch.arange(seen).repeat(count, 1), batch.positions], dim=1),
    )

    shared_loss, whole_loss = answer_loss(model, batch), answer_loss(model, whole)

    assert torch.allclose(shared_loss, whole_loss, rtol=0.01)
    [shared] = torch.autograd.grad(shared_loss, [model.model.embed_tokens.weight])
    [expected] = torch.autograd.grad(whole_loss, [model.model.embed_tokens.weight])
    assert torch.linalg.norm(shared - expected) < 0.05 * torch.linalg.norm(expected)


def test_stages_that_are_saved_are_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_tokenizer(conversations=5, seed=1, size=400)
    recipe = replace(make.SMOKE, kinds=make.SMOKE.kinds[:1])

    for folder in ("one", "other"):
        make.make(recipe, tokenizer, tmp_path / folder, cases=1, stages_folder=tmp_path / "stages")

    assert capsys.readouterr().out.count("step 2, loss") == 1
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_make_goes_from_nothing_to_a_loadable_folder_when_it_smokes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"

    assert make.main(["--smoke", "--out", str(folder)]) == 0

    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype is torch.bfloat16
    assert "step 2, loss" in capsys.readouterr().out


def test_evaluation_fails_when_a_kind_is_below_its_floor(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_deepened_model_says_what_it_said_before() -> None:
    torch.manual_seed(1)
    model = new_model(train_tokenizer(conversations=5, seed=1, size=400), replace(TINY, layers=2))
    ids = torch.tensor([[5, 7, 8, 9, 10, 11]])

    deeper = deepened(model)

    assert deeper.config.num_hidden_layers == 3
    assert deeper.num_parameters() > model.num_parameters()
    assert torch.allclose(deeper(ids).logits, model(ids).logits, atol=1e-5)
