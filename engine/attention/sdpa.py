"""Paged attention with torch's `scaled_dot_product_attention`, over contiguous copies or gathered blocks.

All tokens of a step form one packed row: first one token each of decoding requests, then prefill chunks. All
shapes are known to the host, so that nothing waits for the device.

On a CPU a token's output has the same bits however the step is composed (`attend_in_key_blocks`): torch's
kernel reduces over blocks of `KEY_BLOCK` keys, so every call begins at a multiple of that, ends at a multiple
of `KEY_ALIGNMENT`, masks what a token does not attend to, and has no block of queries with a single row. An
attention sink (gpt-oss) scales the output by what the kernel tells of its sum.

On a GPU every call has a form that torch's flash or memory-efficient kernel takes: as many key heads as query
heads and no `enable_gqa`, because in torch 2.13 only cuDNN takes unequal heads beside a mask. A sink is one
more position whose key and value are zero and whose mask is the sink logit, which is exact. cuDNN is off: it
plans anew for every shape, which costs tens of milliseconds and memory that is never freed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, inf, lcm

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from engine.attention.paged_attention import AttentionMetadata, LayerCall
from engine.kv_cache import ContiguousBuffer, KVCache
from engine.scheduling.block_pool import BLANK_BLOCK

KEY_BLOCK = 512
"""Keys that torch's kernel for CPUs reduces over at a time."""

KEY_ALIGNMENT = 64
"""Columns of a call on a CPU are a multiple of this. The kernel sums several columns side by side and those
that are left one by one, so their number would change the order of the sum."""

QUERY_BLOCK = 32
"""The kernel takes queries in blocks of this or a multiple; its product for a single row rounds otherwise."""

MAX_QUERIES_PER_CALL = 128
"""Prefill tokens per attention call where masks are per head (sinks, softcap), or where a sliding window
makes most keys irrelevant for most queries."""

MAX_CPU_QUERIES = 512
"""Prefill tokens per attention call on a CPU: each call leaves out the keys after its last token."""

MAX_MASK_ELEMENTS = 2**26
"""On a GPU a prefill chunk is split so that no mask has more elements: 128 MiB in bfloat16."""

MASK_ALIGNMENT = 16
"""Columns of a mask's row in memory are a multiple of this; torch's memory-efficient kernel copies others."""


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """A prefill chunk: tokens `begin` .. `end` of the packed row, after `past` earlier tokens."""

    begin: int
    end: int
    past: int
    slots: Tensor
    """`[past + end - begin + 1]`: the slots of the request's tokens, and a blank slot for sinks."""
    two_way: Sequence[range] = ()
    """Ranges of positions whose tokens attend to each other in both directions: pictures."""
    two_way_windowed_only: bool = False
    """`two_way` holds in layers with a sliding window only."""
    row: tuple[ContiguousBuffer, int] | None = None
    """The buffer and the index in it of a row where the earlier tokens are, if there is one."""

    @property
    def total(self) -> int:
        return self.past + self.end - self.begin


@dataclass(frozen=True, slots=True)
class KeyValueRange:
    """Keys and values of several requests for one layer, `[requests, heads, positions, size]`."""

    key: Tensor
    value: Tensor
    first: int


@dataclass(frozen=True, slots=True)
class DecodeRows(ABC):
    """Decode tokens, one each of several requests: `begin` .. `end` of the packed row."""

    begin: int
    end: int
    seq_lens: Tensor
    """`[requests]`: number of tokens, the new one included."""
    min_seq_len: int
    max_seq_len: int

    @abstractmethod
    def read(self, call: LayerCall, first: int) -> KeyValueRange:
        """Keys and values from position `first` on; on a GPU, with sinks, a zero position ends each row."""


@dataclass(frozen=True, slots=True)
class ContiguousRows(DecodeRows):
    """Requests in a buffer of the contiguous cache; read in place."""

    buffer: ContiguousBuffer
    slots: Tensor
    """`[requests]`: flat index of each new token in the buffer."""

    def read(self, call: LayerCall, first: int) -> KeyValueRange:
        new, requests = slice(self.begin, self.end), self.end - self.begin
        last = _aligned_end(first, self.max_seq_len)
        gathered = []
        for buffer, fresh in ((self.buffer.keys, call.key), (self.buffer.values, call.value)):
            rows = buffer[call.layer]
            rows.view(-1, *rows.shape[2:]).index_copy_(0, self.slots, fresh[new])
            gathered.append(rows[:requests, first:last].transpose(1, 2))
        return KeyValueRange(gathered[0], gathered[1], first)


@dataclass(frozen=True, slots=True)
class GatheredRows(DecodeRows):
    """Requests whose blocks are gathered for each layer; on any device."""

    kv_cache: KVCache
    tables: Tensor
    """`[requests, blocks]`, padded with the blank block, which also ends each row."""

    def read(self, call: LayerCall, first: int) -> KeyValueRange:
        first_block = first // self.kv_cache.block_size
        tables = self.tables[:, first_block:]
        if tables.device.type == "cpu":
            multiple = KEY_ALIGNMENT // gcd(KEY_ALIGNMENT, self.kv_cache.block_size)
            tables = pad(tables, (0, -tables.shape[1] % multiple), value=BLANK_BLOCK)
        elif call.sinks is None:
            tables = tables[:, :-1]
        gathered = []
        for stored in (self.kv_cache.keys[call.layer], self.kv_cache.values[call.layer]):
            blocks = stored.view(len(stored) // self.kv_cache.block_size, -1)
            rows = blocks.index_select(0, tables.reshape(-1))
            gathered.append(rows.view(len(tables), -1, *stored.shape[1:]).transpose(1, 2))
        return KeyValueRange(gathered[0], gathered[1], first_block * self.kv_cache.block_size)


class SdpaForward:
    """A forward pass with torch's own attention. Masks are built once a step and shared by layers."""

    def __init__(
        self, kv_cache: KVCache, slots: Tensor, decodes: Sequence[DecodeRows], chunks: Sequence[PromptChunk]
    ) -> None:
        """`slots` `[T]`: the slot of each token's key and value."""
        self._kv_cache = kv_cache
        self._slots = slots
        self._decodes = decodes
        self._chunks = chunks
        self._on_cpu = kv_cache.device.type == "cpu"
        self._alignment = lcm(KEY_BLOCK, kv_cache.block_size) if self._on_cpu else 1
        self._masks: dict[tuple[int, int | None, int, bool], Tensor] = {}

    def attend(self, call: LayerCall) -> Tensor:
        self._kv_cache.write(call.layer, self._slots, call.key, call.value)
        parts = [self._decode(call, rows) for rows in self._decodes]
        parts += [self._prefill(call, chunk) for chunk in self._chunks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, call: LayerCall, rows: DecodeRows) -> Tensor:
        """All requests of `rows` in one call, over the positions that at least one of them attends to."""
        window = call.window if _is_cut(call.window, rows.max_seq_len) else None
        first = 0 if window is None else max(rows.min_seq_len - window, 0)
        visible = rows.read(call, first - first % self._alignment)
        query = call.query[rows.begin : rows.end]
        width = visible.key.shape[2]
        if call.sinks is None and visible.first == first and rows.min_seq_len == first + width:
            return attend_one_token(query, visible.key, visible.value, None, call)
        key = (rows.begin, window, width, False)
        if (mask := self._masks.get(key)) is None:
            position = torch.arange(visible.first, visible.first + width, device=query.device)
            mask = self._masks[key] = _visibility(position, rows.seq_lens - 1, window, query.dtype)
        mask = mask[:, None, None]
        if call.sinks is not None and not self._on_cpu:
            mask = mask.repeat(1, len(call.sinks), 1, 1)
            mask[..., -1] = call.sinks.to(mask.dtype)[:, None]
        return attend_one_token(query, visible.key, visible.value, mask, call)

    def _prefill(self, call: LayerCall, chunk: PromptChunk) -> Tensor:
        rows = slice(chunk.begin, chunk.end)
        window = call.window if _is_cut(call.window, chunk.total) else None
        query = call.query[rows]
        two_way = bool(chunk.two_way) and (call.window is not None or not chunk.two_way_windowed_only)
        plain = call.sinks is None and call.softcap is None and window is None and not self._on_cpu
        if plain and not two_way and chunk.past == 0:
            # A prompt's first chunk attends only to itself.
            return attend_prompt(query, call.key[rows], call.value[rows], None, call)
        count = chunk.end - chunk.begin
        segment = _queries_per_call(call, chunk, window, two_way)
        parts = [
            self._prefill_segment(call, chunk, window, begin, min(begin + segment, count), two_way)
            for begin in range(0, count, segment)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _prefill_segment(
        self, call: LayerCall, chunk: PromptChunk, window: int | None, begin: int, end: int, two_way: bool
    ) -> Tensor:
        """Tokens `begin` .. `end` of the chunk, over the positions that at least one of them attends to."""
        first = 0 if window is None else max(chunk.past + begin + 1 - window, 0)
        first -= first % self._alignment
        last = chunk.past + end
        if self._on_cpu:
            last = _aligned_end(first, last)
        memo = (chunk.begin + begin, window, end, two_way)
        if (mask := self._masks.get(memo)) is None:  # `[end - begin, positions + 1]`; the last is for a sink
            position = torch.arange(first, last + 1, device=call.query.device)
            own = position[chunk.past + begin - first : chunk.past + end - first]
            spans = chunk.two_way if two_way else ()
            mask = self._masks[memo] = _visibility(position, own, window, call.query.dtype, spans)
        mask = mask[None, None]
        sinks = None if self._on_cpu else call.sinks
        mask = mask[..., :-1] if sinks is None else _with_sinks(mask, sinks)
        if chunk.row is None:
            slots = chunk.slots[first:last]
            if (missing := last - first + (sinks is not None) - len(slots)) > 0:
                slots = torch.cat((slots, chunk.slots[-1:].expand(missing)))
            key = self._kv_cache.keys[call.layer].index_select(0, slots)
            value = self._kv_cache.values[call.layer].index_select(0, slots)
        else:
            key, value = (tensor[first:last] for tensor in _write_row(chunk.row, chunk, call))
        return attend_prompt(call.query[chunk.begin + begin : chunk.begin + end], key, value, mask, call)


def _write_row(
    buffer_row: tuple[ContiguousBuffer, int], chunk: PromptChunk, call: LayerCall
) -> tuple[Tensor, Tensor]:
    """Keys and values of the row, `[capacity, heads, size]`, after those of the chunk were written to it."""
    buffer, row = buffer_row
    key, value = buffer.keys[call.layer][row], buffer.values[call.layer][row]
    key[chunk.past : chunk.total] = call.key[chunk.begin : chunk.end]
    value[chunk.past : chunk.total] = call.value[chunk.begin : chunk.end]
    return key, value


def _queries_per_call(call: LayerCall, chunk: PromptChunk, window: int | None, two_way: bool) -> int:
    """The most tokens of a prefill chunk in one attention call, which bounds the size of its masks."""
    count = chunk.end - chunk.begin
    if two_way:
        return count
    if call.softcap is None and call.query.device.type == "cpu":
        return MAX_CPU_QUERIES
    if window is not None or call.sinks is not None or call.softcap is not None:
        return max(MAX_QUERIES_PER_CALL, window or 0)
    return min(count, max(MAX_QUERIES_PER_CALL, MAX_MASK_ELEMENTS // chunk.total))


def _aligned_end(first: int, last: int) -> int:
    """The next position from `last` on that is a multiple of `KEY_ALIGNMENT` after `first`."""
    return first - (first - last) // KEY_ALIGNMENT * KEY_ALIGNMENT


def _is_cut(window: int | None, tokens: int) -> bool:
    return window is not None and window < tokens


def _visibility(
    position: Tensor, own: Tensor, window: int | None, dtype: torch.dtype, two_way: Sequence[range] = ()
) -> Tensor:
    """Additive mask `[own, position]`: 0 where the token at `own` attends to `position`, else -inf."""
    masked = position[None] > own[:, None]
    for span in two_way:
        keys, queries = ((at >= span.start) & (at < span.stop) for at in (position, own))
        masked &= ~(queries[:, None] & keys[None])
    if window is not None:
        masked |= position[None] <= own[:, None] - window
    return _empty_mask(*masked.shape, dtype=dtype, device=masked.device).zero_().masked_fill_(masked, -inf)


def _empty_mask(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialized tensor whose rows begin at multiples of `MASK_ALIGNMENT`, on a GPU."""
    columns = shape[-1]
    padded = columns if device.type == "cpu" else -(-columns // MASK_ALIGNMENT) * MASK_ALIGNMENT
    return torch.empty(*shape[:-1], padded, dtype=dtype, device=device)[..., :columns]


def _with_sinks(mask: Tensor, sinks: Tensor) -> Tensor:
    """The mask for every head, with the sink logit in the last column, whose key and value are zero."""
    rows, columns = mask.shape[2:]
    whole = _empty_mask(1, len(sinks), rows, columns, dtype=mask.dtype, device=mask.device)
    whole.copy_(mask)
    whole[..., -1] = sinks.to(mask.dtype)[:, None]
    return whole


class GatherSdpaBackend:
    """The reference, for one token a row. With a sliding window, only its blocks are gathered."""

    name = "sdpa"

    def attend(self, call: LayerCall, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> Tensor:
        if metadata.max_query_len != 1:
            raise ValueError("rows of several tokens are not what the reference is for")
        size, block_tables = keys.shape[1], metadata.block_tables
        window = call.window if _is_cut(call.window, block_tables.shape[1] * size) else None
        first = torch.zeros_like(metadata.seq_lens)
        if window is not None:
            block_tables, first = _cut_to_window(block_tables, metadata.seq_lens, window, size)
        position = first[:, None] + torch.arange(block_tables.shape[1] * size, device=block_tables.device)
        masked = position >= metadata.seq_lens[:, None]
        if window is not None:
            masked |= position < metadata.seq_lens[:, None] - window
        mask = torch.zeros(masked.shape, dtype=call.query.dtype, device=block_tables.device)
        mask = mask.masked_fill_(masked, -inf)[:, None, None]
        if call.sinks is not None:
            block_tables, mask = _with_sink_blocks(block_tables, mask, call.sinks, size)
            call = replace(call, sinks=None)
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


def _with_sink_blocks(block_tables: Tensor, mask: Tensor, sinks: Tensor, size: int) -> tuple[Tensor, Tensor]:
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


def configure_sdpa(device: torch.device) -> None:
    """Turns cuDNN's attention off, for the whole process, if the model runs on a GPU."""
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def attend_one_token(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: LayerCall
) -> Tensor:
    """`[n, heads, size]` over `[n, kv_heads, columns, size]` twice; mask `[n, heads or 1, 1, columns]`."""
    requests, heads, size = query.shape
    shared = key.shape[1]
    if call.softcap is not None:
        return _attend_with_softcap(query[:, :, None], key, value, mask, call)[:, :, 0]
    # Query heads that share a key head are folded into the query positions, so that keys are neither copied
    # nor read twice.
    folded = query.reshape(requests, shared, heads // shared, size)
    if mask is not None and mask.shape[1] != 1:
        mask = mask.view(requests, shared, heads // shared, -1)
    if query.device.type == "cpu":
        sinks = None if call.sinks is None else call.sinks.view(1, shared, -1)
        out = attend_in_key_blocks(folded, key, value, mask, call.scale, sinks)
        return out.reshape(requests, heads, value.shape[3])
    out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=call.scale)
    return out.reshape(requests, heads, value.shape[3])


def attend_prompt(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: LayerCall) -> Tensor:
    """`[n, heads, size]`, `[m, kv_heads, size]` twice -> `[n, heads, size]`; causal without mask."""
    if call.softcap is not None:
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
        return _attend_with_softcap(q, k, v, mask, call)[0].transpose(0, 1)
    # In the form of torch's kernels: key heads become the batch, and the query heads that share one become
    # the heads. Keys and values are repeated by a stride of 0, so nothing is copied.
    count, heads, size = query.shape
    shared = key.shape[1]
    group = heads // shared
    folded = query.view(count, shared, group, size).permute(1, 2, 0, 3)
    repeated = [tensor.transpose(0, 1)[:, None].expand(-1, group, -1, -1) for tensor in (key, value)]
    if mask is not None:
        mask = mask.expand(1, heads, -1, -1)[0].view(shared, group, *mask.shape[2:])
    if query.device.type == "cpu" and mask is not None:
        sinks = None if call.sinks is None else call.sinks.view(shared, group, 1)
        out = attend_in_key_blocks(folded, repeated[0], repeated[1], mask, call.scale, sinks)
    else:
        out = scaled_dot_product_attention(
            folded, repeated[0], repeated[1], attn_mask=mask, is_causal=mask is None, scale=call.scale
        )
    return out.permute(2, 0, 1, 3).reshape(count, heads, value.shape[2])


def attend_in_key_blocks(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, sinks: Tensor | None
) -> Tensor:
    """`[a, b, rows, size]` on a CPU, where each row has the same bits whatever the others are.

    Keys and values are `[a, b, columns, size]`; the mask broadcasts to `[a, b, rows, columns]`, the logits of
    sinks to `[a, b, rows]`.
    """
    rows, size = query.shape[2], value.shape[3]
    if (missing := query.shape[3] - size) != 0:  # the kernel wants one size
        scale = query.shape[3] ** -0.5 if scale is None else scale
        query, key = (pad(tensor, (0, max(-missing, 0))) for tensor in (query, key))
        value = pad(value, (0, max(missing, 0)))
    if rows % QUERY_BLOCK == 1:
        query = torch.cat((query, query[:, :, -1:]), dim=2)
        if mask is not None and mask.shape[2] == rows:
            mask = torch.cat((mask, mask[:, :, -1:]), dim=2)
    if sinks is None:
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        return out[:, :, :rows, :size]
    # Beside the output, the logarithm of each row's sum of exponentials, to which a sink adds its own.
    log_sum: Tensor
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, attn_mask=mask, scale=scale
    )
    weight = torch.sigmoid(log_sum[:, :, :rows] - sinks)
    scaled: Tensor = out[:, :, :rows, :size] * weight[..., None]
    return scaled.to(out.dtype)


def _attend_with_softcap(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: LayerCall
) -> Tensor:
    """`[requests, heads, n, size]`; in single operations, because torch's SDPA has no softcap (Gemma 2)."""
    assert call.softcap is not None
    scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
    scores = (query @ key.transpose(2, 3)).mul_(scale / call.softcap).tanh_().mul_(call.softcap)
    if mask is not None:
        scores = scores + mask
    return scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype) @ value
