"""The held-out evaluation: greedy answers to cases of every kind, compared letter for letter.

``python -m demo.evaluate MODEL`` prints a table and exits with 1 where a kind is below its floor.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.evaluation_cases import KINDS, Case, HeldOutVocabulary, Kind
from demo.rendering import TURN_END, template_messages, template_tools
from demo.threads import one_thread

DEFAULT_SEED = 987_654_321
DEFAULT_CASES = 50


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong answer."""

    case: Case
    answer: str


@dataclass(frozen=True, slots=True)
class Result:
    """How a model did on the cases of one kind."""

    kind: Kind
    cases: int
    mistakes: tuple[Mistake, ...]

    @property
    def share_right(self) -> float:
        """Return the share of right answers."""
        return 1 - len(self.mistakes) / self.cases

    @property
    def is_below_floor(self) -> bool:
        """Tell whether the model fails on this kind."""
        return self.share_right < self.kind.floor

    def row(self) -> str:
        """Return the result as a line of the table."""
        mark = " BELOW ITS FLOOR" if self.is_below_floor else ""
        row = (
            f"{self.kind.name:28s} {self.share_right:6.1%} of {self.cases:3d}  "
            f"floor {self.kind.floor:4.0%}{mark}"
        )
        if self.mistakes:
            mistake = self.mistakes[0]
            request, expected = mistake.case.messages[-1].text, mistake.case.expected
            row += f"\n    asked {request!r:.200}\n    hoped {expected!r:.200}"
            row += f"\n    heard {mistake.answer!r:.200}"
        return row


class Subject:
    """A model under evaluation."""

    def __init__(self, folder: Path) -> None:
        """Load the folder as any user of transformers would."""
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")

    def answer(self, cases: Sequence[Case]) -> list[str]:
        """Return the greedy answer to each case, or its beginning with a mark if it is too long."""
        prompts = [self._prompt(case) for case in cases]
        batch = self._tokenizer(prompts, return_tensors="pt", padding=True)
        longest = max(len(self._tokenizer(case.expected).input_ids) for case in cases)
        with torch.inference_mode():
            ids = self._model.generate(**batch, max_new_tokens=longest + 8, do_sample=False)
        texts = self._tokenizer.batch_decode(ids[:, batch.input_ids.shape[1] :])
        return [_until_turn_end(text) for text in texts]

    def _prompt(self, case: Case) -> str:
        prompt = self._tokenizer.apply_chat_template(
            template_messages(case.messages, thinking=False),
            tools=template_tools(case.tools),
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=case.thinking,
        )
        assert isinstance(prompt, str)
        return prompt


def _until_turn_end(text: str) -> str:
    answer, end, _ = text.partition(TURN_END)
    return answer if end else f"{answer}..."


def cases_of(kind: Kind, count: int, seed: int = DEFAULT_SEED) -> list[Case]:
    """Return the cases of a kind: always the same ones for the same count and seed."""
    vocabulary = HeldOutVocabulary(f"{seed} {kind.name}")
    return [kind.write(vocabulary) for _ in range(min(count, kind.most_cases or count))]


def evaluate(
    folder: Path, cases: int, kinds: Sequence[Kind] = KINDS, seed: int = DEFAULT_SEED
) -> list[Result]:
    """Return how the model does on each kind, printing each row as it is known."""
    subject = Subject(folder)
    results = []
    for kind in kinds:
        asked = cases_of(kind, cases, seed)
        with one_thread():
            answers = subject.answer(asked)
        mistakes = tuple(
            Mistake(case, answer)
            for case, answer in zip(asked, answers, strict=True)
            if answer != case.expected
        )
        results.append(Result(kind, len(asked), mistakes))
        print(results[-1].row(), flush=True)
    return results


def is_good_enough(results: Sequence[Result]) -> bool:
    """Tell whether no kind is below its floor, and say so."""
    failed = [result.kind.name for result in results if result.is_below_floor]
    mean = sum(result.share_right for result in results) / len(results)
    print(f"mean of the kinds {mean:.1%}; below their floors: {', '.join(failed) or 'none'}")
    return not failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate the folder named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m demo.evaluate", description=__doc__)
    parser.add_argument("model", type=Path, help="a Hugging Face folder")
    parser.add_argument("--cases", type=int, default=DEFAULT_CASES, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="other cases, other seed")
    options = parser.parse_args(arguments)
    results = evaluate(options.model, options.cases, seed=options.seed)
    return 0 if is_good_enough(results) else 1


if __name__ == "__main__":
    sys.exit(main())
