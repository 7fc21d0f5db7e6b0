"""The vision model's folder in the repository is whole, small, safe to load, and can do what it should."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, LlavaForConditionalGeneration

from demo.vision.evaluate import KINDS, Subject, cases_of
from demo.vision.export import CHAT_TEMPLATE, FILES, SHIPPED
from demo.vision.model import IMAGE

LEAST_RIGHT = 0.95
SEED = 2027


def test_shipped_folder_holds_the_documented_files_and_no_other() -> None:
    assert {path.name for path in SHIPPED.iterdir()} == set(FILES)


def test_shipped_folder_is_at_most_three_megabytes() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 3_000_000


def test_shipped_folder_needs_no_code_of_its_own_to_load() -> None:
    config = json.loads((SHIPPED / "config.json").read_text(encoding="utf-8"))

    assert "auto_map" not in config
    assert [path.suffix for path in SHIPPED.glob("model*")] == [".safetensors"]


def test_shipped_chat_template_is_the_one_of_the_recipe() -> None:
    assert (SHIPPED / CHAT_TEMPLATE.name).read_bytes() == CHAT_TEMPLATE.read_bytes()


def test_shipped_model_loads_as_an_ordinary_model_in_bf16() -> None:
    model = AutoModelForImageTextToText.from_pretrained(SHIPPED, dtype="auto")
    processor = AutoProcessor.from_pretrained(SHIPPED)  # type: ignore[no-untyped-call]

    assert isinstance(model, LlavaForConditionalGeneration)
    assert model.dtype is torch.bfloat16
    assert processor.image_token == IMAGE


@pytest.mark.faults
def test_shipped_model_is_right_about_95_of_100_fresh_pictures() -> None:
    """The questions are any of the evaluation's; pictures are files of three formats and any size."""
    torch.set_num_threads(1)
    [kind] = [kind for kind in KINDS if kind.name == "any question"]
    subject = Subject(SHIPPED)
    cases = cases_of(kind, 100, SEED)

    wrong = [case.expected for case in cases if subject.answer(case) != case.expected]

    assert len(wrong) <= 100 * (1 - LEAST_RIGHT), wrong


@pytest.mark.faults
def test_shipped_model_stays_with_the_picture_and_says_when_there_is_none() -> None:
    torch.set_num_threads(1)
    subject = Subject(SHIPPED)
    quick = ("two turns later", "newest of two", "without a picture", "greeting", "beyond it")

    shares = {}
    for kind in KINDS:
        if kind.name in quick:
            cases = cases_of(kind, 10, SEED)
            shares[kind.name] = sum(subject.answer(case) == case.expected for case in cases) / len(cases)

    assert min(shares.values()) >= 0.9, shares
