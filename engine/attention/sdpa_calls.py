"""Single calls of torch's `scaled_dot_product_attention`, in forms that are fast on the device.

On a GPU every call has a form that torch's flash or memory-efficient kernel takes: as many key heads as query
heads and no `enable_gqa`, because in torch 2.13 only cuDNN takes unequal heads beside a mask, and without it
torch would write all scores out. cuDNN is off: it plans anew for every new shape, which costs tens of
milliseconds and memory that is never freed.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.attention.interface import LayerCall


def configure_sdpa(device: torch.device) -> None:
    """Turns cuDNN's attention off, for the whole process, if the model runs on a GPU."""
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


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
        # torch on CPUs has a faster path for one query per head.
        out = scaled_dot_product_attention(
            query[:, :, None], key, value, attn_mask=mask, scale=call.scale, enable_gqa=heads != shared
        )
        return out[:, :, 0]
    # Query heads that share a key head are folded into the query positions, so that keys are neither copied
    # nor read twice.
    folded = query.reshape(requests, shared, heads // shared, size)
    if mask is not None and mask.shape[1] != 1:
        mask = mask.view(requests, shared, heads // shared, -1)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=call.scale)
    return out.reshape(requests, heads, value.shape[3])


def attend_prompt(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: LayerCall) -> Tensor:
    """`[n, heads, size]`, `[m, kv_heads, size]` twice -> `[n, heads, size]`; causal without mask."""
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    if call.softcap is not None:
        return _attend_with_softcap(q, k, v, mask, call)[0].transpose(0, 1)
    if query.device.type != "cpu":
        return attend_by_groups(query, key, value, mask, call)
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


def attend_by_groups(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: LayerCall
) -> Tensor:
    """As `attend_prompt`, without softcap, in the form of torch's kernels for GPUs.

    Key heads become the batch, and the query heads that share one become the heads. Keys and values are
    repeated by a stride of 0, so nothing is copied.
    """
    count, heads, size = query.shape
    shared = key.shape[1]
    group = heads // shared
    folded = query.view(count, shared, group, size).permute(1, 2, 0, 3)
    repeated = [tensor.transpose(0, 1)[:, None].expand(-1, group, -1, -1) for tensor in (key, value)]
    if mask is not None:
        mask = mask.expand(1, heads, -1, -1)[0].view(shared, group, *mask.shape[2:])
    out = scaled_dot_product_attention(
        folded, repeated[0], repeated[1], attn_mask=mask, is_causal=mask is None, scale=call.scale
    )
    return out.permute(2, 0, 1, 3).reshape(count, heads, value.shape[2])


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
