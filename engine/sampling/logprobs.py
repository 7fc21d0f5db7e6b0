"""Logprobs of sampled tokens, top tokens, named ids and prompt tokens, from the raw logits. Engine thread."""

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from engine import device_copies
from engine.request import TokenLogprobs
from engine.sampling.vocab_chunks import chunk_max, row_sums, top_by_key, top_k

ROWS_AT_ONCE = 64
"""Prompt rows per pass; bounds the temporary memory."""

EXTRA_CANDIDATES = 3
WIDENING = 16


class RowLogprobs:
    """Normalizers, top tokens and named logprobs of rows, computed before the logits are changed."""

    def __init__(self, logits: Tensor, top_count: int, named_ids: Tensor | None = None) -> None:
        """`logits` `[rows, vocabulary]` in float32; `top_count` top tokens are kept per row.

        And the ids of the row of `named_ids`, `[rows, any number]`.
        """
        maxima = chunk_max(logits)
        highest = maxima.amax(dim=1, keepdim=True)
        self.total = row_sums((logits - highest).exp_()).log_() + highest
        """`[rows, 1]`: logsumexp; a logprob is the logit minus this."""
        self.ids, self.values = None, None
        if top_count:
            values, self.ids = top_in_order(logits, top_count, maxima)
            self.values = values - self.total
        self.named = None if named_ids is None else logits.gather(1, named_ids) - self.total

    def numbers(self, chosen: Tensor) -> Tensor:
        """`[rows, n]` doubles, for one transfer; `chosen` `[rows]` are the sampled tokens' logits.

        Columns: the sampled token's logprob, the top ids, their logprobs, the logprobs of named ids.
        """
        parts = [(chosen[:, None] - self.total).double()]
        if self.ids is not None and self.values is not None:
            parts += [self.ids.double(), self.values.double()]
        if self.named is not None:
            parts.append(self.named.double())
        return torch.cat(parts, dim=1)


def read_logprobs(
    numbers: Sequence[Sequence[float]], top_counts: Sequence[int], named_ids: Sequence[Sequence[int]] = ()
) -> list[TokenLogprobs]:
    """Parses the rows of `RowLogprobs.numbers`: `top_counts` has the number of top tokens of each row.

    `named_ids` is empty or has a list for each row; a row with a non-empty list gets these ids instead.
    """
    width = max(map(len, named_ids), default=0)
    top_count = (len(numbers[0]) - 1 - width) // 2 if numbers else 0
    logprobs = []
    for index, (row, count) in enumerate(zip(numbers, top_counts, strict=True)):
        ids: Sequence[int] = list(map(int, row[1 : count + 1]))
        values = row[top_count + 1 :]
        if named_ids and named_ids[index]:
            ids, values = named_ids[index], row[2 * top_count + 1 :]
        logprobs.append(TokenLogprobs(row[0], tuple(zip(ids, values, strict=False))))
    return logprobs


def top_in_order(logits: Tensor, count: int, maxima: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The `count` highest values of each row, descending, and their ids, ascending among equal values.

    Does not sort the vocabulary. `top_k` picks any of several equal values, so where values at the threshold
    are equal, more candidates are read; where the host cannot look, keys of value and id are compared, of
    which no two are equal. Masked tokens have no defined order. `maxima` is `chunk_max(logits)`.
    """
    if not device_copies.reads_are_free(logits.device):
        return top_by_key(logits, count, maxima)
    size = count + EXTRA_CANDIDATES
    while size < logits.shape[-1]:
        values, token_ids = top_k(logits, size, maxima)
        threshold, last = values[:, count - 1], values[:, -1]
        if not ((threshold == last) & (last > -inf)).any():
            token_ids, by_id = token_ids.sort(dim=-1)
            values, by_value = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
            return values[:, :count], token_ids.gather(1, by_value)[:, :count]
        size *= WIDENING
    values, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    return values[:, :count], token_ids[:, :count]


def prompt_token_logprobs(logits: Tensor, token_ids: Sequence[int], top_counts: int) -> list[TokenLogprobs]:
    """Logprobs of consecutive prompt tokens, from their `logits` `[rows, vocabulary]`."""
    logprobs: list[TokenLogprobs] = []
    ids = torch.tensor(token_ids, dtype=torch.long, device=logits.device)
    for begin in range(0, len(ids), ROWS_AT_ONCE):
        rows = logits[begin : begin + ROWS_AT_ONCE].float()
        chosen = rows.gather(1, ids[begin : begin + ROWS_AT_ONCE, None])[:, 0]
        numbers = RowLogprobs(rows, top_counts).numbers(chosen)
        logprobs += read_logprobs(numbers.tolist(), [top_counts] * len(rows))
    return logprobs
