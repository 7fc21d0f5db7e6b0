"""The check of attention at load time: random steps of the model's shapes, compared with plain arithmetic."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import torch
from torch import Tensor

from engine.attention.paged_attention import AttentionMetadata, LayerAttentionSpec, LayerCall
from engine.attention.sdpa import DecodeRows, GatheredRows, PromptChunk, SdpaForward
from engine.kv_cache import KVCache
from engine.request import describe
from engine.scheduling.block_pool import BLANK_BLOCK

TOLERANCES = {torch.float32: 5e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Largest absolute difference of outputs, for inputs that are N(0, 1)."""

SOFTCAP_FACTOR = 2
"""Torch's own attention rounds scores before it caps them."""

MAX_CHECKED_WINDOW = 8192
"""A longer sliding window is not checked for where it ends."""

LONGER = 16
"""The longest context that a case tells of is this many times its tables, as in most steps."""

MAX_CHUNK = 70
"""Tokens of the chunk over a whole window; bounds the reference's memory. The chunk ends in a new block."""


@dataclass(frozen=True, slots=True)
class Case:
    call: LayerCall
    """The call's key and value are those of the step's tokens, which are in `keys` and `values`, too."""
    keys: Tensor
    """`[blocks, block size, heads, size]`, as are the values; block 0 is zero."""
    values: Tensor
    metadata: AttentionMetadata
    seq_lens: Sequence[int]
    query_lens: Sequence[int]
    slots: Tensor
    """`[T]`: the slot of each token."""


Attend = Callable[[Case], Tensor]
"""Computes a case: `[T, heads, value size]`."""


def attend_with_sdpa(case: Case) -> Tensor:
    """Torch's own attention, in the form in which the engine uses it on a GPU."""
    blocks, size, heads, key_size = case.keys.shape
    store = KVCache([], blocks - 2, size, case.keys.dtype, case.keys.device)
    store.keys = [case.keys.reshape(blocks * size, heads, key_size)]
    store.values = [case.values.reshape(blocks * size, heads, case.values.shape[3])]
    starts = case.metadata.query_start_loc.tolist()
    single = sum(count == 1 for count in case.query_lens)
    assert all(count == 1 for count in case.query_lens[:single]), "rows of one token come first"
    decodes: list[DecodeRows] = []
    if single:
        lengths, tables = case.metadata.seq_lens[:single].long(), case.metadata.block_tables[:single].long()
        seq_lens = case.seq_lens[:single]
        decodes.append(GatheredRows(0, single, lengths, min(seq_lens), max(seq_lens), store, tables))
    chunks = []
    for row in range(single, len(case.query_lens)):
        length = case.seq_lens[row]
        slots = _slots(case.metadata.block_tables[row], size, range(length))
        slots = torch.cat((slots, slots.new_full((1,), BLANK_BLOCK * size)))
        chunks.append(PromptChunk(starts[row], starts[row + 1], length - case.query_lens[row], slots))
    return SdpaForward(store, case.slots, decodes, chunks).attend(case.call)


def plain_attention(case: Case) -> Tensor:
    """The reference, in single operations in float32, request by request."""
    call, parts = case.call, []
    size = case.keys.shape[1]
    scale = call.query.shape[2] ** -0.5 if call.scale is None else call.scale
    starts = case.metadata.query_start_loc.tolist()
    for row, (begin, end) in enumerate(pairwise(starts)):
        length = case.seq_lens[row]
        pages = case.metadata.block_tables[row, : -(-length // size)].long()
        group = call.query.shape[1] // case.keys.shape[2]
        keys, values = (
            stored[pages].flatten(0, 1)[:length].float().repeat_interleave(group, dim=1)
            for stored in (case.keys, case.values)
        )
        scores = torch.einsum("qhd,khd->hqk", call.query[begin:end].float(), keys) * scale
        if call.softcap is not None:
            scores = (scores / call.softcap).tanh() * call.softcap
        position = torch.arange(length, device=keys.device)
        own = position[length - (end - begin) :, None]
        hidden = position > own
        if call.window is not None:
            hidden |= position <= own - call.window
        scores = scores.masked_fill(hidden, -inf)
        if call.sinks is not None:
            sinks = call.sinks.float()[:, None, None].expand(-1, end - begin, 1)
            scores = torch.cat((scores, sinks), dim=2)
        weights = scores.softmax(dim=2)[:, :, :length]
        parts.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(parts)


def find_fault(
    attend: Attend,
    specs: Collection[LayerAttentionSpec],
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
) -> str | None:
    """Why this attention is not right here, in a sentence; None if it is. Raises `torch.AcceleratorError`."""
    for spec in sorted(specs, key=repr):
        try:
            difference = max_difference(attend, spec, dtype, device, block_size)
        except torch.AcceleratorError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a foreign kernel raises
            return describe(error)
        tolerance = TOLERANCES[dtype] * (1 if spec.softcap is None else SOFTCAP_FACTOR)
        # `not <=` instead of `>` is True for NaN, too.
        if not difference <= tolerance:
            return (
                f"it differs from the reference by {difference:g}, where {tolerance:g} is allowed, for {spec}"
            )
    return None


def max_difference(
    attend: Attend, spec: LayerAttentionSpec, dtype: torch.dtype, device: torch.device, block_size: int
) -> float:
    """Largest absolute difference from `plain_attention`; NaN if an output is NaN."""
    worst = 0.0
    with torch.inference_mode():
        for seq_lens, query_lens in _steps(spec, block_size):
            case = make_case(spec, dtype, device, block_size, seq_lens, query_lens)
            difference = (plain_attention(case) - attend(case).float()).abs().max().item()
            worst = max(worst, difference) if difference == difference else difference
    return worst


def _steps(spec: LayerAttentionSpec, size: int) -> list[tuple[list[int], list[int]]]:
    """Tokens of each request, and how many of them are the step's: decode, a chunk, and a mix."""
    far = 5 * size if spec.window is None else min(spec.window, MAX_CHECKED_WINDOW) + 2 * size
    seq_lens = [1, size, far + 5, 2 * size + 3]
    return [
        (seq_lens, [1, 1, 1, 1]),
        ([far + 5], [min(size + 1, MAX_CHUNK)]),
        ([1, far + 5, size, 2 * size + 3], [1, 1, min(5, size), 2 * size + 3]),
    ]


def make_case(
    spec: LayerAttentionSpec,
    dtype: torch.dtype,
    device: torch.device,
    size: int,
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
) -> Case:
    """A step with random numbers; requests have their blocks in random order."""
    dice = torch.Generator().manual_seed(11)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=dice).to(device, dtype)

    num_blocks = [-(-length // size) for length in seq_lens]
    order = iter((torch.randperm(sum(num_blocks), generator=dice) + 1).tolist())
    block_tables = torch.full((len(seq_lens), max(num_blocks) + 1), BLANK_BLOCK, dtype=torch.int32)
    for row, count in enumerate(num_blocks):
        block_tables[row, :count] = torch.tensor([next(order) for _ in range(count)])
    keys = draw(sum(num_blocks) + 1, size, spec.num_kv_heads, spec.key_size)
    values = draw(sum(num_blocks) + 1, size, spec.num_kv_heads, spec.value_size)
    keys[BLANK_BLOCK], values[BLANK_BLOCK] = 0, 0
    # Strided like a model's query: `[heads, T, size]` transposed.
    query = draw(spec.num_heads, sum(query_lens), spec.key_size).transpose(0, 1)
    sinks = draw(spec.num_heads) if spec.sinks else None
    lengths = torch.tensor(seq_lens)
    metadata = AttentionMetadata(
        block_tables.to(device),
        lengths.to(device, torch.int32),
        torch.tensor([0, *query_lens]).cumsum(0).to(device, torch.int32),
        torch.tensor([0, *seq_lens]).cumsum(0).to(device, torch.int32),
        max_query_len=max(query_lens),
        max_seq_len=LONGER * block_tables.shape[1] * size,
        num_single=sum(count == 1 for count in query_lens),
    )
    rows = zip(metadata.block_tables, seq_lens, query_lens, strict=True)
    slots = torch.cat([_slots(table, size, range(length - count, length)) for table, length, count in rows])
    key, value = (stored.flatten(0, 1)[slots] for stored in (keys, values))
    call = LayerCall(0, query, key, value, None, spec.window, sinks, spec.softcap)
    return Case(call, keys, values, metadata, seq_lens, query_lens, slots)


def _slots(block_table: Tensor, size: int, positions: range) -> Tensor:
    position = torch.arange(positions.start, positions.stop, device=block_table.device)
    return block_table.long()[position // size] * size + position % size
