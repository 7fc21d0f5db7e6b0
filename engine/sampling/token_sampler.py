"""`TokenSampler`: samples one token a row by temperature, top_k, top_p and min_p.

Engine thread. Penalties and masks have been applied to the logits before.

Greedy rows take the argmax. Rows with a small top_k sample from a sorted list of the top logits. All other
rows sample from the whole vocabulary by inverse CDF, without a sort; a larger top_k masks logits below the
k-th value; top_p is rejection sampling: a rejected token is sampled again, with the next random number, among
likelier tokens. The result has the distribution of a cut before sampling; equally likely tokens are in or out
together. On a GPU, where a look at the result would wait for the forward pass, the number of attempts is
fixed.

Rows are grouped by these kinds, so that a row's cost does not depend on the parameters of other rows.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from math import exp, log

import torch
from torch import Tensor

from engine import device_copies
from engine.device_copies import to_device
from engine.request import SamplingParams
from engine.sampling.logprobs import top_in_order
from engine.sampling.vocab_chunks import argmax, chunk_max, chunk_sums, inverse_cdf, kth_highest, row_sums

MIN_TEMPERATURE = 1e-10
"""A lower temperature always samples the argmax, and would divide by zero in float32."""

TOP_K_LIST_SIZES = (64, 256)
"""Maximum top_k of the two groups that sample from a sorted list; a group's list is as long as its largest
top_k. Above the last, finding the k-th value costs less than sorting the top k."""

SMALL_VOCABULARY = 4096
"""For smaller vocabularies a plain `max` is faster than the chunked one."""


class RowGroup:
    """The rows of a batch that are sampled in one way, with their parameters as tensors."""

    def __init__(
        self,
        rows: Sequence[int],
        params: Sequence[SamplingParams],
        count: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        """`rows` of a batch of `count` rows, each with its parameters."""
        self.rows = rows
        self.params = params
        self.index = None if len(rows) == count else to_device(rows, torch.long, device)
        """`rows` as a tensor; None if these are all rows."""
        self.temperatures = _column([max(s.temperature, MIN_TEMPERATURE) for s in params], device)
        self.has_unit_temperature = all(s.temperature == 1 for s in params)
        self.min_p = _column([s.min_p for s in params], device)
        self.has_min_p = any(s.min_p > 0 for s in params)
        self.top_p = _column([s.top_p for s in params], device)
        self.top_k = to_device([s.top_k for s in params], torch.long, device)[:, None]
        self.max_top_k = max(s.top_k for s in params)
        self.top_p_places = [row for row, s in enumerate(params) if s.top_p < 1]
        """Indexes in the group of rows with a top_p; where the host does not look whether a row needs another
        attempt, those with the most attempts come first."""
        self.top_p_attempts: list[int] = []
        """The maximum of attempts of each of `top_p_places`, falling; empty if the host looks."""
        if not device_copies.reads_are_free(device):
            attempts = {row: attempts_for(params[row].top_p, vocab_size) for row in self.top_p_places}
            self.top_p_places.sort(key=lambda row: -attempts[row])
            self.top_p_attempts = [attempts[row] for row in self.top_p_places]
        self.top_p_rows = to_device(self.top_p_places, torch.long, device) if self.top_p_places else None
        self.large_top_k = [(row, s.top_k) for row, s in enumerate(params) if s.top_k > TOP_K_LIST_SIZES[-1]]
        """(index in the group, top_k) of rows with a top_k above `TOP_K_LIST_SIZES`."""


class TokenSampler:
    def __init__(self, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> None:
        greedy_rows, full_rows = [], []
        top_k_rows: list[list[int]] = [[] for _ in TOP_K_LIST_SIZES]
        for row, sampling in enumerate(params):
            size = sampling.top_k if 0 < sampling.top_k < vocab_size else vocab_size
            kind = bisect_left(TOP_K_LIST_SIZES, size)
            if sampling.temperature <= 0:
                greedy_rows.append(row)
            elif kind < len(top_k_rows) and size < vocab_size:
                top_k_rows[kind].append(row)
            else:
                full_rows.append(row)

        def group(rows: list[int]) -> RowGroup | None:
            own = [params[row] for row in rows]
            return RowGroup(rows, own, len(params), vocab_size, device) if rows else None

        self._greedy = group(greedy_rows)
        samplers = [
            (group(full_rows), _sample_full_vocabulary),
            *((group(rows), _sample_top_k_list) for rows in top_k_rows),
        ]
        self._samplers = [(group, draw) for group, draw in samplers if group is not None]

    def sample(self, logits: Tensor, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Logits `[rows, vocabulary]` in float32 -> highest logit `[rows]`, token id `[rows]`.

        `positions` are the numbers of earlier tokens, prompt and output. The token of a row whose highest
        logit is not finite is meaningless.
        """
        highest, token_ids = self._row_maxima(logits)
        for group, draw in self._samplers:
            own = [positions[row] for row in group.rows]
            if group.index is None:
                token_ids = draw(logits, highest, group, own)
            else:
                token_ids[group.index] = draw(logits[group.index], highest[group.index], group, own)
        return highest, token_ids

    def _row_maxima(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Highest logit and argmax of each row; the argmax is only computed if there are greedy rows."""
        if logits.shape[1] < SMALL_VOCABULARY:
            highest, token_ids = logits.max(dim=1)
            return highest, token_ids
        maxima = chunk_max(logits)
        highest = maxima.amax(dim=1)
        if self._greedy is None:
            return highest, torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        return highest, argmax(logits, maxima)


def uniform(seed: int, position: int, attempt: int = 0) -> float:
    """A random number in [0, 1), a hash of seed, position and attempt; the same on every machine."""
    counter = f"{seed}:{position}:{attempt}" if attempt else f"{seed}:{position}"
    digest = hashlib.blake2b(counter.encode(), digest_size=8, person=b"holdfast-draw").digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def _sample_full_vocabulary(
    logits: Tensor, highest: Tensor, group: RowGroup, positions: Sequence[int]
) -> Tensor:
    weights = _weights(logits, highest, group)
    for row, count in group.large_top_k:
        if count < logits.shape[1]:
            weights[row] *= _top_k_mask(logits[row], count)
    allowed = weights
    if group.has_min_p:
        allowed = _zero_unless(torch.ge, weights, group.min_p)
    sums = chunk_sums(allowed)
    token_ids = inverse_cdf(allowed, sums, _uniforms(group, positions, weights.device))
    if group.top_p_rows is not None:
        # top_p is a fraction of the total before min_p.
        total = sums.sum(dim=1, keepdim=True) if allowed is weights else row_sums(weights)
        _resample_top_p(token_ids, weights, total * group.top_p, group, positions)
    return token_ids


def _top_k_mask(row: Tensor, count: int) -> Tensor:
    """`[columns]`, bool: the `count` highest logits of a row; among equal ones, the first."""
    threshold = kth_highest(row, count)
    above, equal = row > threshold, row == threshold
    return above | (equal & (equal.cumsum(0) <= count - above.sum()))


def _resample_top_p(
    token_ids: Tensor, weights: Tensor, limits: Tensor, group: RowGroup, positions: Sequence[int]
) -> None:
    """Samples again, in place, until no token is outside its row's top_p.

    A token is outside if the likelier tokens together reach top_p. All allowed tokens are among those, so the
    next attempt samples from them. The likeliest token is always allowed.
    """
    index = group.top_p_rows
    assert index is not None
    if not device_copies.reads_are_free(weights.device):
        token_ids[index] = resample_without_reading(token_ids[index], weights, limits, group, positions)
        return
    if len(index) < len(weights):
        weights, limits = weights[index], limits[index]
    attempt = 0
    while True:
        attempt += 1
        likelier = _zero_unless(torch.gt, weights, weights.gather(1, token_ids[index, None]))
        sums = chunk_sums(likelier)
        above = sums.sum(dim=1, keepdim=True)
        # Comparisons with NaN are False, so rows of NaN end here. `above > 0` ends rows of which the
        # likeliest token was sampled, where a tiny top_p may have been rounded to 0.
        out = ((above >= limits) & (above > 0)).nonzero()[:, 0]
        if not len(out):
            return
        index, limits, weights = index[out], limits[out], weights[out]
        uniforms = _uniforms(group, positions, weights.device, index.tolist(), attempt)
        token_ids[index] = inverse_cdf(likelier[out], sums[out], uniforms)


def resample_without_reading(
    token_ids: Tensor, weights: Tensor, limits: Tensor, group: RowGroup, positions: Sequence[int]
) -> Tensor:
    """Resamples the tokens of `group.top_p_rows` without a look whether one is outside.

    Every row has as many attempts as `attempts_for` says. A row that is still outside takes its likeliest
    token.
    """
    index = group.top_p_rows
    assert index is not None
    weights, limits = weights[index], limits[index]
    budgets = group.top_p_attempts
    numbers = _column(
        [
            uniform(group.params[row].seed, positions[row], attempt)
            for attempt in range(1, budgets[0] + 1)
            for row in group.top_p_places[: _active(budgets, attempt)]
        ],
        weights.device,
    )
    begin = 0
    for attempt in range(1, budgets[0] + 2):
        # The budgets fall, so these are the first rows.
        checked, drawing = _active(budgets, attempt - 1), _active(budgets, attempt)
        own, drawn = weights[:checked], token_ids[:checked]
        likelier = _zero_unless(torch.gt, own, own.gather(1, drawn[:, None]))
        sums = chunk_sums(likelier)
        above = sums.sum(dim=1, keepdim=True)
        out = ((above >= limits[:checked]) & (above > 0))[:, 0]
        fresh = inverse_cdf(likelier[:drawing], sums[:drawing], numbers[begin : begin + drawing])
        fresh = torch.cat((fresh, own[drawing:].argmax(dim=1)))
        token_ids = torch.cat((torch.where(out, fresh, drawn), token_ids[checked:]))
        begin += drawing
    return token_ids


def _active(budgets: Sequence[int], attempt: int) -> int:
    """The number of `budgets`, which are in falling order, that allow this attempt."""
    return sum(budget >= attempt for budget in budgets)


MISSED = 1e-12
"""Probability, for each token, that a row's attempts do not suffice."""


@cache
def attempts_for(top_p: float, vocab_size: int) -> int:
    """Attempts after which a token is outside top_p with a probability below `MISSED`.

    Each draw multiplies the mass that is likelier than the token by a factor of at most a uniform one, so it
    is still top_p or more after n draws with at most the probability that Poisson(-log top_p) is n or more.
    It need not fall below 1 / vocab_size, which the likeliest token has.
    """
    mean = -log(max(top_p, 1 / vocab_size))
    draws, probability = 0, exp(-mean)
    # Beyond the mean, the terms of the tail fall at least as a geometric series does.
    while draws <= mean or probability / (1 - mean / (draws + 1)) > MISSED:
        draws += 1
        probability *= mean / draws
    return draws - 1  # the first draw is no attempt


def _sample_top_k_list(logits: Tensor, highest: Tensor, group: RowGroup, positions: Sequence[int]) -> Tensor:
    """Samples rows with a small top_k from a sorted list of the group's largest top_k."""
    values, token_ids = top_in_order(logits, group.max_top_k)
    weights = _weights(values, highest, group)
    weights.masked_fill_(torch.arange(group.max_top_k, device=logits.device) >= group.top_k, 0)
    cumulative = weights.cumsum(dim=1)
    # Equally likely tokens are in or out together, by the first of them.
    before = (cumulative - weights).masked_fill_(values == values.roll(1, dims=1), 0).cummax(dim=1).values
    allowed = (before < group.top_p * cumulative[:, -1:]) & (weights >= group.min_p)
    allowed_weights = weights.masked_fill(~allowed, 0)
    sums = chunk_sums(allowed_weights)
    column = inverse_cdf(allowed_weights, sums, _uniforms(group, positions, logits.device))
    return token_ids.gather(1, column[:, None])[:, 0]


def _weights(logits: Tensor, highest: Tensor, group: RowGroup) -> Tensor:
    """Unnormalized probabilities; the highest is 1, so that none overflows."""
    weights = logits - highest[:, None]
    if not group.has_unit_temperature:
        weights.div_(group.temperatures)
    return weights.exp_()


def _zero_unless(compare: Callable[..., Tensor], weights: Tensor, threshold: Tensor) -> Tensor:
    """The weights beyond the border; zero for the others."""
    # A float mask takes half the time of a boolean one on a CPU.
    return compare(weights, threshold, out=torch.empty_like(weights)).mul_(weights)


def _uniforms(
    group: RowGroup,
    positions: Sequence[int],
    device: torch.device,
    rows: Sequence[int] | None = None,
    attempt: int = 0,
) -> Tensor:
    """`[n, 1]`: a random number for each of `rows`, by default all rows of the group."""
    some = range(len(positions)) if rows is None else rows
    numbers = [uniform(group.params[row].seed, positions[row], attempt) for row in some]
    return _column(numbers, device)


def _column(numbers: Sequence[float], device: torch.device) -> Tensor:
    return to_device(numbers, torch.float32, device)[:, None]
