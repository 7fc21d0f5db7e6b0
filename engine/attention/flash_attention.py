"""Attention kernels that may be installed beside the engine: found, checked and called, or declined by name.

Load time, and the call itself on the engine thread. The kernel is `flash_attn_with_kvcache` of
FlashAttention 3, from whatever package brings it; packages differ in how they call its arguments, so the
signature is read.
Before a kernel is used it must give what the reference gives, for every kind of layer of the model.
Ignorant of requests, and of models beyond what their layers ask of attention.
"""

import importlib
import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.attention.paged import (
    AttentionMetadata,
    GatherSdpaBackend,
    LayerAttentionSpec,
    PagedAttentionBackend,
)
from engine.attention.sdpa import LayerCall

log = logging.getLogger(__name__)

LARGEST_HEAD = 256
TABLE_NAMES = ("page_table", "block_table")
SINK_NAMES = ("s_aux", "learnable_sink", "sinks")
NEEDED = frozenset(
    {"q", "k_cache", "v_cache", "cache_seqlens", "cu_seqlens_q", "max_seqlen_q", "softmax_scale", "causal",
     "window_size", "num_splits"}
)  # fmt: skip

Function = Callable[..., Tensor]


def _installed() -> Function:
    module = importlib.import_module("flash_attn_interface")
    return module.flash_attn_with_kvcache  # type: ignore[no-any-return]


def _from_hub(kernel: str) -> Function:
    name, _, revision = kernel.partition("@")
    module = importlib.import_module("kernels").get_kernel(name, revision=revision)
    return module.flash_attn_with_kvcache  # type: ignore[no-any-return]


def sources(hub_kernel: str | None = None) -> dict[str, Callable[[], Function]]:
    """In the order in which they are tried.

    A kernel of the hub is native code from elsewhere, which the package `kernels` fetches: it is taken only
    where the operator names it, and the very commit, whose content cannot change.
    """
    known: dict[str, Callable[[], Function]] = {"flash_attn_interface": _installed}
    if hub_kernel is not None:
        known[hub_kernel] = partial(_from_hub, hub_kernel)
    return known


class FlashAttentionBackend:
    """A `PagedAttentionBackend` of one call, whatever mix of prompts and single tokens the step is."""

    def __init__(self, name: str, function: Function, parameters: Collection[str]) -> None:
        """Raises `ValueError` if a parameter is not there that is needed for every model."""
        missing = sorted(NEEDED - set(parameters))
        self._table = next((known for known in TABLE_NAMES if known in parameters), None)
        if missing or self._table is None:
            raise ValueError(f"it does not take {', '.join(missing) or TABLE_NAMES[0]}")
        self.name = name
        self._function = function
        self._sinks = next((known for known in SINK_NAMES if known in parameters), None)
        self._caps = "softcap" in parameters

    def why_not(self, needs: LayerAttentionSpec, dtype: torch.dtype) -> str | None:
        """What of a layer's needs it cannot meet."""
        if dtype not in (torch.bfloat16, torch.float16):
            return f"it does not compute in {str(dtype).removeprefix('torch.')}"
        if needs.key_size != needs.value_size:
            return f"keys of {needs.key_size} and values of {needs.value_size} differ in size"
        if needs.key_size > LARGEST_HEAD or needs.key_size % 8:
            return f"heads of {needs.key_size} are not served"
        if needs.sinks and (self._sinks is None or dtype != torch.bfloat16):
            return "it does not know sinks" if self._sinks is None else "it knows sinks in bfloat16 only"
        if needs.softcap is not None and not self._caps:
            return "it cannot cap scores"
        return None

    def attend(self, call: LayerCall, keys: Tensor, values: Tensor, rows: AttentionMetadata) -> Tensor:
        assert self._table is not None
        more: dict[str, Any] = {self._table: rows.tables}
        if call.sinks is not None:
            assert self._sinks is not None
            more[self._sinks] = call.sinks.to(call.query.dtype)
        if call.softcap is not None:
            more["softcap"] = call.softcap
        return self._function(
            q=call.query,
            k_cache=keys,
            v_cache=values,
            cache_seqlens=rows.lengths,
            cu_seqlens_q=rows.starts,
            max_seqlen_q=rows.most,
            softmax_scale=call.scale,
            causal=True,
            # It counts the tokens before the own one.
            window_size=(-1, -1) if call.window is None else (call.window - 1, 0),
            # Splits that it chooses by itself depend on who else is in the batch, and so would the results;
            # in torch's build of this kernel they are wrong where keys are paged.
            num_splits=1,
            **more,
        )


def select_backend(
    needs: Collection[LayerAttentionSpec],
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    known: Mapping[str, Callable[[], Function]] | None = None,
) -> PagedAttentionBackend | None:
    """The first kernel that meets all needs and proves it; the log says what became of each that is there.

    `known` are those of `sources`, without one of the hub if nothing is said.
    """
    for name, load in (sources() if known is None else known).items():
        try:
            function = load()
            kernel = FlashAttentionBackend(name, function, inspect.signature(function).parameters)
        except ModuleNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - whatever a foreign package raises
            log.warning("the attention kernel %s is not used: %s", name, _one_line(error))
            continue
        why_not = _why_not(kernel, needs, dtype, device, block_size)
        if why_not is None:
            return kernel
        log.warning("the attention kernel %s is not used: %s", name, why_not)
    return None


def _why_not(
    kernel: FlashAttentionBackend,
    needs: Collection[LayerAttentionSpec],
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
) -> str | None:
    for need in sorted(needs, key=repr):
        why_not = kernel.why_not(need, dtype)
        if why_not is not None:
            return why_not
        try:
            difference = _differ(kernel, need, dtype, device, block_size)
        except torch.AcceleratorError:
            raise  # the device can do nothing more
        except Exception as error:  # noqa: BLE001 - whatever a foreign kernel raises
            return _one_line(error)
        # Written so that what is no number differs.
        if not difference <= 3e-2:
            return f"it differs from the reference by {difference:g} for {need}"
    return None


# The check


def _differ(
    kernel: PagedAttentionBackend,
    need: LayerAttentionSpec,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
) -> float:
    """How far the kernel is from the reference, at most, on numbers of about 1: decode, and a mixed step."""
    far = 5 * block_size if need.window is None else min(need.window, 1024) + 2 * block_size
    lengths = [1, block_size, 2 * block_size + 3, far + 5]
    worst = 0.0
    with torch.inference_mode():
        for wanted in ([1, 1, 1, 1], [1, 5, 2 * block_size + 3, 7]):
            counts = [min(count, length) for count, length in zip(wanted, lengths, strict=True)]
            call, keys, values, rows = _make_case(need, dtype, device, block_size, lengths, counts)
            expected = _refer(call, keys, values, rows, counts)
            found = kernel.attend(call, keys, values, rows)
            difference = (expected.float() - found.float()).abs().max().item()
            worst = max(worst, difference) if difference == difference else difference
    return worst


def _make_case(
    need: LayerAttentionSpec,
    dtype: torch.dtype,
    device: torch.device,
    size: int,
    lengths: Sequence[int],
    counts: Sequence[int],
) -> tuple[LayerCall, Tensor, Tensor, AttentionMetadata]:
    dice = torch.Generator().manual_seed(11)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=dice).to(device, dtype)

    held = [-(-length // size) for length in lengths]
    order = iter((torch.randperm(sum(held), generator=dice) + 1).tolist())
    tables = torch.zeros(len(lengths), max(held) + 1, dtype=torch.int32)
    for row, count in enumerate(held):
        tables[row, :count] = torch.tensor([next(order) for _ in range(count)])
    keys = draw(sum(held) + 1, size, need.kv_heads, need.key_size)
    values = draw(sum(held) + 1, size, need.kv_heads, need.value_size)
    keys[0], values[0] = 0, 0
    starts = torch.tensor([0, *counts]).cumsum(0)
    # As a model gives it: heads outside, and seen from the side.
    query = draw(need.heads, sum(counts), need.key_size).transpose(0, 1)
    sinks = draw(need.heads) if need.sinks else None
    call = LayerCall(0, query, query, query, None, need.window, sinks, need.softcap)
    rows = AttentionMetadata(
        tables.to(device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        starts.to(device, torch.int32),
        most=max(counts),
        longest=tables.shape[1] * size,
    )
    return call, keys, values, rows


def _refer(
    call: LayerCall, keys: Tensor, values: Tensor, rows: AttentionMetadata, counts: Sequence[int]
) -> Tensor:
    """By the reference, which knows rows of one token only: each token becomes the last of a row."""
    device = rows.tables.device
    owner = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(device)
    lengths = [
        length - count + place + 1
        for length, count in zip(rows.lengths.tolist(), counts, strict=True)
        for place in range(count)
    ]
    own = torch.tensor(lengths, dtype=torch.int32, device=device)
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32, device=device)
    alone = AttentionMetadata(rows.tables[owner], own, starts, most=1, longest=rows.longest)
    return GatherSdpaBackend().attend(call, keys, values, alone)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
