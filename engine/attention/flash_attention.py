"""`FlashAttentionBackend`: FlashAttention 3 over paged keys and values, selected and verified at load time.

Selection runs at load time, calls on the engine thread. The kernel is `flash_attn_with_kvcache`, from an
installed package or the Hub; packages name its parameters differently, so the signature is inspected. A
kernel is used only if it matches the reference backend for every kind of attention layer of the model.
"""

import importlib
import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.attention.interface import AttentionMetadata, LayerAttentionSpec, LayerCall, PagedAttentionBackend
from engine.attention.sdpa import GatherSdpaBackend
from engine.request import describe

log = logging.getLogger(__name__)

MAX_HEAD_SIZE = 256
TABLE_NAMES = ("page_table", "block_table")
SINK_NAMES = ("s_aux", "learnable_sink", "sinks")
REQUIRED_PARAMETERS = frozenset(
    {"q", "k_cache", "v_cache", "cache_seqlens", "cu_seqlens_q", "max_seqlen_q", "softmax_scale", "causal",
     "window_size", "num_splits"}
)  # fmt: skip

Function = Callable[..., Tensor]


def _load_installed() -> Function:
    module = importlib.import_module("flash_attn_interface")
    return module.flash_attn_with_kvcache  # type: ignore[no-any-return]


def _load_from_hub(backend: str) -> Function:
    name, _, revision = backend.partition("@")
    module = importlib.import_module("kernels").get_kernel(name, revision=revision)
    return module.flash_attn_with_kvcache  # type: ignore[no-any-return]


def kernel_sources(hub_kernel: str | None = None) -> dict[str, Callable[[], Function]]:
    """Loaders of the kernel by name, in the order of preference.

    A Hub kernel is native code that the package `kernels` downloads, so it is used only if the operator names
    it with a commit, whose content cannot change.
    """
    sources: dict[str, Callable[[], Function]] = {"flash_attn_interface": _load_installed}
    if hub_kernel is not None:
        sources[hub_kernel] = partial(_load_from_hub, hub_kernel)
    return sources


class FlashAttentionBackend:
    """A `PagedAttentionBackend` with one kernel call for any mix of prefill and decode."""

    def __init__(self, name: str, function: Function, parameters: Collection[str]) -> None:
        """Raises `ValueError` if the kernel lacks a parameter that every model needs."""
        missing = sorted(REQUIRED_PARAMETERS - set(parameters))
        self._table_parameter = next((sources for sources in TABLE_NAMES if sources in parameters), None)
        if missing or self._table_parameter is None:
            raise ValueError(f"it does not take {', '.join(missing) or TABLE_NAMES[0]}")
        self.name = name
        self._function = function
        self._sinks_parameter = next((sources for sources in SINK_NAMES if sources in parameters), None)
        self._has_softcap = "softcap" in parameters

    def unsupported_reason(self, specs: LayerAttentionSpec, dtype: torch.dtype) -> str | None:
        """Why the kernel cannot compute this layer; None if it can."""
        if dtype not in (torch.bfloat16, torch.float16):
            return f"it does not compute in {str(dtype).removeprefix('torch.')}"
        if specs.key_size != specs.value_size:
            return f"keys of {specs.key_size} and values of {specs.value_size} differ in size"
        if specs.key_size > MAX_HEAD_SIZE or specs.key_size % 8:
            return f"heads of {specs.key_size} are not served"
        if specs.sinks and (self._sinks_parameter is None or dtype != torch.bfloat16):
            return (
                "it does not know sinks"
                if self._sinks_parameter is None
                else "it knows sinks in bfloat16 only"
            )
        if specs.softcap is not None and not self._has_softcap:
            return "it cannot cap scores"
        return None

    def attend(self, call: LayerCall, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> Tensor:
        assert self._table_parameter is not None
        optional: dict[str, Any] = {self._table_parameter: metadata.block_tables}
        if call.sinks is not None:
            assert self._sinks_parameter is not None
            optional[self._sinks_parameter] = call.sinks.to(call.query.dtype)
        if call.softcap is not None:
            optional["softcap"] = call.softcap
        return self._function(
            q=call.query,
            k_cache=keys,
            v_cache=values,
            cache_seqlens=metadata.seq_lens,
            cu_seqlens_q=metadata.query_start_loc,
            max_seqlen_q=metadata.max_query_len,
            softmax_scale=call.scale,
            causal=True,
            # The kernel's left window does not count the token itself.
            window_size=(-1, -1) if call.window is None else (call.window - 1, 0),
            # Automatic splits depend on the rest of the batch, and so would results; in torch's build of this
            # kernel they are wrong with paged keys.
            num_splits=1,
            **optional,
        )


def select_backend(
    specs: Collection[LayerAttentionSpec],
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    sources: Mapping[str, Callable[[], Function]] | None = None,
) -> PagedAttentionBackend | None:
    """The first kernel that supports and passes the check for all specs; None if there is none.

    Logs why a kernel is rejected. `sources` defaults to `kernel_sources()`.
    """
    for name, load in (kernel_sources() if sources is None else sources).items():
        try:
            function = load()
            backend = FlashAttentionBackend(name, function, inspect.signature(function).parameters)
        except ModuleNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - whatever a foreign package raises
            log.warning("the attention kernel %s is not used: %s", name, describe(error))
            continue
        unsupported_reason = _rejection_reason(backend, specs, dtype, device, block_size)
        if unsupported_reason is None:
            return backend
        log.warning("the attention kernel %s is not used: %s", name, unsupported_reason)
    return None


def _rejection_reason(
    backend: FlashAttentionBackend,
    specs: Collection[LayerAttentionSpec],
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
) -> str | None:
    for spec in sorted(specs, key=repr):
        unsupported_reason = backend.unsupported_reason(spec, dtype)
        if unsupported_reason is not None:
            return unsupported_reason
        try:
            difference = _max_difference(backend, spec, dtype, device, block_size)
        except torch.AcceleratorError:
            raise  # the device can do nothing more
        except Exception as error:  # noqa: BLE001 - whatever a foreign kernel raises
            return describe(error)
        # `not <=` instead of `>` is True for NaN, too.
        if not difference <= 3e-2:
            return f"it differs from the reference by {difference:g} for {spec}"
    return None


# The check


def _max_difference(
    backend: PagedAttentionBackend,
    spec: LayerAttentionSpec,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
) -> float:
    """Largest absolute difference from the reference on N(0, 1) inputs, for a decode and a mixed step."""
    far = 5 * block_size if spec.window is None else min(spec.window, 1024) + 2 * block_size
    seq_lens = [1, block_size, 2 * block_size + 3, far + 5]
    worst = 0.0
    with torch.inference_mode():
        for wanted in ([1, 1, 1, 1], [1, 5, 2 * block_size + 3, 7]):
            query_lens = [min(count, length) for count, length in zip(wanted, seq_lens, strict=True)]
            call, keys, values, metadata = _make_case(spec, dtype, device, block_size, seq_lens, query_lens)
            expected = _reference_output(call, keys, values, metadata, query_lens)
            output = backend.attend(call, keys, values, metadata)
            difference = (expected.float() - output.float()).abs().max().item()
            worst = max(worst, difference) if difference == difference else difference
    return worst


def _make_case(
    spec: LayerAttentionSpec,
    dtype: torch.dtype,
    device: torch.device,
    size: int,
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
) -> tuple[LayerCall, Tensor, Tensor, AttentionMetadata]:
    dice = torch.Generator().manual_seed(11)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=dice).to(device, dtype)

    num_blocks = [-(-length // size) for length in seq_lens]
    order = iter((torch.randperm(sum(num_blocks), generator=dice) + 1).tolist())
    block_tables = torch.zeros(len(seq_lens), max(num_blocks) + 1, dtype=torch.int32)
    for row, count in enumerate(num_blocks):
        block_tables[row, :count] = torch.tensor([next(order) for _ in range(count)])
    keys = draw(sum(num_blocks) + 1, size, spec.num_kv_heads, spec.key_size)
    values = draw(sum(num_blocks) + 1, size, spec.num_kv_heads, spec.value_size)
    keys[0], values[0] = 0, 0
    query_start_loc = torch.tensor([0, *query_lens]).cumsum(0)
    # Strided like a model's query: `[heads, T, size]` transposed.
    query = draw(spec.num_heads, sum(query_lens), spec.key_size).transpose(0, 1)
    sinks = draw(spec.num_heads) if spec.sinks else None
    call = LayerCall(0, query, query, query, None, spec.window, sinks, spec.softcap)
    metadata = AttentionMetadata(
        block_tables.to(device),
        torch.tensor(seq_lens, dtype=torch.int32, device=device),
        query_start_loc.to(device, torch.int32),
        max_query_len=max(query_lens),
        max_seq_len=block_tables.shape[1] * size,
    )
    return call, keys, values, metadata


def _reference_output(
    call: LayerCall, keys: Tensor, values: Tensor, metadata: AttentionMetadata, query_lens: Sequence[int]
) -> Tensor:
    """The reference backend's output. It supports one token a row only, so each token becomes a row."""
    device = metadata.block_tables.device
    owner = torch.arange(len(query_lens)).repeat_interleave(torch.tensor(query_lens)).to(device)
    seq_lens = [
        length - count + place + 1
        for length, count in zip(metadata.seq_lens.tolist(), query_lens, strict=True)
        for place in range(count)
    ]
    own = torch.tensor(seq_lens, dtype=torch.int32, device=device)
    query_start_loc = torch.arange(len(seq_lens) + 1, dtype=torch.int32, device=device)
    alone = AttentionMetadata(
        metadata.block_tables[owner], own, query_start_loc, max_query_len=1, max_seq_len=metadata.max_seq_len
    )
    return GatherSdpaBackend().attend(call, keys, values, alone)
