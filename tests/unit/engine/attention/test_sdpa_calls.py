"""Calls of torch's attention on a GPU: each has the form that its flash or memory-efficient kernel takes.

The rules are those of `can_use_flash_attention` and `can_use_mem_efficient_attention` in torch 2.13. There is
no GPU here: the device without numbers takes the way of one, and the call is looked at instead of made.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.attention import sdpa
from engine.attention.paged_attention import LayerCall
from engine.attention.sdpa import attend_prompt, configure_sdpa
from engine.kv_cache import KVCache, LayerShape
from engine.runner.input_builder import InputBuilder
from engine.scheduling.scheduler import ScheduledChunk
from tests.support.steps import make_chunk

META = torch.device("meta")
HEADS, SHARED, SIZE = 8, 2, 64


@dataclass
class Calls:
    seen: list[dict[str, Any]]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **others: Any) -> Tensor:
        self.seen.append({"query": query, "key": key, "value": value, **others})
        return query.new_empty(*query.shape[:-1], value.shape[-1])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    recorder = Calls([])
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", recorder)
    return recorder


def is_taken_by_a_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
    scale: float | None = None,
) -> None:
    """Raises AssertionError if torch would take the MATH kernel, which writes out all scores."""
    assert {tensor.dim() for tensor in (query, key, value)} == {4}
    assert query.shape[:2] == key.shape[:2] == value.shape[:2], "batch and number of heads must be equal"
    assert key.shape[2] == value.shape[2]
    assert all(tensor.stride(-1) == 1 for tensor in (query, key, value))
    assert not enable_gqa
    assert query.shape[3] == key.shape[3]
    assert query.shape[3] % 8 == value.shape[3] % 8 == 0
    if is_causal:
        assert attn_mask is None
        assert query.shape[2] == key.shape[2], "flash refuses causal calls that are not square"
    if attn_mask is not None:
        assert attn_mask.dtype == query.dtype
        wanted = (*query.shape[:3], key.shape[2])
        assert attn_mask.expand(wanted).shape == wanted
        assert attn_mask.stride(-1) == 1, "the rows of a mask must be contiguous"


def attend(kind: str, **fields: Any) -> None:
    """One layer's attention of a mixed step, on the device without numbers."""
    chunks = {
        "decode": [make_chunk(20, 1, [1, 2]), make_chunk(3, 1, [3])],
        "first chunk": [make_chunk(0, 40, [1, 2, 3])],
        "later chunk": [make_chunk(40, 23, [1, 2, 3, 4], more=9)],
        "mixed": [make_chunk(20, 1, [1, 2]), make_chunk(40, 23, [3, 4, 5, 6]), make_chunk(0, 5, [7])],
    }[kind]
    attend_to(chunks, 64, **fields)


def attend_to(chunks: list[ScheduledChunk], blocks: int, **fields: Any) -> None:
    store = KVCache([LayerShape(SHARED, SIZE, SIZE)], blocks, 16, torch.bfloat16, META)
    inputs = InputBuilder(store).build(tuple(chunks))
    tokens = sum(chunk.count for chunk in chunks)
    query = torch.empty(1, HEADS, tokens, SIZE, dtype=torch.bfloat16, device=META)[0].transpose(0, 1)
    fresh = torch.empty(1, SHARED, tokens, SIZE, dtype=torch.bfloat16, device=META)[0].transpose(0, 1)
    call = LayerCall(0, query, fresh, fresh, None, **{"window": None, "sinks": None, **fields})
    assert inputs.attention is not None
    assert inputs.attention.attend(call).shape == (tokens, HEADS, SIZE)


@pytest.mark.parametrize("kind", ["decode", "first chunk", "later chunk", "mixed"])
@pytest.mark.parametrize(
    "fields", [{}, {"window": 12}, {"sinks": True}, {"window": 12, "sinks": True}], ids=str
)
def test_every_call_on_a_gpu_is_one_that_a_fused_kernel_takes(
    kind: str, fields: dict[str, Any], calls: Calls
) -> None:
    if "sinks" in fields:
        fields = {**fields, "sinks": torch.empty(HEADS, dtype=torch.bfloat16, device=META)}
    attend(kind, **fields)
    assert calls.seen
    for seen in calls.seen:
        is_taken_by_a_kernel(**seen)


def test_masks_of_prompts_need_no_copy(calls: Calls) -> None:
    """The memory-efficient kernel copies a mask whose rows do not begin at multiples of 16 elements."""
    attend("later chunk")
    attend("later chunk", sinks=torch.empty(HEADS, dtype=torch.bfloat16, device=META), window=12)
    masks = [seen["attn_mask"] for seen in calls.seen]
    assert masks
    assert all(stride % 16 == 0 for mask in masks for stride in mask.stride()[:-1])


def test_a_long_prompt_is_attended_to_in_parts(calls: Calls) -> None:
    part = sdpa.MAX_MASK_ELEMENTS // 2**17
    assert part > sdpa.MAX_QUERIES_PER_CALL
    count = 2 * part + 3
    attend_to([make_chunk(2**17 - count, count, range(1, 2**13 + 1))], 2**13 + 1)
    assert [seen["query"].shape[2] for seen in calls.seen] == [part, part, 3]


@pytest.mark.parametrize("masked", [None, "for all heads", "for each head"])
@pytest.mark.parametrize("value_size", [8, 24])
def test_the_form_for_kernels_computes_the_same(masked: str | None, value_size: int) -> None:
    dice = torch.Generator().manual_seed(3)
    query = torch.randn(HEADS, 7, 16, generator=dice).transpose(0, 1)
    key = torch.randn(7, SHARED, 16, generator=dice)
    value = torch.randn(7, SHARED, value_size, generator=dice)
    mask = None
    if masked is not None:
        mask = torch.randn(1, HEADS if masked == "for each head" else 1, 7, 7, generator=dice)
    call = LayerCall(0, query, key, value, 0.3, None, None)
    for few in (call, replace(call, query=query[:, :SHARED])):
        own = None if mask is None else mask[:, : few.query.shape[1]]
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (few.query, key, value))
        expected = scaled_dot_product_attention(
            q, k, v, attn_mask=own, is_causal=own is None, scale=0.3, enable_gqa=True
        )[0].transpose(0, 1)
        torch.testing.assert_close(attend_prompt(few.query, key, value, own, few), expected)


def _cudnn_is_on() -> bool:
    return bool(torch.backends.cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]


@pytest.fixture
def _cudnn_as_before() -> Iterator[None]:
    before = _cudnn_is_on()
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.usefixtures("_cudnn_as_before")
def test_cudnn_attends_to_nothing_on_a_gpu() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    configure_sdpa(torch.device("cpu"))
    assert _cudnn_is_on()
    configure_sdpa(torch.device("cuda"))
    assert not _cudnn_is_on()
