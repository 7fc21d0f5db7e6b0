"""`FlashAttentionBackend`: FlashAttention 3 over paged keys and values.

Selected and checked at load time (`selection`), called on the engine thread. The kernel is
`flash_attn_with_kvcache`, from an installed package or the Hub; packages name its parameters differently, so
the signature is inspected.
"""

import importlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.attention.paged_attention import AttentionMetadata, LayerAttentionSpec, LayerCall

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
