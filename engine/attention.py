"""Attention over paged keys and values, in the place that transformers leaves for it.

Engine thread. All tokens of a step come as one packed row `[1, T]`: first one token each of the jobs
that generate, then chunks of prompts. Ignorant of jobs and of models: it sees slots, positions, and the
query, key and value of one layer at a time.

Written with `scaled_dot_product_attention` alone, so it runs on every device; it is the reference for
any faster kernel. A sink (gpt-oss) is one more column whose key and value are zero and whose mask is
the sink's logit, which is exact; the blank block has such columns ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from engine.config import ModelRefused
from engine.kv import KvStore, LayerShape

IMPLEMENTATION = "holdfast_paged"
"""The name under which transformers knows `paged_attention`. No mask function goes with it, so models
build no mask."""

NEVER = float("-inf")

IGNORABLE = frozenset({"dropout", "position_ids", "use_cache", "output_attentions", "output_router_logits"})
"""Arguments that models pass and that change nothing here. All others are implemented or refused."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one layer asks of one step."""

    layer: int
    query: Tensor
    """`[T, heads, size]`."""
    key: Tensor
    """`[T, kv_heads, size]`, as is `value`; sizes of key and value may differ."""
    value: Tensor
    scale: float | None
    window: int | None
    """A token sees so many tokens, itself included; None is all before it."""
    sinks: Tensor | None
    """One logit for each query head."""


class Step(Protocol):
    """One forward pass as attention sees it; travels through the model as an argument."""

    def attend(self, call: LayerCall) -> Tensor:
        """Gives `[T, heads, value size]`."""


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: Step | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: `[1, heads, T, size]` in, `[1, T, heads, size]` out.

    Raises `ModelRefused` for whatever it would have to ignore to go on.
    """
    name = type(module).__name__
    unknown = sorted(k for k, v in others.items() if v is not None and k not in IGNORABLE)
    if unknown:
        raise ModelRefused(f"{name} uses attention arguments that are not implemented: {unknown}")
    if attention_mask is not None:
        raise ModelRefused(f"{name} brings an attention mask of its own")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise ModelRefused(f"{name} is not causal")
    if step is None:
        raise ModelRefused(f"{name} does not hand arguments on to its attention")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ModelRefused(f"{name} does not number its layers")
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return step.attend(LayerCall(layer, q, k, v, scaling, sliding_window, s_aux))[None], None


AttentionInterface.register(IMPLEMENTATION, paged_attention)


@dataclass(slots=True)
class ProbeStep:
    """A forward pass that only learns the shapes of all layers; its results mean nothing."""

    shapes: dict[int, LayerShape] = field(default_factory=dict)

    def attend(self, call: LayerCall) -> Tensor:
        if call.layer in self.shapes:
            raise ModelRefused(f"layer {call.layer} attends twice in one pass")
        _, heads, size = call.value.shape
        self.shapes[call.layer] = LayerShape(heads, call.key.shape[2], size)
        return call.value.repeat_interleave(call.query.shape[1] // heads, dim=1)


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """The rows `begin` .. `end` of the packed row: tokens of one job, after `past` earlier ones."""

    begin: int
    end: int
    past: int
    slots: Tensor
    """Where the keys of all `past + end - begin` tokens lie, and one blank slot more."""

    @property
    def total(self) -> int:
        return self.past + self.end - self.begin


class PagedStep:
    """One forward pass over the store. Masks are made once a step, not once a layer."""

    def __init__(
        self,
        store: KvStore,
        *,
        slots: Tensor,
        tables: Tensor,
        lengths: Tensor,
        chunks: Sequence[PromptChunk],
    ) -> None:
        """`slots` `[T]` says where each token's key goes.

        `tables` `[B, blocks]`: the blocks of the B jobs that generate, padded with the blank one,
        which is also the last of each row. `lengths` `[B]`: their tokens, the new one included.
        """
        self._store = store
        self._slots = slots
        self._tables = tables
        self._lengths = lengths
        self._chunks = chunks
        self._decode_masks: dict[int | None, Tensor] = {}
        self._chunk_masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(self, call: LayerCall) -> Tensor:
        self._store.keys[call.layer].index_copy_(0, self._slots, call.key)
        self._store.values[call.layer].index_copy_(0, self._slots, call.value)
        out = call.query.new_empty(*call.query.shape[:2], call.value.shape[2])
        generating = len(self._tables)
        if generating:
            out[:generating] = self._decode(call, call.query[:generating])
        for chunk in self._chunks:
            out[chunk.begin : chunk.end] = self._prefill(call, chunk)
        return out

    def _decode(self, call: LayerCall, query: Tensor) -> Tensor:
        """One token of each generating job, all jobs in one call.

        The query heads that share a key head are folded into the place of query positions, so no
        key is copied for them.
        """
        jobs, heads, size = query.shape
        key = self._gather(self._store.keys[call.layer], blank=call.sinks is not None)
        value = self._gather(self._store.values[call.layer], blank=call.sinks is not None)
        shared = key.shape[1]
        mask = self._decode_mask(call.window, query.dtype)[:, None, None]
        if call.sinks is None:
            mask = mask[..., : key.shape[2]]
        else:
            mask = _with_sinks(mask, call.sinks.view(1, shared, heads // shared, 1))
        folded = query.view(jobs, shared, heads // shared, size)
        out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=call.scale)
        return out.reshape(jobs, heads, value.shape[3])

    def _gather(self, tensor: Tensor, *, blank: bool) -> Tensor:
        """`[B, heads, tokens, size]` of all generating jobs, with the blank block or without."""
        tables = self._tables if blank else self._tables[:, :-1]
        _, heads, size = tensor.shape
        blocks = tensor.view(-1, self._store.block_size * heads * size)
        rows = blocks.index_select(0, tables.reshape(-1))
        return rows.view(len(tables), -1, heads, size).transpose(1, 2)

    def _prefill(self, call: LayerCall, chunk: PromptChunk) -> Tensor:
        rows = slice(chunk.begin, chunk.end)
        query = call.query[rows]
        if chunk.past == 0 and call.sinks is None and not _cuts(call.window, chunk.total):
            # A prompt from its start needs nothing from the store.
            return _over_heads(query, call.key[rows], call.value[rows], None, call.scale)
        slots, mask = chunk.slots, self._chunk_mask(chunk, call.window, query.dtype)[None, None]
        if call.sinks is None:
            slots, mask = slots[:-1], mask[..., :-1]
        else:
            mask = _with_sinks(mask, call.sinks.view(1, -1, 1, 1))
        key = self._store.keys[call.layer].index_select(0, slots)
        value = self._store.values[call.layer].index_select(0, slots)
        return _over_heads(query, key, value, mask, call.scale)

    def _decode_mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        mask = self._decode_masks.get(window)
        if mask is None:
            width = self._tables.shape[1] * self._store.block_size
            position = torch.arange(width, device=self._store.device)
            mask = _visibility(position, self._lengths - 1, window, dtype)
            self._decode_masks[window] = mask
        return mask

    def _chunk_mask(self, chunk: PromptChunk, window: int | None, dtype: torch.dtype) -> Tensor:
        """One column wider than the tokens are: for a sink."""
        mask = self._chunk_masks.get((chunk.begin, window))
        if mask is None:
            position = torch.arange(chunk.total + 1, device=self._store.device)
            mask = _visibility(position, position[chunk.past : -1], window, dtype)
            self._chunk_masks[chunk.begin, window] = mask
        return mask


def _cuts(window: int | None, tokens: int) -> bool:
    return window is not None and window < tokens


def _visibility(position: Tensor, own: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """`[own, position]`: zero where the token at `own` sees `position`, else minus infinity."""
    hidden = position[None] > own[:, None]
    if window is not None:
        hidden |= position[None] <= own[:, None] - window
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, NEVER)


def _with_sinks(mask: Tensor, sinks: Tensor) -> Tensor:
    """The mask for every head, with the sink's logit in the last column, which is a blank one."""
    whole = (mask + torch.zeros_like(sinks, dtype=mask.dtype)).contiguous()
    whole[..., -1:] = sinks.to(mask.dtype)
    return whole


def _over_heads(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor:
    """`[n, heads, size]`, `[m, kv_heads, size]` twice -> `[n, heads, size]`; causal without mask."""
    out = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out[0].transpose(0, 1)
