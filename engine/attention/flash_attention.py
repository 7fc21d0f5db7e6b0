"""Kernels of paged attention for GPUs: FlashAttention 3 and, of torch itself, FlashAttention 2.

Selected and checked at load time (`selection`), called on the engine thread. FlashAttention 3 is
`flash_attn_with_kvcache`, from an installed package or the Hub; packages name its parameters differently.
"""

import importlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from engine.attention.paged_attention import AttentionMetadata, LayerAttentionSpec, LayerCall

MAX_HEAD_SIZE = 256
TABLE_NAMES = ("page_table", "block_table")
SINK_NAMES = ("s_aux", "learnable_sink", "sinks")
REQUIRED_PARAMETERS = frozenset(
    {"q", "k_cache", "v_cache", "cache_seqlens", "cu_seqlens_q", "max_seqlen_q", "softmax_scale", "causal",
     "window_size", "num_splits"}
)  # fmt: skip

PAGE_SIZE = 256
"""Torch's kernel refuses block sizes that are not a multiple of this."""
MIN_CAPABILITY = (8, 0)
DECODE_SPLITS = 16
"""Parts of the longest context, which are read side by side for requests with one new token each. A few
requests with long contexts would leave most of a GPU idle otherwise; one that is shorter than a part, 8,192
tokens where the context is 131,072, is read in one. Not measured on a GPU yet."""

logging.getLogger("torch.nn.attention.varlen").setLevel(logging.WARNING)  # else it logs a line for every call

Function = Callable[..., Any]


def unsupported_shape(spec: LayerAttentionSpec, dtype: torch.dtype) -> str | None:
    """Why neither kernel can compute this layer; None if its shape and dtype are those of both."""
    if dtype not in (torch.bfloat16, torch.float16):
        return f"it does not compute in {str(dtype).removeprefix('torch.')}"
    if spec.key_size != spec.value_size:
        return f"keys of {spec.key_size} and values of {spec.value_size} differ in size"
    if spec.key_size > MAX_HEAD_SIZE or spec.key_size % 8:
        return f"heads of {spec.key_size} are not served"
    return None


def kernel_sources(hub_kernel: str | None = None) -> "dict[str, Callable[[], FlashAttentionBackend]]":
    """Loaders of the kernel by name, in the order of preference.

    A Hub kernel is native code that the package `kernels` downloads, so it is used only if the operator names
    it with a commit, whose content cannot change.
    """
    return {name: partial(_load, name) for name in ("flash_attn_interface", hub_kernel) if name is not None}


def _load(name: str) -> "FlashAttentionBackend":
    package, _, revision = name.partition("@")
    if revision:
        module = importlib.import_module("kernels").get_kernel(package, revision=revision)
    else:
        module = importlib.import_module(package)
    return FlashAttentionBackend(name, module.flash_attn_with_kvcache)


class FlashAttentionBackend:
    """FlashAttention 3. One call computes any mix of prefill and decode, as in torch's kernel."""

    def __init__(self, name: str, function: Function) -> None:
        """Raises `ValueError` if the kernel has no signature, or lacks a parameter that every model needs."""
        parameters = inspect.signature(function).parameters
        missing = sorted(REQUIRED_PARAMETERS - set(parameters))
        self._table_parameter = next((other for other in TABLE_NAMES if other in parameters), None)
        if missing or self._table_parameter is None:
            raise ValueError(f"it does not take {', '.join(missing) or TABLE_NAMES[0]}")
        self.name = name
        self._function = function
        self._sinks_parameter = next((other for other in SINK_NAMES if other in parameters), None)
        self._has_softcap = "softcap" in parameters

    def unsupported_reason(self, spec: LayerAttentionSpec, dtype: torch.dtype) -> str | None:
        if (reason := unsupported_shape(spec, dtype)) is not None:
            return reason
        if spec.sinks and (self._sinks_parameter is None or dtype != torch.bfloat16):
            return "it knows sinks in bfloat16 only" if self._sinks_parameter else "it does not know sinks"
        if spec.softcap is not None and not self._has_softcap:
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
        output: Tensor = self._function(
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
            # Of more the kernel takes as many as the rest of the batch leaves, on which results would depend.
            num_splits=1,
            **optional,
        )
        return output


class VarlenAttentionBackend:
    """FlashAttention 2, which comes with torch, so that nothing needs to be installed."""

    name = "varlen"

    def __init__(
        self, capability: tuple[int, int], function: Function = varlen_attn, *, splits: int = DECODE_SPLITS
    ) -> None:
        """`capability` is the GPU's compute capability.

        With 0 `splits`, heads that share keys are not computed together, either.
        """
        self._capability = capability
        self._function = function
        self.splits = splits

    def unsupported_reason(self, spec: LayerAttentionSpec, dtype: torch.dtype) -> str | None:
        if self._capability < MIN_CAPABILITY:
            return "it needs compute capability 8.0, and this GPU has {}.{}".format(*self._capability)
        if spec.softcap is not None:
            return "it cannot cap scores"
        return unsupported_shape(spec, dtype)

    def attend(self, call: LayerCall, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> Tensor:
        single, requests = metadata.num_single, len(metadata.seq_lens)
        shares_heads = call.query.shape[1] != keys.shape[2]
        # One token a request: nothing comes after it, and a causal window would keep the kernel from reading
        # the keys once for all heads that share them.
        if not (single and shares_heads and call.window is None and self.splits):
            return self._attend(call, keys, values, metadata)
        first = replace(call, query=call.query[:single])
        folded = self._attend(first, keys, values, metadata.part(0, single, 1), self.splits)
        if single == requests:
            return folded
        rest = metadata.part(single, requests, metadata.max_query_len)
        output = self._attend(call, keys, values, rest)  # in the first rows, whatever was in memory
        output[:single] = folded
        return output

    def _attend(
        self,
        call: LayerCall,
        keys: Tensor,
        values: Tensor,
        metadata: AttentionMetadata,
        splits: int = 0,
    ) -> Tensor:
        window = (-1, 0) if call.window is None else (call.window - 1, 0)
        result: Any = self._function(
            call.query,
            keys,
            values,
            metadata.query_start_loc,
            metadata.kv_start_loc,
            metadata.max_query_len,
            metadata.max_seq_len,
            return_aux=AuxRequest(lse=True) if call.sinks is not None else None,
            scale=call.scale,
            # The kernel's left window does not count the token itself; (-1, 0) is causal.
            window_size=(-1, -1) if splits else window,
            enable_gqa=call.query.shape[1] != keys.shape[2],
            seqused_k=metadata.seq_lens,
            block_table=metadata.block_tables,
            # Automatic splits depend on the rest of the batch, and so would results; with pages they are
            # wrong in torch 2.13. A constant number divides `max_seq_len`, which is the same in every step.
            num_splits=splits or 1,
        )
        if call.sinks is None:
            output: Tensor = result
            return output
        # A sink is one more score with no value: it only takes its part of the weights.
        output, logsumexp = result
        part = torch.sigmoid(logsumexp.T - call.sinks.float())[:, :, None]
        return (output.float() * part).to(output.dtype)
