"""From random weights to a model folder: training of both halves, export, evaluation.

``python -m demo.vision.make --out DIR`` exits with 1 where the model is below a floor of the evaluation.
With ``--stages`` the weights of both stages are saved, and stages that are there are not run again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from demo.threads import one_thread
from demo.vision.evaluate import DEFAULT_CASES, KINDS, Kind, evaluate, is_good_enough
from demo.vision.export import describe, export
from demo.vision.model import Shape, new_model, vision_tokenizer
from demo.vision.talk import TalkStage, train_talk
from demo.vision.tower import TowerStage, train_tower

if TYPE_CHECKING:
    from transformers import LlavaForConditionalGeneration

_SEED = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what comes out."""

    shape: Shape
    tower: TowerStage
    talk: TalkStage
    kinds: tuple[Kind, ...]


FULL = Recipe(
    shape=Shape(),
    tower=TowerStage(pictures=100_000, steps=3600, batch=128, learning_rate=3e-3, seed=1),
    talk=TalkStage(pictures=20_000, tokens=3_500_000, batch_tokens=4096, learning_rate=3e-3, seed=2),
    kinds=KINDS,
)

#: Proves that every step runs; what comes out can do nothing.
SMOKE = Recipe(
    shape=Shape(
        side=16,
        patch=8,
        tower_hidden=16,
        tower_layers=1,
        hidden=16,
        intermediate=16,
        layers=1,
        positions=2048,
    ),
    tower=TowerStage(pictures=16, steps=2, batch=8, learning_rate=1e-3, seed=1),
    talk=TalkStage(pictures=16, tokens=3000, batch_tokens=2048, learning_rate=1e-3, seed=2),
    kinds=tuple(kind for kind in KINDS if kind.name in ("any question", "greeting")),
)


def make(recipe: Recipe, folder: Path, cases: int, stages_folder: Path | None = None) -> bool:
    """Make the folder and tell whether the model is as good as it has to be."""
    torch.manual_seed(_SEED)
    tokenizer = vision_tokenizer()
    model = new_model(tokenizer, recipe.shape)
    print(f"{model.num_parameters():,} parameters, {tokenizer.get_vocab_size():,} tokens")
    stages: dict[str, Callable[[], float]] = {
        "tower": lambda: train_tower(model, recipe.shape, recipe.tower),
        "talk": lambda: train_talk(model, tokenizer, recipe.shape, recipe.talk),
    }
    with one_thread():
        for name, train in stages.items():
            _run_once(model, train, stages_folder / f"{name}.pt" if stages_folder else None)
    export(model, tokenizer, recipe.shape, folder)
    print(describe(folder))
    return is_good_enough(evaluate(folder, cases, recipe.kinds))


def _run_once(model: LlavaForConditionalGeneration, train: Callable[[], float], saved: Path | None) -> None:
    """Train, or load the weights of a stage that has been run before."""
    if saved and saved.exists():
        model.load_state_dict(torch.load(saved, weights_only=True))
        return
    train()
    if saved:
        saved.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), saved)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m demo.vision.make", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--cases", type=int, default=DEFAULT_CASES, help="cases of each kind")
    parser.add_argument(
        "--smoke", action="store_true", help="two steps of a toy model, to see that all steps run"
    )
    parser.add_argument("--stages", type=Path, help="a folder for the weights of each stage")
    options = parser.parse_args(arguments)
    if options.smoke:
        make(SMOKE, options.out, cases=1)
        return 0
    return 0 if make(FULL, options.out, options.cases, options.stages) else 1


if __name__ == "__main__":
    sys.exit(main())
