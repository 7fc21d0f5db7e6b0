"""How likely tokens were to the model itself, for the requests that ask.

Engine thread. Reads the logits as the model gave them, before anything changes them. Ignorant of how
tokens are drawn.
"""

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from engine.request import TokenLogprobs
from engine.sampling.vocab_chunks import chunk_max, top_k

ROWS_AT_ONCE = 64
"""Of a prompt: what is computed beside the logits themselves stays small."""

EXTRA_CANDIDATES = 3
WIDENING = 16


class PendingLogprobs:
    """Of rows of logits what their logprobs need, read off before the logits are changed."""

    def __init__(self, logits: Tensor, top_count: int, named_ids: Tensor | None = None) -> None:
        """`logits` `[rows, vocabulary]` in float32; of each row the `top_count` likeliest are to be told.

        And those with the ids in its row of `named_ids`, `[rows, any number]`.
        """
        maxima = chunk_max(logits)
        highest = maxima.amax(dim=1, keepdim=True)
        self.total = (logits - highest).exp_().sum(dim=1, keepdim=True).log_() + highest
        """`[rows, 1]`: what a logit is more than its logprob."""
        self.ids, self.values = None, None
        if top_count:
            values, self.ids = top_in_order(logits, top_count, maxima)
            self.values = values - self.total
        self.named_ids = None if named_ids is None else logits.gather(1, named_ids) - self.total

    def numbers(self, chosen: Tensor) -> Tensor:
        """All of it as one tensor of doubles, for one transfer; `chosen` are the tokens' logits.

        Of each row: its token's logprob; the ids of the likeliest; their logprobs; those of the named ones.
        """
        parts = [(chosen[:, None] - self.total).double()]
        if self.ids is not None and self.values is not None:
            parts += [self.ids.double(), self.values.double()]
        if self.named_ids is not None:
            parts.append(self.named_ids.double())
        return torch.cat(parts, dim=1)


def read_logprobs(
    numbers: Sequence[Sequence[float]], top_counts: Sequence[int], named_ids: Sequence[Sequence[int]] = ()
) -> list[TokenLogprobs]:
    """What `PendingLogprobs.numbers` gave, as it is told: of each row the `top_counts` likeliest.

    Or the ids that are `named_ids` for it, in their order; `named_ids` is empty, or has a list for each row.
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
    """The `count` highest values of each row, falling, and their ids, rising among equals.

    Without sorting the vocabulary. Among equals at the border `top_k` chooses as it likes: where the
    last of the list has more equals than a few, more are looked at. Tokens that are forbidden have no order.
    `maxima` are those of the rows' stretches, if they are known.
    """
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
    """The logprobs of a stretch of a prompt, some rows at a time. `logits` `[rows, vocabulary]`."""
    logprobs: list[TokenLogprobs] = []
    ids = torch.tensor(token_ids, dtype=torch.long, device=logits.device)
    for begin in range(0, len(ids), ROWS_AT_ONCE):
        rows = logits[begin : begin + ROWS_AT_ONCE].float()
        chosen = rows.gather(1, ids[begin : begin + ROWS_AT_ONCE, None])[:, 0]
        numbers = PendingLogprobs(rows, top_counts).numbers(chosen)
        logprobs += read_logprobs(numbers.tolist(), [top_counts] * len(rows))
    return logprobs
