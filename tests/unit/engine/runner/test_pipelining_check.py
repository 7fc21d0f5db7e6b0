"""Pipelined steps are compared with others while loading; those that are not right are not taken."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig, ModelRefused
from engine.runner.load_runner import load_runner
from engine.runner.model_runner import ModelRunner, RunningForward
from engine.runner.pipelining_check import find_pipelining_fault
from engine.scheduling.scheduler import SchedulerOutput
from tests.support.engines import forget_tokens_in_flight, pipeline_unless_forbidden, tiny_model


def load(**settings: Any) -> ModelRunner:
    config = EngineConfig(
        model=tiny_model(), **{"device": "cpu", "torch_threads": 1, "kv_blocks": 64, **settings}
    )
    return load_runner(config, lambda _line: None)[0]


@pytest.mark.parametrize("decode", ["eager", "static"])
def test_steps_that_are_right_are_pipelined(decode: str) -> None:
    runner = load(pipelined=True, decode=decode)
    assert runner.pipelined
    assert not any(tensor.any() for tensor in runner._kv_cache.keys)
    runner.close()


def test_a_cache_too_small_for_the_check_is_not_checked() -> None:
    runner = load(pipelined=True, kv_blocks=1)
    assert runner.pipelined
    runner.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda logits: logits + 1, "logits differ by 1"),
        (lambda logits: logits * torch.nan, "logits differ by nan"),
        (lambda logits: logits.no_such_method(), "AttributeError"),
    ],
    ids=["wrong", "no number", "raising"],
)
def test_a_step_ahead_that_is_not_right_is_found_out(change: Callable[[Tensor], Tensor], why: str) -> None:
    runner = load(pipelined=True)

    def begin(plan: SchedulerOutput) -> RunningForward:
        forward = runner.begin(plan)
        if any(chunk.sequence.in_flight for chunk in plan):
            return replace(forward, logits=change(forward.logits))
        return forward

    with torch.inference_mode():
        fault = find_pipelining_fault(begin, runner.model_info.vocab_size, 16, 64)
    assert fault is not None
    assert why in fault
    runner.close()


@pytest.fixture
def _tokens_in_flight_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_tokens_in_flight(monkeypatch)


@pytest.mark.usefixtures("_tokens_in_flight_are_forgotten")
def test_steps_are_computed_one_after_the_other_then_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a GPU, where steps are pipelined unless somebody forbids it."""
    pipeline_unless_forbidden(monkeypatch)
    runner = load()
    assert not runner.pipelined
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    sentence = "steps are not pipelined, but computed one after the other: logits differ by "
    assert record.getMessage().startswith(sentence)
    runner.close()


@pytest.mark.usefixtures("_tokens_in_flight_are_forgotten")
def test_an_operator_who_demands_them_is_refused() -> None:
    with pytest.raises(ModelRefused, match="steps cannot be pipelined: logits differ"):
        load(pipelined=True)
