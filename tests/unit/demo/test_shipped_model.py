"""The model folder of the repository is whole, small, safe to load, and can do what it should."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from demo.evaluate import KINDS, Mistake, Result, Subject, cases_of, is_right
from demo.evaluation_cases import Kind
from demo.export import CHAT_TEMPLATE, FILES
from demo.rendering import TURN_END
from demo.threads import one_thread
from tests.unit.demo.shipped import SHIPPED

#: Their answers or prompts are too long for a quick test; `python -m demo.evaluate` asks them.
SLOW_KINDS = ("count to 120", "recall across 4 long turns", "recall across 12 long turns")
AT_ONCE = 24


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """As `evaluate` gives them, from answers to cases of all kinds at once, the shortest answers first."""
    asked = [
        (kind, case) for kind in KINDS if kind.name not in SLOW_KINDS for case in cases_of(kind, count=3)
    ]
    asked.sort(key=lambda one: len(one[1].expected) if one[1].expected is not None else sys.maxsize)
    subject = Subject(SHIPPED)
    mistakes: dict[Kind, list[Mistake]] = {kind: [] for kind, _ in asked}
    with one_thread():
        for start in range(0, len(asked), AT_ONCE):
            group = asked[start : start + AT_ONCE]
            for (kind, case), answer in zip(group, subject.answer([case for _, case in group]), strict=True):
                if not is_right(case, answer):
                    mistakes[kind].append(Mistake(case, answer))
    counts = Counter(kind for kind, _ in asked)
    return [Result(kind, counts[kind], tuple(wrong)) for kind, wrong in mistakes.items()]


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
    wrong = [r.row() for r in results if r.kind.floor >= 0.95 and r.mistakes]

    assert wrong == []


def test_shipped_model_is_mostly_right_where_it_may_err(results: list[Result]) -> None:
    fallible = [r for r in results if r.kind.floor < 0.95]

    assert sum(r.share_right for r in fallible) / len(fallible) >= 0.7
