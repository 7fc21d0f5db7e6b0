"""Which attention is taken: a kernel that is wrong, raises or gives no numbers is left, loudly."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention import selection
from engine.attention.kernel_check import (
    TOLERANCES,
    Case,
    attend_with_sdpa,
    find_fault,
    max_difference,
    plain_attention,
)
from engine.attention.paged_attention import LayerAttentionSpec
from engine.attention.selection import Candidate, candidates, choose_attention
from engine.config import ModelRefused
from tests.support.engines import start_model, tiny_model

CPU = torch.device("cpu")
PLAIN = LayerAttentionSpec(
    num_heads=4, num_kv_heads=2, key_size=16, value_size=16, window=None, sinks=False, softcap=None
)


class Right:
    """A kernel that computes a case by plain arithmetic; `change` is what it makes of the result."""

    name = "a kernel"

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda output: output) -> None:
        self._change = change

    def unsupported_reason(self, _spec: LayerAttentionSpec, _dtype: torch.dtype) -> str | None:
        return None

    def attend(self, call: Any, keys: Tensor, values: Tensor, metadata: Any) -> Tensor:
        lengths = metadata.seq_lens.tolist()
        counts = metadata.query_start_loc.diff().tolist()
        case = Case(call, keys, values, metadata, lengths, counts, torch.empty(0))
        return self._change(plain_attention(case).to(call.query.dtype))


def broken(_output: Tensor) -> Tensor:
    raise RuntimeError("no kernel image is available for execution on the device")


def kernel(name: str, change: Callable[[Tensor], Tensor] = lambda output: output, page: int = 1) -> Candidate:
    return Candidate(name, partial(Right, change), page)


FAULTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "wrong": (lambda output: output + 0.25, "it differs from the reference by 0.2"),
    "no number": (lambda output: output * torch.nan, "it differs from the reference by nan"),
    "infinite": (lambda output: output / 0, "it differs from the reference by "),
    "raising": (broken, "RuntimeError: no kernel image is available"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_kernel_is_taken_and_the_log_says_why(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    change, why = FAULTS[fault]
    kernels = [kernel("first", change), kernel("second", page=256)]
    choice = choose_attention([PLAIN], torch.bfloat16, CPU, kernels=kernels)
    assert (choice.name, choice.block_size) == ("second", 256)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"the attention kernel first is not used: {why}")


def test_a_fault_of_any_one_layer_counts() -> None:
    specs = [PLAIN, replace(PLAIN, window=20)]

    class Selective(Right):
        def attend(self, call: Any, *others: Any) -> Tensor:
            return super().attend(replace(call, window=None), *others)

    assert choose_attention([PLAIN], torch.bfloat16, CPU, kernels=[Candidate("k", Selective)]).name == "k"
    assert choose_attention(specs, torch.bfloat16, CPU, kernels=[Candidate("k", Selective)]).name == "sdpa"


def test_a_kernel_that_the_operator_demands_is_had_or_refused() -> None:
    kernels = [kernel("flash", broken)]
    with pytest.raises(ModelRefused, match=r"attention flash cannot be used: .* no kernel image"):
        choose_attention([PLAIN], torch.bfloat16, CPU, requested="flash", kernels=kernels)
    with pytest.raises(ModelRefused, match="there is no GPU here"):
        choose_attention([PLAIN], torch.bfloat16, CPU, requested="varlen")


def test_a_kernel_that_breaks_the_device_ends_the_start_with_a_way_out() -> None:
    def fault(_output: Tensor) -> Tensor:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    with pytest.raises(ModelRefused, match=r"broke the device .* `attention`, such as sdpa"):
        choose_attention([PLAIN], torch.bfloat16, CPU, kernels=[kernel("first", fault)])


def test_an_engine_refuses_to_start_with_a_kernel_that_is_not_there() -> None:
    with pytest.raises(ModelRefused, match="attention flash cannot be used"):
        start_model(tiny_model(), attention="flash")


# The order


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("auto", ["flash_attn_interface", "o/n@1", "varlen", "varlen", "varlen"]),
        ("flash", ["flash_attn_interface", "o/n@1"]),
        ("varlen", ["varlen", "varlen", "varlen"]),
        ("sdpa", []),
    ],
)
def test_kernels_are_tried_in_order_on_a_gpu_and_not_at_all_on_a_cpu(
    wanted: Any, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    assert [each.name for each in candidates(torch.device("cuda", 0), wanted, "o/n@1")] == names
    assert candidates(CPU, wanted, "o/n@1") == []


# torch's own attention


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    monkeypatch.setattr(selection, "disable_fused_sdpa", lambda: done.append("disabled"))
    return done


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, faults: list[str | None]) -> Any:
    """A device that is no CPU, where checks have these results."""
    monkeypatch.setattr(selection, "find_fault", lambda *_args: faults.pop(0))
    return SimpleNamespace(type="cuda")


def test_fused_kernels_that_are_wrong_are_switched_off(
    monkeypatch: pytest.MonkeyPatch, switched: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    device = as_on_a_gpu(monkeypatch, [None])
    assert choose_attention([PLAIN], torch.bfloat16, device).name == "sdpa"
    assert switched == []
    device = as_on_a_gpu(monkeypatch, ["it differs by 1", None])
    choice = choose_attention([PLAIN], torch.bfloat16, device)
    assert (choice.name, choice.backend) == ("sdpa (math)", None)
    assert switched == ["disabled"]
    assert caplog.messages == ["torch's fused attention kernels are not used: it differs by 1"]


@pytest.mark.usefixtures("switched")
def test_a_device_on_which_nothing_is_right_serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device = as_on_a_gpu(monkeypatch, ["it differs by 1", "it differs by 2"])
    with pytest.raises(ModelRefused, match="no attention is right on this device: it differs by 2"):
        choose_attention([PLAIN], torch.bfloat16, device)


SPECS = [
    PLAIN,
    replace(PLAIN, window=12),
    replace(PLAIN, window=40, sinks=True, num_heads=6, num_kv_heads=1),
    replace(PLAIN, softcap=5.0),
    replace(PLAIN, value_size=8),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_torchs_own_attention_is_what_plain_arithmetic_gives(
    spec: LayerAttentionSpec, block_size: int
) -> None:
    assert max_difference(attend_with_sdpa, spec, torch.float32, CPU, block_size) < 1e-5
    for dtype in TOLERANCES:
        assert find_fault(attend_with_sdpa, [spec], dtype, CPU, block_size) is None
