"""From logits to token ids, for all rows of a step at once.

Engine thread. A row's token depends on that row alone: its logits, its `Draw`; not on its neighbours,
nor on any generator's state. Ignorant of jobs, of the model and of the cache.

The order: raw logprobs are read off; biases and penalties, then the mask, change the logits; the
temperature divides them; top_k, top_p and min_p cut; one token is drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from engine.drawing import choose
from engine.executor import Drawn, RowFailure
from engine.logprobs import measure
from engine.messages import Sampling
from engine.penalties import TokenCounts, change_logits, forbid

NEVER = float("-inf")

Mask = Callable[[Tensor], None]
"""Sets the logits of tokens that may not be drawn to minus infinity, in place, for all rows of the step.
It comes after biases and penalties and before all that draws."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One row's way to draw: `position` counts the tokens before it, prompt and output together."""

    sampling: Sampling
    position: int
    counts: TokenCounts | None = None
    """What biases and penalties need to know, if there are any."""
    forbidden: frozenset[int] = frozenset()
    """Tokens that may not be drawn here."""
    logprobs: int | None = None
    """Tell of the drawn token and of so many of the likeliest."""


def sample(logits: Tensor, draws: Sequence[Draw], mask: Mask | None = None) -> list[Drawn | RowFailure]:
    """`logits` `[rows, vocabulary]` in float32 -> a token for each row.

    A failure for a row whose logits are not numbers or which may draw nothing. `logits` may be changed.
    """
    told = [row for row, draw in enumerate(draws) if draw.logprobs is not None]
    raw = logits
    if mask is not None or any(draw.counts is not None or draw.forbidden for draw in draws):
        logits = logits.clone() if told else logits.contiguous()
        _change(logits, draws)
        if mask is not None:
            mask(logits)
    highest, token_ids = choose(logits, [(draw.sampling, draw.position) for draw in draws])
    drawn: list[Drawn | RowFailure] = [
        Drawn(token_id) if isfinite(high) else _failure(high)
        for token_id, high in zip(token_ids.tolist(), highest.tolist(), strict=True)
    ]
    if told:
        _tell(drawn, told, raw, token_ids, draws)
    return drawn


def _change(logits: Tensor, draws: Sequence[Draw]) -> None:
    changed = [(row, draw.counts) for row, draw in enumerate(draws) if draw.counts is not None]
    if changed:
        change_logits(logits, [row for row, _ in changed], [counts for _, counts in changed])
    bound = [row for row, draw in enumerate(draws) if draw.forbidden]
    if bound:
        forbid(logits, bound, [draws[row].forbidden for row in bound])


def _tell(
    drawn: list[Drawn | RowFailure], rows: list[int], raw: Tensor, token_ids: Tensor, draws: Sequence[Draw]
) -> None:
    """Adds the raw logprobs to the rows that want them."""
    if len(rows) < len(draws):
        index = torch.tensor(rows, device=raw.device)
        raw, token_ids = raw[index], token_ids[index]
    found = measure(raw, token_ids, [draws[row].logprobs or 0 for row in rows])
    for row, logprobs in zip(rows, found, strict=True):
        row_drawn = drawn[row]
        if isinstance(row_drawn, Drawn):
            drawn[row] = Drawn(row_drawn.token_id, logprobs)


def _failure(highest: float) -> RowFailure:
    if highest == NEVER:
        return RowFailure("engine_error", "No token may be drawn here: all are forbidden.")
    return RowFailure("engine_error", "The model gave no finite logits.")
