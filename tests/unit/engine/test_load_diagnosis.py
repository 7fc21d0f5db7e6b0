"""The diagnosis of an engine says what was chosen on this machine, and finds attention that is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine import load_diagnosis
from engine.attention.kernel_check import Case, attend_with_sdpa
from engine.config import EngineConfig, ModelRefused
from engine.load_diagnosis import Diagnosis, diagnose
from tests.support.engines import (
    forget_tokens_in_flight,
    pipeline_unless_forbidden,
    save_random_model,
    tiny_model,
)


def diagnosed(**settings: Any) -> Diagnosis:
    defaults = {"model": tiny_model(), "device": "cpu", "torch_threads": 1, "kv_blocks": 64}
    config = EngineConfig(**{**defaults, **settings})
    return diagnose(config, lambda _line: None)


def test_what_is_chosen_on_a_cpu_is_told() -> None:
    found = diagnosed(token_budget=100)
    info, limits = found.model_info, found.limits
    assert (found.device, found.dtype, info.attention, info.decode) == ("cpu", "float32", "sdpa", "eager")
    assert (limits.kv_blocks, limits.block_size) == (64, 16)
    assert (limits.token_budget, limits.max_running, found.threads) == (100, 64, 1)
    assert found.weight_bytes == found.parameters * 4
    assert (found.quantization, found.dequantized) == (None, False)
    assert (found.attention_fault, found.warnings) == (None, ())


WRONG: dict[str, Callable[[Case], torch.Tensor]] = {
    "differs": lambda case: attend_with_sdpa(case) + 0.5,
    "nan": lambda case: attend_with_sdpa(case) * torch.nan,
    "no_such_thing": lambda case: case.no_such_thing,  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("fault", WRONG)
def test_attention_that_is_wrong_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_diagnosis, "attend_with_sdpa", WRONG[fault])
    found = diagnosed()
    assert found.attention_fault is not None
    assert fault in found.attention_fault


def test_what_is_not_used_is_told_and_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline_unless_forbidden(monkeypatch)
    forget_tokens_in_flight(monkeypatch)
    found = diagnosed()
    assert not found.pipelined
    (line,) = found.warnings
    assert line.startswith("steps are not pipelined")
    assert caplog.messages == []


def test_a_model_that_cannot_be_served_is_refused() -> None:
    with pytest.raises(ModelRefused):
        diagnosed(attention="varlen")
    path = save_random_model("Qwen3Config", num_hidden_layers=1)
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelRefused):
        diagnosed(model=path)
