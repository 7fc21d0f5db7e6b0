"""One token out of each row of logits, by temperature, top_k, top_p and min_p.

Engine thread. Ignorant of penalties, masks and logprobs: these logits are what is drawn from.

There are three kinds of rows. Greedy ones take the maximum. Those with a top_k draw from a list of the
highest logits. All others draw from the whole vocabulary without sorting it: a token that top_p rules
out is drawn anew, by the next random number and among the likelier ones. So the tokens that top_p
allows are drawn as if the rest had been cut off before, equally likely ones being in or out together.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.logprobs import top_in_order
from engine.messages import Sampling

COLDEST = 1e-10
"""A lower temperature than this draws the maximum in any case, and would divide by zero in float32."""

Draws = Sequence[tuple[Sampling, int]]
"""Of each row, how to draw and at which position: the number of tokens before, prompt and output."""


def choose(logits: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """`[rows, vocabulary]` in float32 -> the highest logit and the token of each row.

    The token of a row whose highest logit is not finite means nothing.
    """
    highest, token_ids = logits.max(dim=-1)
    drawing = [row for row, (sampling, _) in enumerate(draws) if sampling.temperature > 0]
    listed = [row for row in drawing if 0 < draws[row][0].top_k < logits.shape[-1]]
    whole = [row for row in drawing if not 0 < draws[row][0].top_k < logits.shape[-1]]
    for rows, draw_rows in ((whole, _draw_from_all), (listed, _draw_from_list)):
        if len(rows) == len(draws):
            token_ids = draw_rows(logits, highest, draws)
        elif rows:
            index = torch.tensor(rows, device=logits.device)
            token_ids[index] = draw_rows(logits[index], highest[index], [draws[row] for row in rows])
    return highest, token_ids


def uniform(seed: int, position: int, attempt: int = 0) -> float:
    """The random number in [0, 1) of this seed at this position, the same on every machine."""
    counter = f"{seed}:{position}:{attempt}" if attempt else f"{seed}:{position}"
    digest = hashlib.blake2b(counter.encode(), digest_size=8, person=b"holdfast-draw").digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def _draw_from_all(logits: Tensor, highest: Tensor, draws: Draws) -> Tensor:
    weights = _weights(logits, highest, draws)
    allowed = weights
    if any(sampling.min_p > 0 for sampling, _ in draws):
        allowed = weights.where(weights >= _column([s.min_p for s, _ in draws], weights), 0)
    reached = allowed.cumsum(dim=-1)
    token_ids = _invert(reached, draws)
    limited = [row for row, (sampling, _) in enumerate(draws) if sampling.top_p < 1]
    if limited:
        # top_p is a share of everything, min_p or not.
        total = reached[:, -1] if allowed is weights else weights.sum(dim=-1)
        _keep_to_top_p(token_ids, limited, weights, total, draws)
    return token_ids


def _keep_to_top_p(token_ids: Tensor, rows: list[int], weights: Tensor, total: Tensor, draws: Draws) -> None:
    """Draws anew, in these rows, the tokens that top_p rules out.

    Such a token is one that is less likely than others which together reach top_p. All that top_p allows
    is among those others, so the next draw is from them; the likeliest token is always allowed.
    """
    index = torch.tensor(rows, device=weights.device)
    limits = total[index] * torch.tensor([draws[row][0].top_p for row in rows], device=weights.device)
    if len(rows) < len(weights):
        weights = weights[index]
    attempt = 0
    while True:
        attempt += 1
        drawn = weights.gather(1, token_ids[index, None])
        # Ones and zeros as floats: with booleans this takes twice as long on a CPU.
        likelier = torch.gt(weights, drawn, out=torch.empty_like(weights)).mul_(weights)
        above = likelier.sum(dim=-1)
        # The sums of a row of no numbers are none either: nothing is drawn anew there. Nor is it where
        # nothing is likelier, though a tiny top_p may be rounded to none at all.
        out = ((above >= limits) & (above > 0)).nonzero()[:, 0]
        if not len(out):
            return
        index, limits, weights = index[out], limits[out], weights[out]
        again = [draws[row] for row in index.tolist()]
        token_ids[index] = _invert(likelier[out].cumsum(dim=-1), again, attempt)


def _draw_from_list(logits: Tensor, highest: Tensor, draws: Draws) -> Tensor:
    """For rows with a top_k: the list is as long as the largest of them."""
    limits = [sampling.top_k for sampling, _ in draws]
    values, token_ids = top_in_order(logits, max(limits))
    weights = _weights(values, highest, draws)
    places = torch.arange(values.shape[1], device=logits.device)
    weights[places >= torch.tensor(limits, device=logits.device)[:, None]] = 0
    reached = weights.cumsum(dim=-1)
    top_p = _column([sampling.top_p for sampling, _ in draws], weights)
    min_p = _column([sampling.min_p for sampling, _ in draws], weights)
    # The first of those that are equally likely decides for all of them, as in the other rows.
    before = (reached - weights).where(values != values.roll(1, dims=1), 0).cummax(dim=-1).values
    kept = (before < top_p * reached[:, -1:]) & (weights >= min_p)
    column = _invert(weights.where(kept, 0).cumsum(dim=-1), draws)
    return token_ids.gather(1, column[:, None])[:, 0]


def _weights(logits: Tensor, highest: Tensor, draws: Draws) -> Tensor:
    """The probabilities but for a factor: the highest is 1, so that none can overflow."""
    temperature = _column([max(sampling.temperature, COLDEST) for sampling, _ in draws], logits)
    return (logits - highest[:, None]).div_(temperature).exp_()


def _invert(cumulative: Tensor, draws: Draws, attempt: int = 0) -> Tensor:
    """The first column whose running sum is above the row's random share of the whole sum."""
    shares = _column([uniform(sampling.seed, position, attempt) for sampling, position in draws], cumulative)
    total = cumulative[:, -1:].contiguous()
    column = torch.searchsorted(cumulative, shares * total, right=True)
    # Rounding can push a share up to the whole; the answer is then the last column that adds to it.
    last = torch.searchsorted(cumulative, total)
    # The sums of a row of no numbers are none either: any column will do, as long as it exists.
    return column.minimum(last)[:, 0].clamp_(max=cumulative.shape[1] - 1)


def _column(numbers: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=like.dtype, device=like.device)[:, None]
