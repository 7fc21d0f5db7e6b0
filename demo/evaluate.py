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

from demo import evaluation_agents, evaluation_cases
from demo.evaluation_cases import Case, HeldOutVocabulary, Kind
from demo.rendering import TURN_END, template_messages, template_tools
from demo.threads import one_thread

KINDS = evaluation_cases.KINDS + evaluation_agents.KINDS
DEFAULT_SEED = 987_654_321
DEFAULT_CASES = 50


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong answer."""

    case: Case
    answer: str


#: An answer that can be any is right if it has at most so many tokens.
_LONGEST_ANSWER = 300
#: Stands after what there is of an answer that did not end.
_CUT = " [cut]"
#: Tokens of the prompts that are computed at once, padding included.
_BATCH_TOKENS = 24_000


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
            f"{self.kind.name:34s} {self.share_right:6.1%} of {self.cases:3d}  "
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
        longest = max(map(self._most_tokens, cases))
        answers: dict[int, str] = {}
        for group in self._groups(prompts):
            texts = self._complete([prompts[place] for place in group], longest)
            answers |= dict(zip(group, map(_until_turn_end, texts), strict=True))
        return [answers[place] for place in range(len(cases))]

    def prompt_tokens(self, case: Case) -> int:
        """Return how long the case's prompt is."""
        return len(self._tokenizer(self._prompt(case)).input_ids)

    def _most_tokens(self, case: Case) -> int:
        if case.expected is None:
            return _LONGEST_ANSWER
        return len(self._tokenizer(case.expected).input_ids) + 8

    def _groups(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the places of the prompts in groups of similar length."""
        lengths = [len(ids) for ids in self._tokenizer(list(prompts)).input_ids]
        groups: list[list[int]] = [[]]
        for place in sorted(range(len(prompts)), key=lengths.__getitem__):
            if (len(groups[-1]) + 1) * lengths[place] > _BATCH_TOKENS and groups[-1]:
                groups.append([])
            groups[-1].append(place)
        return groups

    def _complete(self, prompts: list[str], longest: int) -> list[str]:
        batch = self._tokenizer(prompts, return_tensors="pt", padding=True)
        with torch.inference_mode():
            ids = self._model.generate(**batch, max_new_tokens=longest, do_sample=False)
        texts: list[str] = self._tokenizer.batch_decode(ids[:, batch.input_ids.shape[1] :])
        return texts

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
    return answer if end else f"{answer}{_CUT}"


def _is_right(case: Case, answer: str) -> bool:
    return not answer.endswith(_CUT) if case.expected is None else answer == case.expected


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
        results.append(result_of(kind, list(zip(asked, answers, strict=True))))
        print(results[-1].row(), flush=True)
    return results


def result_of(kind: Kind, answered: Sequence[tuple[Case, str]]) -> Result:
    """Return how many of a kind's cases, each with the answer that it got, are right."""
    mistakes = tuple(Mistake(case, answer) for case, answer in answered if not _is_right(case, answer))
    return Result(kind, len(answered), mistakes)


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
