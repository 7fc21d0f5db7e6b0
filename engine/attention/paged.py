"""Attention straight from the block tables: the seam that kernels for GPUs stand behind.

Engine thread. All requests of a step are described at once, by tensors whose shapes the host knows, so
the same calls can be recorded and replayed. `GatherSdpaBackend` is the reference: torch's own attention
over gathered blocks, on every device. Knows neither requests nor models.
"""

from dataclasses import dataclass
from math import inf
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.sdpa import LayerCall, attend_one_token
from engine.kv.kv_cache import KVCache
from engine.scheduling.block_pool import BLANK_BLOCK


@dataclass(frozen=True, slots=True)
class LayerAttentionSpec:
    """What a layer of the model asks of attention."""

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    window: int | None
    sinks: bool
    softcap: float | None


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where the requests of one packed row have their keys and values. All tensors are of 32 bits."""

    block_tables: Tensor
    """`[requests, blocks]`: padded with blocks that are finite."""
    seq_lens: Tensor
    """`[requests]`: their tokens, those of this step included, which are the last ones."""
    query_start_loc: Tensor
    """`[requests + 1]`: where in the packed row each request's tokens of this step begin, and the end."""
    max_query_len: int
    """Tokens of this step that one request has at most."""
    max_seq_len: int
    """Tokens that one request has at most, counted in whole blocks."""


class PagedAttentionBackend(Protocol):
    """Attends to keys and values where they lie. That of the step's own tokens are already there."""

    @property
    def name(self) -> str:
        """For the log and for whoever asks what the engine computes with."""

    def attend(self, call: LayerCall, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> Tensor:
        """`keys` and `values` are `[blocks, block size, heads, size]`; gives `[T, heads, value size]`."""


class PagedForward:
    """One forward pass whose attention goes by block tables; implements `attention.Step`."""

    def __init__(
        self, kv_cache: KVCache, slots: Tensor, metadata: AttentionMetadata, backend: PagedAttentionBackend
    ) -> None:
        """`slots` `[T]` says where each token's key goes."""
        self._kv_cache = kv_cache
        self._slots = slots
        self._metadata = metadata
        self._backend = backend

    def attend(self, call: LayerCall) -> Tensor:
        self._kv_cache.write(call.layer, self._slots, call.key, call.value)
        keys, values = self._kv_cache.blocks_of(call.layer)
        return self._backend.attend(call, keys, values, self._metadata)


class GatherSdpaBackend:
    """The reference, for rows of one token each. The columns of a window are gathered row by row."""

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
    """Only the blocks that a window can reach, and the position that each row then begins at."""
    span = -(-(window - 1) // size) + 1
    if span >= block_tables.shape[1]:
        return block_tables, torch.zeros_like(seq_lens)
    begin = (seq_lens - window).clamp(min=0) // size
    places = begin[:, None] + torch.arange(span, device=block_tables.device)
    # Behind the table there is nothing, and nothing that is seen: the row ends before.
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
