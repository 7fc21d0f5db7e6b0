"""Attention straight from the block tables: the seam that kernels for GPUs stand behind.

Engine thread. All requests of a step are described at once, by tensors whose shapes the host knows, so
the same calls can be recorded and replayed. `GatherSdpaBackend` is the reference: torch's own attention
over gathered blocks, on every device. Knows neither requests nor models.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.sdpa import NEVER, LayerCall, one_token_each
from engine.kv.kv_cache import KVCache
from engine.scheduling.block_pool import BLANK_BLOCK


@dataclass(frozen=True, slots=True)
class LayerAttentionSpec:
    """What a layer of the model asks of attention."""

    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    window: int | None
    sinks: bool
    softcap: float | None


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where the requests of one packed row have their keys and values. All tensors are of 32 bits."""

    tables: Tensor
    """`[requests, blocks]`: padded with blocks that are finite."""
    lengths: Tensor
    """`[requests]`: their tokens, those of this step included, which are the last ones."""
    starts: Tensor
    """`[requests + 1]`: where in the packed row each request's tokens of this step begin, and the end."""
    most: int
    """Tokens of this step that one request has at most."""
    longest: int
    """Tokens that one request has at most, counted in whole blocks."""


class PagedAttentionBackend(Protocol):
    """Attends to keys and values where they lie. That of the step's own tokens are already there."""

    @property
    def name(self) -> str:
        """For the log and for whoever asks what the engine computes with."""

    def attend(self, call: LayerCall, keys: Tensor, values: Tensor, rows: AttentionMetadata) -> Tensor:
        """`keys` and `values` are `[blocks, block size, heads, size]`; gives `[T, heads, value size]`."""


class PagedForward:
    """One forward pass whose attention goes by block tables; implements `attention.Step`."""

    def __init__(
        self, store: KVCache, slots: Tensor, rows: AttentionMetadata, attention: PagedAttentionBackend
    ) -> None:
        """`slots` `[T]` says where each token's key goes."""
        self._store = store
        self._slots = slots
        self._rows = rows
        self._attention = attention

    def attend(self, call: LayerCall) -> Tensor:
        self._store.write(call.layer, self._slots, call.key, call.value)
        keys, values = self._store.blocks_of(call.layer)
        return self._attention.attend(call, keys, values, self._rows)


class GatherSdpaBackend:
    """The reference, for rows of one token each. The columns of a window are gathered row by row."""

    name = "sdpa"

    def attend(self, call: LayerCall, keys: Tensor, values: Tensor, rows: AttentionMetadata) -> Tensor:
        if rows.most != 1:
            raise ValueError("rows of several tokens are not what the reference is for")
        size = keys.shape[1]
        window = call.window if call.window is not None and call.window < rows.longest else None
        tables, first = rows.tables, torch.zeros_like(rows.lengths)
        if window is not None:
            tables, first = _cut_to_window(tables, rows.lengths, window, size)
        position = first[:, None] + torch.arange(tables.shape[1] * size, device=tables.device)
        hidden = position >= rows.lengths[:, None]
        if window is not None:
            hidden |= position < rows.lengths[:, None] - window
        mask = torch.zeros(hidden.shape, dtype=call.query.dtype, device=tables.device)
        mask = mask.masked_fill_(hidden, NEVER)[:, None, None]
        if call.sinks is not None:
            tables, mask = _with_sinks(tables, mask, call.sinks, size)
        found = [_gather(stored, tables) for stored in (keys, values)]
        return one_token_each(call.query, found[0], found[1], mask, call)


def _cut_to_window(tables: Tensor, lengths: Tensor, window: int, size: int) -> tuple[Tensor, Tensor]:
    """Only the blocks that a window can reach, and the position that each row then begins at."""
    span = -(-(window - 1) // size) + 1
    if span >= tables.shape[1]:
        return tables, torch.zeros_like(lengths)
    begin = (lengths - window).clamp(min=0) // size
    places = begin[:, None] + torch.arange(span, device=tables.device)
    # Behind the table there is nothing, and nothing that is seen: the row ends before.
    return tables.gather(1, places.clamp(max=tables.shape[1] - 1).long()), begin * size


def _with_sinks(tables: Tensor, mask: Tensor, sinks: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The blank block, whose keys and values are zero, behind all others: its first column is the sink."""
    blank = torch.full_like(tables[:, :1], BLANK_BLOCK)
    mask = mask.expand(-1, len(sinks), -1, -1)
    last = torch.full((*mask.shape[:3], size), NEVER, dtype=mask.dtype, device=mask.device)
    last[..., 0] = sinks.to(mask.dtype)[:, None]
    return torch.cat((tables, blank), dim=1), torch.cat((mask, last), dim=3)


def _gather(stored: Tensor, tables: Tensor) -> Tensor:
    """`[requests, heads, columns, size]`."""
    found = stored.flatten(1).index_select(0, tables.reshape(-1))
    return found.view(len(tables), -1, *stored.shape[2:]).transpose(1, 2)
