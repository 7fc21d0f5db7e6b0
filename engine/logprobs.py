"""How likely tokens were to the model itself, for the jobs that ask.

Engine thread. Reads the logits as the model gave them, before anything changes them. Ignorant of how
tokens are drawn.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.messages import TokenLogprobs

ROWS_AT_ONCE = 64
"""Of a prompt: what is computed beside the logits themselves stays small."""

NEVER = float("-inf")
SPARE = 3
WIDENING = 16


def top_in_order(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest values of each row, falling, and their ids, rising among equals.

    Without sorting the vocabulary. Among equals at the border `topk` chooses as it likes: where the last
    of the list has more equals than a few, more are looked at. Tokens that are forbidden have no order.
    """
    size = count + SPARE
    while size < logits.shape[-1]:
        values, token_ids = logits.topk(size, dim=-1)
        border, last = values[:, count - 1], values[:, -1]
        if not ((border == last) & (last > NEVER)).any():
            token_ids, by_id = token_ids.sort(dim=-1)
            values, by_value = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
            return values[:, :count], token_ids.gather(1, by_value)[:, :count]
        size *= WIDENING
    values, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    return values[:, :count], token_ids[:, :count]


def measure(logits: Tensor, token_ids: Tensor, wanted: Sequence[int]) -> list[TokenLogprobs]:
    """Of each row, its token's logprob and those of the `wanted` likeliest. `logits` `[rows, vocabulary]`."""
    total = logits.logsumexp(dim=-1, keepdim=True)
    chosen = (logits.gather(1, token_ids[:, None]) - total)[:, 0].tolist()
    most = max(wanted, default=0)
    if not most:
        return [TokenLogprobs(logprob) for logprob in chosen]
    values, top_ids = top_in_order(logits, most)
    tops = zip(top_ids.tolist(), (values - total).tolist(), strict=True)
    return [
        TokenLogprobs(logprob, tuple(zip(ids[:count], logprobs[:count], strict=True)))
        for logprob, (ids, logprobs), count in zip(chosen, tops, wanted, strict=True)
    ]


def measure_many(logits: Tensor, token_ids: Sequence[int], wanted: int) -> list[TokenLogprobs]:
    """The same of a stretch of a prompt, some rows at a time."""
    found: list[TokenLogprobs] = []
    ids = torch.tensor(token_ids, dtype=torch.long, device=logits.device)
    for begin in range(0, len(ids), ROWS_AT_ONCE):
        some = ids[begin : begin + ROWS_AT_ONCE]
        found += measure(logits[begin : begin + ROWS_AT_ONCE].float(), some, [wanted] * len(some))
    return found
