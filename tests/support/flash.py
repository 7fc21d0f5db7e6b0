"""A stand-in for FlashAttention 3, that computes what the kernel is documented to compute, slowly.

Written from the kernel's interface alone and on nothing of the engine's, so that an argument that is mapped
wrongly gives wrong numbers here as it would there.
"""

from itertools import pairwise

import torch
from torch import Tensor


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    cache_seqlens: Tensor,
    page_table: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    num_splits: int = 0,
    s_aux: Tensor | None = None,
) -> Tensor:
    """`q` `[T, heads, size]`, the caches `[pages, page size, heads, size]`; gives `[T, heads, size]`."""
    assert k is None
    assert v is None
    assert num_splits == 1, "splits that the kernel chooses are not the same in every batch"
    for numbers in (cache_seqlens, page_table, cu_seqlens_q):
        assert numbers.dtype == torch.int32
        assert numbers.stride(-1) == 1
    begins = cu_seqlens_q.tolist()
    assert max_seqlen_q >= max(e - b for b, e in pairwise(begins))
    out = torch.empty_like(q)
    for row, length in enumerate(cache_seqlens.tolist()):
        mine = q[begins[row] : begins[row + 1]].float()
        pages = page_table[row].long()
        keys = k_cache[pages].flatten(0, 1)[:length].float()
        values = v_cache[pages].flatten(0, 1)[:length].float()
        group = q.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
        scores = torch.einsum("qhd,khd->hqk", mine, keys) * scale
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        own = torch.arange(length - len(mine), length)[:, None]
        other = torch.arange(length)[None]
        left, right = window_size
        hidden = torch.zeros(len(mine), length, dtype=torch.bool)
        if causal or right >= 0:
            hidden |= other > own + max(right, 0)
        if left >= 0:
            hidden |= other < own - left
        scores = scores.masked_fill(hidden, float("-inf"))
        if s_aux is not None:
            scores = torch.cat((scores, s_aux.float()[:, None, None].expand(-1, len(mine), 1)), dim=2)
        weights = scores.softmax(dim=2)[:, :, :length]
        out[begins[row] : begins[row + 1]] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out
