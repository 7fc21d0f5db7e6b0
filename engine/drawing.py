"""One token out of each row of logits, by temperature, top_k, top_p and min_p.

Engine thread. Ignorant of penalties, masks and logprobs: these logits are what is drawn from.

There are three kinds of rows: greedy ones take the maximum; open ones draw from the whole distribution;
cut ones (top_k, top_p, min_p) draw from its head. For the last the vocabulary is not sorted: a few of
the highest logits usually hold all that can be drawn, and rows for which they may not are looked at
again with more of them, so the result is that of a full sort.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.logprobs import HIGHEST, top_in_order
from engine.messages import Sampling

WIDENING = 16
COLDEST = 1e-10
"""A lower temperature than this draws the maximum in any case, and would divide by zero in float32."""

Draws = Sequence[tuple[Sampling, int]]
"""Of each row, how to draw and at which position: the number of tokens before, prompt and output."""


def choose(logits: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """`[rows, vocabulary]` in float32 -> the highest logit and the token of each row.

    The token of a row whose highest logit is not finite means nothing.
    """
    highest, token_ids = logits.max(dim=-1)
    cut = [row for row, (sampling, _) in enumerate(draws) if sampling.temperature > 0 and _is_cut(sampling)]
    whole = [
        row for row, (sampling, _) in enumerate(draws) if sampling.temperature > 0 and not _is_cut(sampling)
    ]
    for rows, draw_rows in ((whole, _draw_from_all), (cut, _draw_from_head)):
        if len(rows) == len(draws):
            token_ids = draw_rows(logits, highest, _Knobs.of(draws, logits))
        elif rows:
            index = torch.tensor(rows, device=logits.device)
            knobs = _Knobs.of([draws[row] for row in rows], logits)
            token_ids[index] = draw_rows(logits[index], highest[index], knobs)
    return highest, token_ids


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of this seed at this position, the same on every machine."""
    counter = f"{seed}:{position}".encode()
    digest = hashlib.blake2b(counter, digest_size=8, person=b"holdfast-draw").digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


@dataclass(frozen=True, slots=True)
class _Knobs:
    """The rows' samplings as columns `[rows, 1]`."""

    temperature: Tensor
    share: Tensor
    """The random number of this draw."""
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    """The size of the vocabulary where there is no limit."""

    @staticmethod
    def of(draws: Draws, logits: Tensor) -> "_Knobs":
        vocabulary = logits.shape[-1]
        numbers = [
            (
                max(sampling.temperature, COLDEST),
                uniform(sampling.seed, position),
                sampling.top_p,
                sampling.min_p,
            )
            for sampling, position in draws
        ]
        limits = [min(sampling.top_k or vocabulary, vocabulary) for sampling, _ in draws]
        columns = torch.tensor(numbers, dtype=logits.dtype, device=logits.device).T[:, :, None]
        temperature, share, top_p, min_p = columns.contiguous()
        top_k = torch.tensor(limits, device=logits.device)[:, None]
        return _Knobs(temperature, share, top_p, min_p, top_k)

    def at(self, rows: Tensor) -> "_Knobs":
        return _Knobs(
            self.temperature[rows], self.share[rows], self.top_p[rows], self.min_p[rows], self.top_k[rows]
        )


def _is_cut(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def _weights(logits: Tensor, highest: Tensor, knobs: _Knobs) -> Tensor:
    """Of which the highest is 1, so that none can overflow."""
    return (logits - highest[:, None]).div_(knobs.temperature).exp_()


def _draw_from_all(logits: Tensor, highest: Tensor, knobs: _Knobs) -> Tensor:
    return _invert(_weights(logits, highest, knobs).cumsum(dim=-1), knobs)


def _draw_from_head(logits: Tensor, highest: Tensor, knobs: _Knobs) -> Tensor:
    """Looks at few candidates first, and at more for the rows that are not settled by them."""
    vocabulary = logits.shape[-1]
    mass = _weights(logits, highest, knobs).sum(dim=-1, keepdim=True)
    size = min(HIGHEST, vocabulary)
    token_ids, settled = _draw_from_top(logits, highest, mass, knobs, size)
    while not settled.all():
        size = min(size * WIDENING, vocabulary)
        rows = (~settled).nonzero()[:, 0]
        token_ids[rows], settled[rows] = _draw_from_top(
            logits[rows], highest[rows], mass[rows], knobs.at(rows), size
        )
    return token_ids


def _draw_from_top(
    logits: Tensor, highest: Tensor, mass: Tensor, knobs: _Knobs, size: int
) -> tuple[Tensor, Tensor]:
    """Draws from the `size` highest logits; says for which rows that is the true result.

    A row is settled when the last token it keeps is strictly above the last candidate: then no token
    outside could have been kept, nor have changed the order, in which equals stand by their ids.
    """
    vocabulary = logits.shape[-1]
    values, token_ids = top_in_order(logits, size)
    weights = _weights(values, highest, knobs)
    weights[torch.arange(size, device=logits.device)[None] >= knobs.top_k] = 0
    reached = weights.cumsum(dim=-1)
    # top_p is a share of what top_k left. The sum is read off the running one: a sum of its own
    # would depend on how many candidates there are.
    total = torch.where(knobs.top_k <= size, reached[:, -1:], mass)
    kept = (reached - weights < knobs.top_p * total) & (weights > 0) & (weights >= knobs.min_p)
    kept[:, 0] = True
    last_kept = kept.sum(dim=-1, keepdim=True) - 1
    settled = values.gather(1, last_kept)[:, 0] > values[:, -1]
    # The sum of what a larger top_k leaves is not known yet.
    settled &= ((knobs.top_k <= size) | (knobs.top_k == vocabulary) | (knobs.top_p == 1))[:, 0]
    if size == vocabulary:
        settled[:] = True
    column = _invert(weights.where(kept, 0).cumsum(dim=-1), knobs)
    return token_ids.gather(1, column[:, None])[:, 0], settled


def _invert(cumulative: Tensor, knobs: _Knobs) -> Tensor:
    """The first column whose running sum is above the row's random share of the whole sum."""
    total = cumulative[:, -1:].contiguous()
    column = torch.searchsorted(cumulative, knobs.share * total, right=True)
    # Rounding can push a share up to the whole; the answer is then the last column that adds to it.
    last = torch.searchsorted(cumulative, total)
    # The sums of a row of no numbers are none either: any column will do, as long as it exists.
    return column.minimum(last)[:, 0].clamp_(max=cumulative.shape[1] - 1)
