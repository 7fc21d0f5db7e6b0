"""`VarlenAttentionBackend`: torch's own FlashAttention 2 over paged keys and values, for GPUs.

It comes with torch, so nothing needs to be installed. Its pages are multiples of 256 tokens. Selected and
checked at load time (`selection`), called on the engine thread.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from engine.attention.paged_attention import AttentionMetadata, LayerAttentionSpec, LayerCall

PAGE_SIZE = 256
"""The kernel refuses block sizes that are not a multiple of this."""
MIN_CAPABILITY = (8, 0)
MAX_HEAD_SIZE = 256
DECODE_SPLITS = 8
"""Parts in which the keys of a request are read side by side where it has one new token. A few requests with
long contexts would leave most of a GPU idle otherwise. Not measured on a GPU yet."""

logging.getLogger("torch.nn.attention.varlen").setLevel(logging.WARNING)  # else it logs a line for every call

Function = Callable[..., Any]


class VarlenAttentionBackend:
    """A `PagedAttentionBackend` with one kernel call for any mix of prefill and decode."""

    name = "varlen"

    def __init__(
        self, capability: tuple[int, int], function: Function = varlen_attn, *, splits: int = DECODE_SPLITS
    ) -> None:
        """`capability` is the GPU's compute capability; with one of `splits`, keys are read in one pass."""
        self._capability = capability
        self._function = function
        self._splits = splits

    def unsupported_reason(self, spec: LayerAttentionSpec, dtype: torch.dtype) -> str | None:
        """Why the kernel cannot compute this layer; None if it can."""
        if self._capability < MIN_CAPABILITY:
            return "it needs compute capability 8.0, and this GPU has {}.{}".format(*self._capability)
        if dtype not in (torch.bfloat16, torch.float16):
            return f"it does not compute in {str(dtype).removeprefix('torch.')}"
        if spec.key_size != spec.value_size:
            return f"keys of {spec.key_size} and values of {spec.value_size} differ in size"
        if spec.key_size > MAX_HEAD_SIZE or spec.key_size % 8:
            return f"heads of {spec.key_size} are not served"
        if spec.softcap is not None:
            return "it cannot cap scores"
        return None

    def attend(self, call: LayerCall, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> Tensor:
        shares_heads = call.query.shape[1] != keys.shape[2]
        # One token a request: nothing comes after it, and a causal window would keep the kernel from reading
        # the keys once for all heads that share them.
        folds = shares_heads and call.window is None and metadata.max_query_len == 1 and self._splits > 1
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
            window_size=(-1, -1) if folds else window,
            enable_gqa=shares_heads,
            seqused_k=metadata.seq_lens,
            block_table=metadata.block_tables,
            # Automatic splits depend on the rest of the batch, and so would results; with pages they are
            # wrong in torch 2.13. A constant number divides each request's own keys.
            num_splits=self._splits if folds else 1,
        )
        if call.sinks is None:
            output: Tensor = result
            return output
        # A sink is one more score with no value: it only takes its part of the weights.
        output, logsumexp = result
        part = torch.sigmoid(logsumexp.T - call.sinks.float())[:, :, None]
        return (output.float() * part).to(output.dtype)
