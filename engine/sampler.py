"""From logits to token ids, for all rows of a step at once.

Engine thread. A row's token depends on that row alone: its logits, its `Sampling` and its position; not
on its neighbours, nor on any generator's state. Ignorant of jobs, of the model and of the cache.

There are three kinds of rows: greedy ones take the maximum; open ones draw from the whole distribution;
cut ones (top_k, top_p) draw from its head. For the last the vocabulary is not sorted: a few of the
highest logits usually hold all that can be drawn, and rows for which they may not are looked at again
with more of them, so the result is that of a full sort.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.messages import Sampling

FIRST_CANDIDATES = 64
WIDENING = 16
COLDEST = 1e-10
"""A lower temperature than this draws the maximum in any case, and would divide by zero in float32."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One row's way to draw: `position` counts the tokens before it, prompt and output together."""

    sampling: Sampling
    position: int


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """`logits` `[rows, vocabulary]` in float32 -> a token id for each row.

    None for a row whose logits are not numbers: nothing can be drawn from it.
    """
    highest, token_ids = logits.max(dim=-1)
    drawing = [row for row, draw in enumerate(draws) if draw.sampling.temperature > 0]
    cut = [row for row in drawing if _is_cut(draws[row].sampling)]
    whole = [row for row in drawing if not _is_cut(draws[row].sampling)]
    for rows, draw_rows in ((whole, _draw_from_all), (cut, _draw_from_head)):
        if rows:
            index = torch.tensor(rows, device=logits.device)
            chosen = [draws[row] for row in rows]
            scaled = _scale(logits[index], highest[index], chosen)
            token_ids[index] = draw_rows(scaled, chosen)
    usable = highest.isfinite().tolist()
    return [token_id if fine else None for token_id, fine in zip(token_ids.tolist(), usable, strict=True)]


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of this seed at this position, the same on every machine."""
    counter = f"{seed}:{position}".encode()
    digest = hashlib.blake2b(counter, digest_size=8, person=b"holdfast-draw").digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def _is_cut(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1


def _scale(logits: Tensor, highest: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Logits over temperature, shifted so that the highest is 0 and none can overflow."""
    coldness = [max(draw.sampling.temperature, COLDEST) for draw in draws]
    return (logits - highest[:, None]) / _column(coldness, logits)


def _draw_from_all(scaled: Tensor, draws: Sequence[Draw]) -> Tensor:
    return _invert(scaled.exp().cumsum(dim=-1), draws)


def _draw_from_head(scaled: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Looks at few candidates first, and at more for the rows that are not settled by them."""
    token_ids = torch.empty(len(draws), dtype=torch.long, device=scaled.device)
    mass = scaled.exp().sum(dim=-1, keepdim=True)
    open_rows = torch.arange(len(draws), device=scaled.device)
    size = FIRST_CANDIDATES
    while len(open_rows):
        size = min(size, scaled.shape[-1])
        chosen = [draws[row] for row in open_rows.tolist()]
        picked, settled = _draw_from_top(scaled[open_rows], mass[open_rows], chosen, size)
        token_ids[open_rows[settled]] = picked[settled]
        open_rows = open_rows[~settled]
        size *= WIDENING
    return token_ids


def _draw_from_top(scaled: Tensor, mass: Tensor, draws: Sequence[Draw], size: int) -> tuple[Tensor, Tensor]:
    """Draws from the `size` highest logits; says for which rows that is the true result.

    A row is settled when the last token it keeps is strictly above the last candidate: then no token
    outside could have been kept, nor have changed the order, in which equals stand by their ids.
    """
    values, token_ids = _top_in_order(scaled, size)
    limits = [draw.sampling.top_k or scaled.shape[-1] for draw in draws]
    top_k = torch.tensor(limits, device=scaled.device)[:, None]
    top_p = _column([draw.sampling.top_p for draw in draws], scaled)
    weights = values.exp()
    weights[torch.arange(size, device=scaled.device)[None] >= top_k] = 0
    reached = weights.cumsum(dim=-1)
    # top_p is a share of what top_k left. The sum is read off the running one: a sum of its own
    # would depend on how many candidates there are.
    total = torch.where(top_k <= size, reached[:, -1:], mass)
    kept = (reached - weights < top_p * total) & (weights > 0)
    kept[:, 0] = True
    last_kept = kept.sum(dim=-1, keepdim=True) - 1
    settled = values.gather(1, last_kept)[:, 0] > values[:, -1]
    if size == scaled.shape[-1]:
        settled[:] = True
    column = _invert(weights.where(kept, 0).cumsum(dim=-1), draws)
    return token_ids.gather(1, column[:, None])[:, 0], settled


def _top_in_order(scaled: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The highest values, falling, and their ids, rising among equals."""
    if size == scaled.shape[-1]:
        return scaled.sort(dim=-1, descending=True, stable=True)
    values, token_ids = scaled.topk(size, dim=-1)
    token_ids, by_id = token_ids.sort(dim=-1)
    values, by_value = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    return values, token_ids.gather(1, by_value)


def _invert(cumulative: Tensor, draws: Sequence[Draw]) -> Tensor:
    """The first column whose running sum is above the row's random share of the whole sum."""
    shares = _column([uniform(draw.sampling.seed, draw.position) for draw in draws], cumulative)
    total = cumulative[:, -1:].contiguous()
    column = torch.searchsorted(cumulative, shares * total, right=True)
    # Rounding can push a share up to the whole; the answer is then the last column that adds to it.
    last = torch.searchsorted(cumulative, total)
    # The sums of a row of no numbers are none either: any column will do, as long as it exists.
    return column.minimum(last)[:, 0].clamp_(max=cumulative.shape[1] - 1)


def _column(numbers: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=like.dtype, device=like.device)[:, None]
