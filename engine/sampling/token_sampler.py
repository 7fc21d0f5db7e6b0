"""One token out of each row of logits, by temperature, top_k, top_p and min_p.

Engine thread. Ignorant of penalties, masks and logprobs: these logits are what is drawn from.

There are three kinds of rows. Greedy ones take the maximum. Those with a small top_k draw from a list of the
highest logits. All others draw from the whole vocabulary without sorting it, cut by a larger top_k at the
lowest logit that it allows: a token that top_p rules out is drawn anew, by the next random number and among
the likelier ones. So the tokens that top_p allows are drawn as if the rest had been cut off before, equally
likely ones being in or out together.

Rows are drawn with others of their kind only, so what a row costs does not depend on what others ask for.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.device_copies import to_device
from engine.request import SamplingParams
from engine.sampling.logprobs import top_in_order
from engine.sampling.vocab_chunks import argmax, chunk_max, chunk_sums, find_border, inverse_cdf

COLDEST = 1e-10
"""A lower temperature than this draws the maximum in any case, and would divide by zero in float32."""

LIST_SIZES = (64, 256)
"""The longest lists of two kinds of rows: a list is as long as the largest top_k that it serves. Beyond the
last, to find where a row is to be cut costs less than to put its highest logits in order."""

NARROW = 4096
"""A vocabulary below this is looked at whole: few long steps cost more than many short ones spare."""


class RowGroup:
    """The rows of a batch that draw in one way, and what stays the same of them from step to step."""

    def __init__(
        self, rows: Sequence[int], samplings: Sequence[SamplingParams], count: int, device: torch.device
    ) -> None:
        """Of a batch of `count` rows these, each with its sampling."""
        self.rows = rows
        self.samplings = samplings
        self.index = None if len(rows) == count else to_device(rows, torch.long, device)
        """None if that is all rows."""
        self.colds = _column([max(s.temperature, COLDEST) for s in samplings], device)
        self.is_plain = all(s.temperature == 1 for s in samplings)
        self.min_p = _column([s.min_p for s in samplings], device)
        self.has_min_p = any(s.min_p > 0 for s in samplings)
        self.top_p = _column([s.top_p for s in samplings], device)
        self.top_k = to_device([s.top_k for s in samplings], torch.long, device)[:, None]
        self.most = max(s.top_k for s in samplings)
        limited = [row for row, s in enumerate(samplings) if s.top_p < 1]
        self.limited = to_device(limited, torch.long, device) if limited else None
        """The places in this group that have a top_p."""
        self.cuts = [(row, s.top_k) for row, s in enumerate(samplings) if s.top_k > LIST_SIZES[-1]]
        """The places in this group that have a top_k which is too large for a list, and it."""


class TokenSampler:
    """Draws for the rows of a batch, step after step."""

    def __init__(self, samplings: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> None:
        greedy, whole = [], []
        listed: list[list[int]] = [[] for _ in LIST_SIZES]
        for row, sampling in enumerate(samplings):
            size = sampling.top_k if 0 < sampling.top_k < vocab_size else vocab_size
            kind = bisect_left(LIST_SIZES, size)
            if sampling.temperature <= 0:
                greedy.append(row)
            elif kind < len(listed) and size < vocab_size:
                listed[kind].append(row)
            else:
                whole.append(row)

        def group(rows: list[int]) -> RowGroup | None:
            return RowGroup(rows, [samplings[row] for row in rows], len(samplings), device) if rows else None

        self._greedy = group(greedy)
        drawing = [(group(whole), _draw_from_all), *((group(rows), _draw_from_list) for rows in listed)]
        self._drawing = [(group, draw) for group, draw in drawing if group is not None]

    def choose(self, logits: Tensor, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """`[rows, vocabulary]` in float32 -> the highest logit and the token of each row.

        `positions` are the numbers of tokens before, prompt and output. The token of a row whose highest
        logit is not finite means nothing.
        """
        highest, token_ids = self._highest(logits)
        for group, draw in self._drawing:
            own = [positions[row] for row in group.rows]
            if group.index is None:
                token_ids = draw(logits, highest, group, own)
            else:
                token_ids[group.index] = draw(logits[group.index], highest[group.index], group, own)
        return highest, token_ids

    def _highest(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens are right for greedy rows only, if there are any."""
        if logits.shape[1] < NARROW:
            values, token_ids = logits.max(dim=1)
            return values, token_ids
        maxima = chunk_max(logits)
        highest = maxima.amax(dim=1)
        if self._greedy is None:
            return highest, torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        return highest, argmax(logits, maxima)


def uniform(seed: int, position: int, attempt: int = 0) -> float:
    """The random number in [0, 1) of this seed at this position, the same on every machine."""
    counter = f"{seed}:{position}:{attempt}" if attempt else f"{seed}:{position}"
    digest = hashlib.blake2b(counter.encode(), digest_size=8, person=b"holdfast-draw").digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def _draw_from_all(logits: Tensor, highest: Tensor, group: RowGroup, positions: Sequence[int]) -> Tensor:
    weights = _weights(logits, highest, group)
    for place, count in group.cuts:
        if count < logits.shape[1]:
            weights[place] *= _highest_of(logits[place], count)
    allowed = weights
    if group.has_min_p:
        allowed = _keep(torch.ge, weights, group.min_p)
    sums = chunk_sums(allowed)
    token_ids = inverse_cdf(allowed, sums, _shares(group, positions, weights.device))
    if group.limited is not None:
        # top_p is a share of everything, min_p or not.
        total = sums.sum(dim=1, keepdim=True) if allowed is weights else weights.sum(dim=1, keepdim=True)
        _keep_to_top_p(token_ids, weights, total * group.top_p, group, positions)
    return token_ids


def _highest_of(row: Tensor, count: int) -> Tensor:
    """`[columns]`: whether each logit of a row is one of its `count` highest; among equals the first are."""
    border = find_border(row, count)
    above, equal = row > border, row == border
    return above | (equal & (equal.cumsum(0) <= count - above.sum()))


def _keep_to_top_p(
    token_ids: Tensor, weights: Tensor, limits: Tensor, group: RowGroup, positions: Sequence[int]
) -> None:
    """Draws anew the tokens that top_p rules out.

    Such a token is one that is less likely than others which together reach top_p. All that top_p allows
    is among those others, so the next draw is from them; the likeliest token is always allowed.
    """
    index = group.limited
    assert index is not None
    if len(index) < len(weights):
        weights, limits = weights[index], limits[index]
    attempt = 0
    while True:
        attempt += 1
        likelier = _keep(torch.gt, weights, weights.gather(1, token_ids[index, None]))
        sums = chunk_sums(likelier)
        above = sums.sum(dim=1, keepdim=True)
        # The sums of a row of no numbers are none either: nothing is drawn anew there. Nor is it where
        # nothing is likelier, though a tiny top_p may be rounded to none at all.
        out = ((above >= limits) & (above > 0)).nonzero()[:, 0]
        if not len(out):
            return
        index, limits, weights = index[out], limits[out], weights[out]
        shares = _shares(group, positions, weights.device, index.tolist(), attempt)
        token_ids[index] = inverse_cdf(likelier[out], sums[out], shares)


def _draw_from_list(logits: Tensor, highest: Tensor, group: RowGroup, positions: Sequence[int]) -> Tensor:
    """For rows with a top_k: the list is as long as the largest of them."""
    values, token_ids = top_in_order(logits, group.most)
    weights = _weights(values, highest, group)
    weights[torch.arange(group.most, device=logits.device) >= group.top_k] = 0
    reached = weights.cumsum(dim=1)
    # The first of those that are equally likely decides for all of them, as in the other rows.
    before = (reached - weights).where(values != values.roll(1, dims=1), 0).cummax(dim=1).values
    kept = (before < group.top_p * reached[:, -1:]) & (weights >= group.min_p)
    kept_weights = weights.where(kept, 0)
    sums = chunk_sums(kept_weights)
    column = inverse_cdf(kept_weights, sums, _shares(group, positions, logits.device))
    return token_ids.gather(1, column[:, None])[:, 0]


def _weights(logits: Tensor, highest: Tensor, group: RowGroup) -> Tensor:
    """The probabilities but for a factor: the highest is 1, so that none can overflow."""
    weights = logits - highest[:, None]
    if not group.is_plain:
        weights.div_(group.colds)
    return weights.exp_()


def _keep(compare: Callable[..., Tensor], weights: Tensor, border: Tensor) -> Tensor:
    """The weights beyond the border; zero for the others."""
    # Ones and zeros as floats: with booleans this takes twice as long on a CPU.
    return compare(weights, border, out=torch.empty_like(weights)).mul_(weights)


def _shares(
    group: RowGroup,
    positions: Sequence[int],
    device: torch.device,
    rows: Sequence[int] | None = None,
    attempt: int = 0,
) -> Tensor:
    """A random number for each row of the group, or for these of them."""
    some = range(len(positions)) if rows is None else rows
    numbers = [uniform(group.samplings[row].seed, positions[row], attempt) for row in some]
    return _column(numbers, device)


def _column(numbers: Sequence[float], device: torch.device) -> Tensor:
    return to_device(numbers, torch.float32, device)[:, None]
