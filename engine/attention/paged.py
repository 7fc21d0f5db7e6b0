"""`PagedAttentionBackend`: the interface of attention over block tables, and its reference backend.

Engine thread. `AttentionMetadata` describes all requests of a step by tensors whose shapes the host knows, so
that calls can be captured as CUDA graphs. The reference is torch's own attention over gathered blocks, on any
device.
"""

from dataclasses import dataclass
from math import inf
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.interface import LayerCall
from engine.attention.sdpa import attend_one_token
from engine.kv.kv_cache import KVCache
from engine.scheduling.block_pool import BLANK_BLOCK


@dataclass(frozen=True, slots=True)
class LayerAttentionSpec:
    """The properties of an attention layer that a backend must support."""

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    window: int | None
    sinks: bool
    softcap: float | None


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Block tables and lengths of the requests of one packed row. All tensors are int32."""

    block_tables: Tensor
    """`[requests, blocks]`, padded with blocks whose content is finite."""
    seq_lens: Tensor
    """`[requests]`: tokens of each request, those of this step (its last ones) included."""
    query_start_loc: Tensor
    """`[requests + 1]`: start of each request's tokens in the packed row, and the row's end."""
    max_query_len: int
    """Maximum of a request's tokens in this step."""
    max_seq_len: int
    """Maximum of `seq_lens`, rounded up to whole blocks."""


class PagedAttentionBackend(Protocol):
    """Attention over keys and values in their blocks, to which the step's own have been written."""

    @property
    def name(self) -> str:
        """For the log and `ModelInfo.attention`."""

    def attend(self, call: LayerCall, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> Tensor:
        """`keys` and `values` are `[blocks, block size, heads, size]`; returns `[T, heads, value size]`."""


class PagedForward:
    """One forward pass over block tables; implements `sdpa.AttentionStep`."""

    def __init__(
        self, kv_cache: KVCache, slots: Tensor, metadata: AttentionMetadata, backend: PagedAttentionBackend
    ) -> None:
        """`slots` `[T]`: the slot of each token's key and value."""
        self._kv_cache = kv_cache
        self._slots = slots
        self._metadata = metadata
        self._backend = backend

    def attend(self, call: LayerCall) -> Tensor:
        self._kv_cache.write(call.layer, self._slots, call.key, call.value)
        keys, values = self._kv_cache.blocks_of(call.layer)
        return self._backend.attend(call, keys, values, self._metadata)


class GatherSdpaBackend:
    """The reference, for one token a row. With a sliding window, only its blocks are gathered."""

    name = "sdpa"

    def attend(self, call: LayerCall, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> Tensor:
        if metadata.max_query_len != 1:
            raise ValueError("rows of several tokens are not what the reference is for")
        size = keys.shape[1]
        window = call.window if call.window is not None and call.window < metadata.max_seq_len else None
        block_tables, first = metadata.block_tables, torch.zeros_like(metadata.seq_lens)
        if window is not None:
            block_tables, first = _cut_to_window(block_tables, metadata.seq_lens, window, size)
        position = first[:, None] + torch.arange(block_tables.shape[1] * size, device=block_tables.device)
        masked = position >= metadata.seq_lens[:, None]
        if window is not None:
            masked |= position < metadata.seq_lens[:, None] - window
        mask = torch.zeros(masked.shape, dtype=call.query.dtype, device=block_tables.device)
        mask = mask.masked_fill_(masked, -inf)[:, None, None]
        if call.sinks is not None:
            block_tables, mask = _with_sinks(block_tables, mask, call.sinks, size)
        gathered = [_gather(stored, block_tables) for stored in (keys, values)]
        return attend_one_token(call.query, gathered[0], gathered[1], mask, call)


def _cut_to_window(block_tables: Tensor, seq_lens: Tensor, window: int, size: int) -> tuple[Tensor, Tensor]:
    """The part of the tables that a window can reach, and the position of its first token in each row."""
    span = -(-(window - 1) // size) + 1
    if span >= block_tables.shape[1]:
        return block_tables, torch.zeros_like(seq_lens)
    begin = (seq_lens - window).clamp(min=0) // size
    places = begin[:, None] + torch.arange(span, device=block_tables.device)
    # Indexes past the table are clamped; their positions are past the row's end and masked.
    return block_tables.gather(1, places.clamp(max=block_tables.shape[1] - 1).long()), begin * size


def _with_sinks(block_tables: Tensor, mask: Tensor, sinks: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The blank block, whose keys and values are zero, behind all others: its first column is the sink."""
    blank = torch.full_like(block_tables[:, :1], BLANK_BLOCK)
    mask = mask.expand(-1, len(sinks), -1, -1)
    last = torch.full((*mask.shape[:3], size), -inf, dtype=mask.dtype, device=mask.device)
    last[..., 0] = sinks.to(mask.dtype)[:, None]
    return torch.cat((block_tables, blank), dim=1), torch.cat((mask, last), dim=3)


def _gather(stored: Tensor, block_tables: Tensor) -> Tensor:
    """`[requests, heads, columns, size]`."""
    gathered = stored.flatten(1).index_select(0, block_tables.reshape(-1))
    return gathered.view(len(block_tables), -1, *stored.shape[2:]).transpose(1, 2)
