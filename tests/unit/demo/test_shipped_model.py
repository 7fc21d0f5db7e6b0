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
SURE = 0.95
"""The floor of kinds that allow no mistake here."""


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """One case of each kind that allows no mistake; three of the others, of which a share is right.

    The cases of all kinds are answered together: a step of many answers costs little more than one of one.
    """
    quick = [kind for kind in KINDS if kind.name not in SLOW_KINDS]
    asked = [(kind, case) for kind in quick for case in cases_of(kind, 1 if kind.floor >= SURE else 3)]
    with one_thread():
        answers = Subject(SHIPPED).answer([case for _, case in asked])
    answered: dict[str, list[tuple[Case, str]]] = {kind.name: [] for kind in quick}
    for (kind, case), answer in zip(asked, answers, strict=True):
        answered[kind.name].append((case, answer))
    return [result_of(kind, answered[kind.name]) for kind in quick]


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


def test_shipped_model_makes_no_mistake_where_it_should_make_none(results: list[Result]) -> None:
    wrong = [r.row() for r in results if r.kind.floor >= SURE and r.mistakes]

    assert wrong == []


def test_shipped_model_is_mostly_right_where_it_may_err(results: list[Result]) -> None:
    fallible = [r for r in results if r.kind.floor < SURE]

    assert sum(r.share_right for r in fallible) / len(fallible) >= 0.7
