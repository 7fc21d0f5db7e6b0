"""The model folder of the repository is whole, small, safe to load, and can do what it should."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from demo.evaluate import KINDS, Result, Subject, cases_of, result_of
from demo.evaluation_cases import Case
from demo.export import CHAT_TEMPLATE, FILES
from demo.rendering import TURN_END
from demo.threads import one_thread
from tests.unit.demo.shipped import SHIPPED

#: Their answers or prompts are too long for a quick test; `python -m demo.evaluate` asks them.
SLOW_KINDS = ("count to 120", "recall across 4 long turns", "recall across 12 long turns")
QUICK = [kind for kind in KINDS if kind.name not in SLOW_KINDS]
SURE = 0.95
"""The floor of kinds that allow no mistake here."""
LONG_PROMPT = 2600
"""Tokens. Longer prompts, of some kinds one or two of three, take as much time as all others together."""


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(SHIPPED)


def results_of(subject: Subject, *, long: bool) -> list[Result]:
    """Of the prompts that are long, or of all others.

    One case of each kind that allows no mistake; three of the others, of which a share is right. The cases of
    all kinds are answered together: a step of many answers costs little more than one of one.
    """
    asked = [
        (kind.name, case)
        for kind in QUICK
        for case in cases_of(kind, 1 if kind.floor >= SURE else 3)
        if (subject.prompt_tokens(case) > LONG_PROMPT) == long
    ]
    with one_thread():
        answers = subject.answer([case for _, case in asked])
    answered: dict[str, list[tuple[Case, str]]] = {}
    for (name, case), answer in zip(asked, answers, strict=True):
        answered.setdefault(name, []).append((case, answer))
    return [result_of(kind, answered[kind.name]) for kind in QUICK if kind.name in answered]


@pytest.fixture(scope="module")
def results(subject: Subject) -> list[Result]:
    return results_of(subject, long=False)


def test_shipped_folder_holds_the_documented_files_and_no_other() -> None:
    assert {path.name for path in SHIPPED.iterdir()} == set(FILES)


def test_shipped_folder_is_at_most_eight_megabytes() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 8_000_000


def test_shipped_folder_needs_no_code_of_its_own_to_load() -> None:
    config = json.loads((SHIPPED / "config.json").read_text(encoding="utf-8"))

    assert "auto_map" not in config
    assert [path.suffix for path in SHIPPED.glob("model*")] == [".safetensors"]


def test_shipped_chat_template_is_the_one_of_the_recipe() -> None:
    shipped = SHIPPED / CHAT_TEMPLATE.name

    assert shipped.read_bytes() == CHAT_TEMPLATE.read_bytes()


def test_shipped_model_loads_as_an_ordinary_model_in_bf16() -> None:
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype="auto")

    assert isinstance(model, Qwen3ForCausalLM)
    assert model.dtype is torch.bfloat16


def test_shipped_tokenizer_gives_back_any_text() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(SHIPPED)
    text = 'naïve 日本 🙂 {"n": 12345}\n\tTabs,  two spaces'

    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.eos_token == TURN_END


@pytest.mark.faults
def test_every_kind_of_case_is_asked(results: list[Result]) -> None:
    assert [result.kind for result in results] == QUICK


@pytest.mark.faults
def test_shipped_model_makes_no_mistake_where_it_should_make_none(results: list[Result]) -> None:
    wrong = [r.row() for r in results if r.kind.floor >= SURE and r.mistakes]

    assert wrong == []


@pytest.mark.faults
def test_shipped_model_is_mostly_right_where_it_may_err(results: list[Result]) -> None:
    fallible = [r for r in results if r.kind.floor < SURE]

    assert sum(r.share_right for r in fallible) / len(fallible) >= 0.7


@pytest.mark.faults
def test_shipped_model_is_mostly_right_about_long_prompts(subject: Subject) -> None:
    results = results_of(subject, long=True)

    assert sum(r.share_right for r in results) / len(results) >= 0.7
