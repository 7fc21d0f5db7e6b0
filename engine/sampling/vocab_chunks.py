"""Rows as wide as a vocabulary, looked at in stretches of neighbouring columns.

Engine thread. What is asked of a whole row (its highest values, the column where a running sum passes a
number) is asked of one number for each stretch first, and then of few stretches: a row is read once, in
order, instead of being sorted or summed up number by number. Ignorant of what the numbers mean.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

WIDTH = 128
"""Columns of a stretch. The last one has what is left."""

NEVER = float("-inf")


def chunk_max(rows: Tensor) -> Tensor:
    """`[rows, columns]` -> `[rows, stretches]`; no number is higher than all."""
    whole, rest = _cut(rows)
    maxima = whole.amax(dim=2)
    return torch.cat((maxima, rest.amax(dim=1, keepdim=True)), dim=1) if rest.shape[1] else maxima


def chunk_sums(rows: Tensor) -> Tensor:
    """`[rows, columns]` -> `[rows, stretches]`."""
    whole, rest = _cut(rows)
    sums = whole.sum(dim=2)
    return torch.cat((sums, rest.sum(dim=1, keepdim=True)), dim=1) if rest.shape[1] else sums


def argmax(rows: Tensor, maxima: Tensor) -> Tensor:
    """The first column of each row that has its highest value."""
    stretch = maxima.argmax(dim=1, keepdim=True)
    return stretch[:, 0] * WIDTH + _read(rows, stretch, NEVER).argmax(dim=1)


def inverse_cdf(rows: Tensor, sums: Tensor, shares: Tensor) -> Tensor:
    """The first column of each row at which its running sum is above `shares` `[rows, 1]` of the whole.

    No number is negative. A column of zero is not given while there is another: a device that sums up in
    parallel may round a step into a stretch of zeros. Of a row of what are no numbers it is any column.
    """
    reached = sums.cumsum(dim=1)
    point = shares * reached[:, -1:]
    stretch = _first_above(reached, point)
    point = point - (reached.gather(1, stretch) - sums.gather(1, stretch))
    column = _first_above(_read(rows, stretch, 0.0).cumsum(dim=1), point)
    found = (stretch * WIDTH + column).clamp_(max=rows.shape[1] - 1)
    return found.where(rows.gather(1, found) > 0, argmax(rows, sums)[:, None])[:, 0]


def top_k(rows: Tensor, count: int, maxima: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `topk`: the `count` highest values of each row, and their columns; among equals, any.

    Whatever is above the last of them lies in the stretches with the highest maxima, which are as many.
    """
    if rows.shape[1] < 2 * count * WIDTH:
        return rows.topk(count, dim=1)
    whole, rest = _cut(rows)
    maxima = whole.amax(dim=2) if maxima is None else maxima[:, : whole.shape[1]]
    stretches = maxima.topk(count, dim=1, sorted=False).indices[:, :, None]
    columns = (stretches * WIDTH + _places(rows.device)).flatten(1)
    found = whole.gather(1, stretches.expand(-1, -1, WIDTH)).flatten(1)
    if rest.shape[1]:
        last = torch.arange(rows.shape[1] - rest.shape[1], rows.shape[1], device=rows.device)
        columns = torch.cat((columns, last.expand(len(rows), -1)), dim=1)
        found = torch.cat((found, rest), dim=1)
    values, places = found.topk(count, dim=1)
    return values, columns.gather(1, places)


def find_border(row: Tensor, count: int) -> Tensor:
    """The lowest of the `count` highest values of one row `[columns]`, without sorting them."""
    place = len(row) - count
    if row.device.type != "cpu":
        return row.kthvalue(place + 1).values
    return torch.from_numpy(np.partition(row.numpy(), place)[place : place + 1])


def _cut(rows: Tensor) -> tuple[Tensor, Tensor]:
    """`[rows, stretches, WIDTH]`, and the columns that are left."""
    end = rows.shape[1] // WIDTH * WIDTH
    return rows[:, :end].view(len(rows), -1, WIDTH), rows[:, end:]


def _read(rows: Tensor, stretch: Tensor, beyond: float) -> Tensor:
    """`[rows, WIDTH]`: of each row the stretch that `stretch` `[rows, 1]` says."""
    columns = stretch * WIDTH + _places(rows.device)
    size = rows.shape[1]
    if size % WIDTH == 0:
        return rows.gather(1, columns)
    return rows.gather(1, columns.clamp(max=size - 1)).masked_fill_(columns >= size, beyond)


def _first_above(reached: Tensor, point: Tensor) -> Tensor:
    """`[rows, 1]`: rounding can push a point up to the whole, which is then the last that adds to it."""
    last = torch.searchsorted(reached, reached[:, -1:].contiguous())
    first = torch.searchsorted(reached, point, right=True)
    return first.minimum(last).clamp_(max=reached.shape[1] - 1)


@cache
def _places(device: torch.device) -> Tensor:
    return torch.arange(WIDTH, device=device)
