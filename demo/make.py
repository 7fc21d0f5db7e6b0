"""From random weights to a model folder: training, export, evaluation.

``python -m demo.make --out DIR`` exits with 1 where the model is below a floor of the evaluation.
The folder is written after every stage, so a run that is broken off leaves what it had learned; with
``--stages`` the weights of each stage are saved too, and stages that are there are not run again.

The tokenizer is the one of the repository, so that a new model reads the prompts of the old one.
``--new-tokenizer`` trains another.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from demo.evaluate import DEFAULT_CASES, KINDS, evaluate, is_good_enough
from demo.evaluation_cases import Kind
from demo.export import describe, export
from demo.growth import deepened
from demo.stages import STAGES, Stage
from demo.threads import one_thread
from demo.tokenizer import VOCABULARY_SIZE, shipped_tokenizer, train_tokenizer
from demo.train import Average, Shape, new_model, train_stage

_SEED = 1
_TOKENIZER_SEED = 11

#: Keep freed memory instead of asking the kernel for zeroed pages at every step, which is much
#: faster. glibc reads these once, at the start of a process.
_PROCESS_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what comes out."""

    #: How many conversations a tokenizer of which size is trained on, where a new one is.
    tokenizer_conversations: int
    vocabulary_size: int
    shape: Shape
    stages: tuple[Stage, ...]
    kinds: tuple[Kind, ...]


FULL = Recipe(12_000, VOCABULARY_SIZE, Shape(), STAGES, KINDS)

#: Proves that every step runs; what comes out can do nothing.
SMOKE = Recipe(
    tokenizer_conversations=50,
    vocabulary_size=400,
    shape=Shape(hidden=16, intermediate=32, layers=1, heads=2, key_value_heads=1, head_size=8),
    stages=(Stage("smoke", tokens=1500, batch_tokens=1024, learning_rate=1e-3, seed=1, share=1),),
    kinds=tuple(kind for kind in KINDS if kind.name in ("greeting", "recall of a name")),
)


def make(
    recipe: Recipe, tokenizer: Tokenizer, folder: Path, cases: int, stages_folder: Path | None = None
) -> bool:
    """Make the folder and tell whether the model is as good as it has to be."""
    torch.manual_seed(_SEED)
    model = new_model(tokenizer, recipe.shape)
    print(f"{model.num_parameters():,} parameters, {tokenizer.get_vocab_size():,} tokens")
    average = Average()
    for stage in recipe.stages:
        if stage.starts_from_average or stage.deepens:
            model = average.model(like=model)
        if stage.deepens:
            model = deepened(model)
        if stage.deepens or stage.renews_average:
            average = Average()
        saved = stages_folder / f"{stage.name}.pt" if stages_folder else None
        if saved and saved.exists():
            model.load_state_dict(torch.load(saved, weights_only=True))
        else:
            with one_thread():
                train_stage(model, tokenizer, stage)
        if saved:
            saved.parent.mkdir(parents=True, exist_ok=True)
            torch.save(model.state_dict(), saved)
        average.add(model, stage.share)
        export(average.model(like=model), tokenizer, folder)
    print(describe(folder))
    return is_good_enough(evaluate(folder, cases, recipe.kinds))


def _new_tokenizer(recipe: Recipe) -> Tokenizer:
    return train_tokenizer(recipe.tokenizer_conversations, _TOKENIZER_SEED, recipe.vocabulary_size)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m demo.make", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--cases", type=int, default=DEFAULT_CASES, help="cases of each kind")
    parser.add_argument(
        "--smoke", action="store_true", help="two steps of a toy model, to see that all steps run"
    )
    parser.add_argument("--stages", type=Path, help="a folder for the weights of each stage")
    parser.add_argument("--new-tokenizer", action="store_true", help="train a tokenizer, too")
    options = parser.parse_args(arguments)
    if options.smoke:
        make(SMOKE, _new_tokenizer(SMOKE), options.out, cases=1)
        return 0
    tokenizer = _new_tokenizer(FULL) if options.new_tokenizer else shipped_tokenizer()
    return 0 if make(FULL, tokenizer, options.out, options.cases, options.stages) else 1


def _restart_with_process_settings() -> None:
    """Start this command again where the settings of the process are not the fast ones."""
    if not _PROCESS_SETTINGS.keys() <= os.environ.keys():
        command = [sys.executable, "-m", "demo.make", *sys.argv[1:]]
        os.execve(sys.executable, command, _PROCESS_SETTINGS | os.environ)  # noqa: S606 ourselves


if __name__ == "__main__":
    _restart_with_process_settings()
    sys.exit(main())
