"""Chunked reductions over the vocabulary: max, argmax, top-k, inverse CDF, k-th highest value.

Engine thread. A row is reduced to one value per chunk of `CHUNK_WIDTH` columns first; then only few chunks
are read. So a row is read once, sequentially, instead of being sorted or accumulated element by element.
"""

from functools import cache
from math import inf

import numpy as np
import torch
from torch import Tensor

from engine import device_copies

CHUNK_WIDTH = 128
"""Columns of a chunk; the last chunk has the rest."""


def chunk_max(rows: Tensor) -> Tensor:
    """`[rows, columns]` -> `[rows, chunks]`: the maximum of each chunk; NaN propagates."""
    chunked, rest = _split(rows)
    maxima = chunked.amax(dim=2)
    return torch.cat((maxima, rest.amax(dim=1, keepdim=True)), dim=1) if rest.shape[1] else maxima


def chunk_sums(rows: Tensor) -> Tensor:
    """`[rows, columns]` -> `[rows, chunks]`: the sum of each chunk."""
    chunked, rest = _split(rows)
    sums = chunked.sum(dim=2)
    return torch.cat((sums, rest.sum(dim=1, keepdim=True)), dim=1) if rest.shape[1] else sums


def row_sums(rows: Tensor) -> Tensor:
    """`[rows, columns]` -> `[rows, 1]`. With threads, torch sums a row otherwise that is the only one."""
    return rows.expand(max(len(rows), 2), -1).sum(dim=1, keepdim=True)[: len(rows)]


def argmax(rows: Tensor, maxima: Tensor) -> Tensor:
    """`[rows]`: the first column with the row's highest value. `maxima` is `chunk_max(rows)`."""
    chunk = maxima.argmax(dim=1, keepdim=True)
    return chunk[:, 0] * CHUNK_WIDTH + _gather_chunk(rows, chunk, -inf).argmax(dim=1)


def inverse_cdf(rows: Tensor, sums: Tensor, uniforms: Tensor) -> Tensor:
    """`[rows]`: the first column at which a row's cumulative sum exceeds `uniforms` `[rows, 1]` times its
    total.

    Values are at least 0; `sums` is `chunk_sums(rows)`. A column of 0 is never returned while there is
    another: a parallel cumulative sum on a device may round so that it appears to increase there. For a row
    of NaN any column.
    """
    cumulative = sums.cumsum(dim=1)
    point = uniforms * cumulative[:, -1:]
    chunk = _first_above(cumulative, point)
    point = point - (cumulative.gather(1, chunk) - sums.gather(1, chunk))
    column = _first_above(_gather_chunk(rows, chunk, 0.0).cumsum(dim=1), point)
    candidates = (chunk * CHUNK_WIDTH + column).clamp_(max=rows.shape[1] - 1)
    return candidates.where(rows.gather(1, candidates) > 0, argmax(rows, sums)[:, None])[:, 0]


def top_k(rows: Tensor, count: int, maxima: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `torch.topk`, any among equal ones: they lie in the `count` chunks with the highest maxima."""
    if rows.shape[1] < 2 * count * CHUNK_WIDTH:
        return rows.topk(count, dim=1)
    chunked, rest = _split(rows)
    maxima = chunked.amax(dim=2) if maxima is None else maxima[:, : chunked.shape[1]]
    chunks = maxima.topk(count, dim=1, sorted=False).indices
    candidates, columns = _candidates(chunked, rest, chunks)
    values, places = candidates.topk(count, dim=1)
    return values, columns.gather(1, places)


def top_by_key(rows: Tensor, count: int, maxima: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The `count` highest values of each row `[rows, columns]` in float32, descending, and their columns,
    ascending among equal values.

    Each is one of the `count` chunks whose highest value comes first in this order: a value in another chunk
    comes after those of all of them.
    """
    size = rows.shape[1]
    candidates, columns = rows, torch.arange(size, device=rows.device)
    if size >= 2 * count * CHUNK_WIDTH:
        chunked, rest = _split(rows)
        maxima = chunked.amax(dim=2) if maxima is None else maxima[:, : chunked.shape[1]]
        keys = _order_keys(maxima, torch.arange(maxima.shape[1], device=rows.device))
        chunks = _column_of_key(keys.topk(count, dim=1, sorted=False).values)
        candidates, columns = _candidates(chunked, rest, chunks)
    keys = _order_keys(candidates, columns).topk(min(count, size), dim=1).values
    token_ids = _column_of_key(keys)
    return rows.gather(1, token_ids), token_ids


def _candidates(chunked: Tensor, rest: Tensor, chunks: Tensor) -> tuple[Tensor, Tensor]:
    """The values of each row's `chunks` `[rows, n]` and of the rest at the end, and their columns."""
    columns = (chunks[:, :, None] * CHUNK_WIDTH + _chunk_offsets(rest.device)).flatten(1)
    candidates = chunked.gather(1, chunks[:, :, None].expand(-1, -1, CHUNK_WIDTH)).flatten(1)
    if rest.shape[1]:
        begin = chunked.shape[1] * CHUNK_WIDTH
        last = torch.arange(begin, begin + rest.shape[1], device=rest.device)
        columns = torch.cat((columns, last.expand(len(rest), -1)), dim=1)
        candidates = torch.cat((candidates, rest), dim=1)
    return candidates, columns


LOW_BITS = 0xFFFFFFFF


def _order_keys(values: Tensor, columns: Tensor) -> Tensor:
    """int64 keys that are ordered by value, and among equal values by falling column."""
    # The bits of a float32 are ordered as integers once those of negative numbers are inverted. Adding 0
    # makes -0 and 0 equal.
    bits = (values + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.long() << 32) | (LOW_BITS - columns)


def _column_of_key(keys: Tensor) -> Tensor:
    return LOW_BITS - (keys & LOW_BITS)


def kth_highest(row: Tensor, count: int) -> Tensor:
    """`[1]`: the `count`-th highest value of one row `[columns]`, without a sort."""
    index = len(row) - count
    if not device_copies.reads_are_free(row.device):
        return row.kthvalue(index + 1).values
    return torch.from_numpy(np.partition(row.numpy(), index)[index : index + 1])


def _split(rows: Tensor) -> tuple[Tensor, Tensor]:
    """`[rows, chunks, CHUNK_WIDTH]`, and the remaining columns `[rows, rest]`."""
    end = rows.shape[1] // CHUNK_WIDTH * CHUNK_WIDTH
    return rows[:, :end].view(len(rows), -1, CHUNK_WIDTH), rows[:, end:]


def _gather_chunk(rows: Tensor, chunk: Tensor, padding: float) -> Tensor:
    """`[rows, CHUNK_WIDTH]`: the chunk of each row at index `chunk` `[rows, 1]`, padded with `padding`."""
    columns = chunk * CHUNK_WIDTH + _chunk_offsets(rows.device)
    size = rows.shape[1]
    if size % CHUNK_WIDTH == 0:
        return rows.gather(1, columns)
    return rows.gather(1, columns.clamp(max=size - 1)).masked_fill_(columns >= size, padding)


def _first_above(cumulative: Tensor, point: Tensor) -> Tensor:
    """`[rows, 1]`: the first index above `point`, at most the last increase: `point` may be the total."""
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    first = torch.searchsorted(cumulative, point, right=True)
    return first.minimum(last).clamp_(max=cumulative.shape[1] - 1)


@cache
def _chunk_offsets(device: torch.device) -> Tensor:
    return torch.arange(CHUNK_WIDTH, device=device)
