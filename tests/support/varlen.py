"""A stand-in for torch's `varlen_attn`, that computes what it is documented to compute, slowly.

Written from torch's interface and from what its FlashAttention 2 refuses (`mha_varlen_fwd`), and on nothing
of the engine's, so that an argument that is mapped wrongly raises or gives wrong numbers as it would there.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Any:
    """`query` `[T, heads, size]`, pages `[pages, page size, heads, size]`; gives `[T, heads, size]`."""
    assert cu_seq_k is not None
    assert seqused_k is not None
    assert block_table is not None
    requests = len(cu_seq_q) - 1
    _check_form(query, key, value, enable_gqa, num_splits, folds=max_q == 1 and window_size == (-1, -1))
    for numbers in (cu_seq_q, cu_seq_k, seqused_k, block_table):
        assert numbers.dtype == torch.int32
        assert numbers.stride(-1) == 1
    assert cu_seq_q.is_contiguous()
    assert cu_seq_k.is_contiguous()
    assert seqused_k.is_contiguous()
    assert cu_seq_k.shape == (requests + 1,)
    assert seqused_k.shape == (requests,)
    assert block_table.shape[0] == requests
    assert cu_seq_k.diff().tolist() == seqused_k.tolist()
    assert cu_seq_q[-1] <= len(query)
    lengths = seqused_k.tolist()
    assert max_k >= max(lengths)
    assert block_table.shape[1] * key.shape[1] >= max(lengths)
    total = torch.zeros(query.shape)
    total[: int(cu_seq_q[0])] = float("nan")  # rows of no request: whatever was in memory
    logsumexp = torch.empty(query.shape[1], len(query))
    for row, (begin, end) in enumerate(pairwise(cu_seq_q.tolist())):
        assert max_q >= end - begin
        pages = block_table[row, : -(-lengths[row] // key.shape[1])].long()
        scores = _scores(query[begin:end], key[pages].flatten(0, 1)[: lengths[row]], scale, window_size)
        values = value[pages].flatten(0, 1)[: lengths[row]].float()
        values = values.repeat_interleave(query.shape[1] // value.shape[2], dim=1)
        parts = _parts(lengths[row], max_k, num_splits or 1)
        sums = torch.stack([scores[:, :, part].logsumexp(dim=2) for part in parts])
        logsumexp[:, begin:end] = sums.logsumexp(dim=0)
        for part, own in zip(parts, sums, strict=True):
            weights = scores[:, :, part].softmax(dim=2).nan_to_num()
            attended = torch.einsum("hqk,khd->qhd", weights, values[part])
            total[begin:end] += attended * (own - logsumexp[:, begin:end]).exp().T[:, :, None]
    out = total.to(query.dtype)
    return (out, logsumexp) if return_aux is not None and return_aux.lse else out


def _parts(length: int, max_k: int, num_splits: int) -> list[slice]:
    """The keys of a request as the kernel splits them: by `max_k`, in tiles of 64."""
    size = -(-max_k // 64 // num_splits) * 64
    return [slice(begin, min(begin + size, length)) for begin in range(0, length, size)]


def _check_form(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool, num_splits: int | None, *, folds: bool
) -> None:
    assert num_splits, "splits that the kernel chooses are wrong with pages"
    assert num_splits == 1 or (enable_gqa and folds), "splits are for heads that are folded"
    assert key.shape == value.shape
    assert key.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    assert query.shape[2] == key.shape[3]
    assert query.shape[2] % 8 == 0
    assert query.shape[2] <= 256
    assert query.shape[1] % key.shape[2] == 0
    assert enable_gqa or query.shape[1] == key.shape[2]
    assert all(tensor.stride(-1) == 1 for tensor in (query, key, value))


def _scores(query: Tensor, keys: Tensor, scale: float | None, window_size: tuple[int, int]) -> Tensor:
    """`[heads, n, length]`; hidden ones are -inf. The last query attends to the last key."""
    count, heads, size = query.shape
    keys = keys.float().repeat_interleave(heads // keys.shape[1], dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * (size**-0.5 if scale is None else scale)
    length = len(keys)
    own, other = torch.arange(length - count, length)[:, None], torch.arange(length)[None]
    left, right = window_size
    hidden = torch.zeros(count, length, dtype=torch.bool)
    if right >= 0:
        hidden |= other > own + right
    if left >= 0:
        hidden |= other < own - left
    return scores.masked_fill(hidden, float("-inf"))
