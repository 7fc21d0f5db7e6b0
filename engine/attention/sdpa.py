"""Attention over paged keys and values, in the place that transformers leaves for it.

Engine thread. All tokens of a step come as one packed row `[1, T]`: first one token each of the requests
that generate, then chunks of prompts. Ignorant of requests and of models: it sees slots, positions, and the
query, key and value of one layer at a time.

Written with `scaled_dot_product_attention`, so it runs on every device; it is the reference for any
faster kernel. A sink (gpt-oss) is one more column whose key and value are zero and whose mask is the
sink's logit, which is exact. Nothing here waits for the device: what shapes depend on, the host knows.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from engine.config import ModelRefused
from engine.kv.contiguous_cache import ContiguousBuffer
from engine.kv.kv_cache import KVCache, LayerShape

IMPLEMENTATION = "holdfast_paged"
"""The name under which transformers knows `paged_attention`. No mask function goes with it, so models
build no mask."""

MAX_QUERIES_PER_CALL = 128
"""Rows of a prompt that are attended to at once where a mask is made for every head, or where a window
makes it useless to look at all columns for every row."""

IGNORED_ARGUMENTS = frozenset(
    {"dropout", "position_ids", "use_cache", "output_attentions", "output_router_logits"}
)
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
    softcap: float | None = None
    """Scores are bent to stay within this."""


class AttentionStep(Protocol):
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
    step: AttentionStep | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: `[1, heads, T, size]` in, `[1, T, heads, size]` out.

    Raises `ModelRefused` for whatever it would have to ignore to go on.
    """
    name = type(module).__name__
    unknown = sorted(k for k, v in others.items() if v is not None and k not in IGNORED_ARGUMENTS)
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
    return step.attend(LayerCall(layer, q, k, v, scaling, sliding_window, s_aux, softcap))[None], None


AttentionInterface.register(IMPLEMENTATION, paged_attention)


@dataclass(slots=True)
class ProbeForward:
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
    """The rows `begin` .. `end` of the packed row: tokens of one request, after `past` earlier ones."""

    begin: int
    end: int
    past: int
    slots: Tensor
    """Where the keys of all `past + end - begin` tokens lie, and one blank slot more."""

    @property
    def total(self) -> int:
        return self.past + self.end - self.begin


@dataclass(frozen=True, slots=True)
class KeyValueRange:
    """Keys and values of several requests for one layer, as `[requests, heads, columns, size]`."""

    key: Tensor
    value: Tensor
    first: int
    """The position of the first column."""


@dataclass(frozen=True, slots=True)
class DecodeRows(ABC):
    """One token each of some requests: the rows `begin` .. `end` of the packed row."""

    begin: int
    end: int
    seq_lens: Tensor
    """`[requests]`: their tokens, the new one included."""
    min_seq_len: int
    max_seq_len: int

    @abstractmethod
    def read(self, call: LayerCall, first: int) -> KeyValueRange:
        """What they may see from the position `first` on, and with sinks a column of zeros for each."""

    @abstractmethod
    def sink_columns(self, columns: KeyValueRange) -> Tensor:
        """`[requests]`: which column it is that is zero."""


@dataclass(frozen=True, slots=True)
class ContiguousRows(DecodeRows):
    """Requests whose keys and values lie side by side; read in place."""

    buffer: ContiguousBuffer
    slots: Tensor
    """Where on the shelf, counted through all its rows, each new token goes."""

    def read(self, call: LayerCall, first: int) -> KeyValueRange:
        new, requests = slice(self.begin, self.end), self.end - self.begin
        last = self.max_seq_len + (call.sinks is not None)
        gathered = []
        for buffer, fresh in ((self.buffer.keys, call.key), (self.buffer.values, call.value)):
            rows = buffer[call.layer]
            rows.view(-1, *rows.shape[2:]).index_copy_(0, self.slots, fresh[new])
            gathered.append(rows[:requests, first:last].transpose(1, 2))
        return KeyValueRange(gathered[0], gathered[1], first)

    def sink_columns(self, columns: KeyValueRange) -> Tensor:
        return self.seq_lens - columns.first


@dataclass(frozen=True, slots=True)
class GatheredRows(DecodeRows):
    """Requests whose blocks are gathered for each layer: for every device, and needs no memory of its own."""

    kv_cache: KVCache
    tables: Tensor
    """`[requests, blocks]`: padded with the blank one, which is also the last of each row."""

    def read(self, call: LayerCall, first: int) -> KeyValueRange:
        first_block = first // self.kv_cache.block_size
        tables = self.tables[:, first_block:] if call.sinks is not None else self.tables[:, first_block:-1]
        gathered = []
        for stored in (self.kv_cache.keys[call.layer], self.kv_cache.values[call.layer]):
            blocks = stored.view(len(stored) // self.kv_cache.block_size, -1)
            rows = blocks.index_select(0, tables.reshape(-1))
            gathered.append(rows.view(len(tables), -1, *stored.shape[1:]).transpose(1, 2))
        return KeyValueRange(gathered[0], gathered[1], first_block * self.kv_cache.block_size)

    def sink_columns(self, columns: KeyValueRange) -> Tensor:
        return torch.full_like(self.seq_lens, columns.key.shape[2] - 1)


class SdpaForward:
    """One forward pass over the store. Masks are made once a step, not once a layer."""

    def __init__(
        self, kv_cache: KVCache, slots: Tensor, decodes: Sequence[DecodeRows], chunks: Sequence[PromptChunk]
    ) -> None:
        """`slots` `[T]` says where each token's key goes."""
        self._kv_cache = kv_cache
        self._slots = slots
        self._decodes = decodes
        self._chunks = chunks
        self._masks: dict[tuple[int, int | None, int], Tensor] = {}

    def attend(self, call: LayerCall) -> Tensor:
        self._kv_cache.write(call.layer, self._slots, call.key, call.value)
        parts = [self._decode(call, rows) for rows in self._decodes]
        parts += [self._prefill(call, chunk) for chunk in self._chunks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, call: LayerCall, rows: DecodeRows) -> Tensor:
        """All requests of `rows` in one call, over the columns that at least one of them sees."""
        window = call.window if _is_cut(call.window, rows.max_seq_len) else None
        first = 0 if window is None else max(rows.min_seq_len - window, 0)
        visible = rows.read(call, first)
        query = call.query[rows.begin : rows.end]
        width = visible.key.shape[2]
        if call.sinks is None and visible.first == first and rows.min_seq_len == first + width:
            return attend_one_token(query, visible.key, visible.value, None, call)
        mask = self._decode_mask(rows, window, visible.first, width, query.dtype)[:, None, None]
        if call.sinks is not None:
            mask = mask.repeat(1, len(call.sinks), 1, 1)
            places = rows.sink_columns(visible).view(-1, 1, 1, 1).expand((*mask.shape[:2], 1, 1))
            mask.scatter_(3, places, call.sinks.to(mask.dtype).view(1, -1, 1, 1).expand(places.shape))
        return attend_one_token(query, visible.key, visible.value, mask, call)

    def _prefill(self, call: LayerCall, chunk: PromptChunk) -> Tensor:
        rows = slice(chunk.begin, chunk.end)
        window = call.window if _is_cut(call.window, chunk.total) else None
        query = call.query[rows]
        if chunk.past == 0 and call.sinks is None and call.softcap is None and window is None:
            # A prompt from its start needs nothing from the store.
            return _attend_prompt(query, call.key[rows], call.value[rows], None, call)
        count = chunk.end - chunk.begin
        segment = count
        if window is not None or call.sinks is not None or call.softcap is not None:
            segment = max(MAX_QUERIES_PER_CALL, window or 0)
        parts = [
            self._prefill_segment(call, chunk, window, begin, min(begin + segment, count))
            for begin in range(0, count, segment)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _prefill_segment(
        self, call: LayerCall, chunk: PromptChunk, window: int | None, begin: int, end: int
    ) -> Tensor:
        """The rows `begin` .. `end` of the chunk, over the columns that at least one of them sees."""
        first = 0 if window is None else max(chunk.past + begin + 1 - window, 0)
        last = chunk.past + end
        slots = chunk.slots[first:last]
        mask = self._chunk_mask(chunk, window, begin, end, first, call.query.dtype)[None, None]
        if call.sinks is None:
            mask = mask[..., :-1]
        else:
            slots = torch.cat((slots, chunk.slots[-1:]))
            mask = _with_sinks(mask, call.sinks)
        key = self._kv_cache.keys[call.layer].index_select(0, slots)
        value = self._kv_cache.values[call.layer].index_select(0, slots)
        return _attend_prompt(call.query[chunk.begin + begin : chunk.begin + end], key, value, mask, call)

    def _decode_mask(
        self, rows: DecodeRows, window: int | None, first: int, width: int, dtype: torch.dtype
    ) -> Tensor:
        mask = self._masks.get((rows.begin, window, width))
        if mask is None:
            position = torch.arange(first, first + width, device=self._kv_cache.device)
            mask = _visibility(position, rows.seq_lens - 1, window, dtype)
            self._masks[rows.begin, window, width] = mask
        return mask

    def _chunk_mask(
        self, chunk: PromptChunk, window: int | None, begin: int, end: int, first: int, dtype: torch.dtype
    ) -> Tensor:
        """One column wider than the tokens are: for a sink."""
        mask = self._masks.get((chunk.begin + begin, window, end))
        if mask is None:
            position = torch.arange(first, chunk.past + end + 1, device=self._kv_cache.device)
            own = position[chunk.past + begin - first : -1]
            mask = _visibility(position, own, window, dtype)
            self._masks[chunk.begin + begin, window, end] = mask
        return mask


def _is_cut(window: int | None, tokens: int) -> bool:
    return window is not None and window < tokens


def _visibility(position: Tensor, own: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """`[own, position]`: zero where the token at `own` sees `position`, else minus infinity."""
    masked = position[None] > own[:, None]
    if window is not None:
        masked |= position[None] <= own[:, None] - window
    return torch.zeros(masked.shape, dtype=dtype, device=masked.device).masked_fill_(masked, -inf)


def _with_sinks(mask: Tensor, sinks: Tensor) -> Tensor:
    """The mask for every head, with the sink's logit in the last column, which is a blank one."""
    whole = mask.repeat(1, len(sinks), 1, 1)
    whole[..., -1] = sinks.to(mask.dtype)[:, None]
    return whole


def attend_one_token(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: LayerCall
) -> Tensor:
    """`[rows, heads, size]` over `[rows, kv_heads, columns, size]` twice -> `[rows, heads, size]`.

    The mask is `[requests, heads or 1, 1, columns]`.
    """
    requests, heads, size = query.shape
    shared = key.shape[1]
    if call.softcap is not None:
        return _attend_with_softcap(query[:, :, None], key, value, mask, call)[:, :, 0]
    if query.device.type == "cpu" and query.dtype != torch.float32:
        # One row for each head is a path of its own in torch for CPUs, and there the faster one.
        out = scaled_dot_product_attention(
            query[:, :, None], key, value, attn_mask=mask, scale=call.scale, enable_gqa=heads != shared
        )
        return out[:, :, 0]
    # The query heads that share a key head are folded into the place of query positions, so that no
    # key is copied or read twice for them.
    folded = query.reshape(requests, shared, heads // shared, size)
    if mask is not None and mask.shape[1] != 1:
        mask = mask.view(requests, shared, heads // shared, -1)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=call.scale)
    return out.reshape(requests, heads, value.shape[3])


def _attend_prompt(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: LayerCall) -> Tensor:
    """`[n, heads, size]`, `[m, kv_heads, size]` twice -> `[n, heads, size]`; causal without mask."""
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    if call.softcap is not None:
        return _attend_with_softcap(q, k, v, mask, call)[0].transpose(0, 1)
    out = scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=mask is None,
        scale=call.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out[0].transpose(0, 1)


def _attend_with_softcap(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: LayerCall
) -> Tensor:
    """`[requests, heads, n, size]`, written out: torch's attention cannot bend scores (Gemma 2)."""
    assert call.softcap is not None
    scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
    scores = (query @ key.transpose(2, 3)).mul_(scale / call.softcap).tanh_().mul_(call.softcap)
    if mask is not None:
        scores = scores + mask
    return scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype) @ value
