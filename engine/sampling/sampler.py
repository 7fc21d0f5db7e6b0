"""From logits to token ids, for all rows of a step at once.

Engine thread. A row's token depends on that row alone: its logits, its `RowSampling`; not on its neighbours,
nor on any generator's state. Ignorant of requests, of the model and of the cache.

The order: raw logprobs are read off; biases and penalties, then the mask, change the logits; the
temperature divides them; top_k, top_p and min_p cut; one token is drawn. All that the host has to know of
it comes in one transfer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from engine.device_copies import AsyncToHost, to_device
from engine.executor import RowFailure, SampledToken
from engine.request import SamplingParams, TokenLogprobs
from engine.sampling.logprobs import PendingLogprobs, measure
from engine.sampling.penalties import PenaltyTable, TokenCounts, mask_tokens, restore_logits
from engine.sampling.token_sampler import TokenSampler

NEVER = float("-inf")

Mask = Callable[[Tensor], None]
"""Sets the logits of tokens that may not be drawn to minus infinity, in place, for all rows of the step.
It comes after biases and penalties and before all that draws."""


@dataclass(slots=True)
class RowSampling:
    """One row's way to draw: `position` counts the tokens before it, prompt and output together.

    From step to step only `position` and `forbidden` may change, and what was counted.
    """

    sampling: SamplingParams
    position: int
    counts: TokenCounts | None = None
    """What biases and penalties need to know, if there are any."""
    forbidden: frozenset[int] = frozenset()
    """Tokens that may not be drawn here."""
    logprobs: int | None = None
    """Tell of the drawn token and of so many of the likeliest."""
    logprob_token_ids: tuple[int, ...] = ()
    """Tell of these in place of the likeliest."""


class SamplingBatch:
    """Rows that are drawn together, step after step, with all that stays the same between the steps."""

    def __init__(self, draws: Sequence[RowSampling], vocab_size: int, device: torch.device) -> None:
        self.draws = draws
        self._chooser = TokenSampler([draw.sampling for draw in draws], vocab_size, device)
        changed = [row for row, draw in enumerate(draws) if draw.counts is not None]
        counts = [draw.counts for draw in draws if draw.counts is not None]
        self._changes = PenaltyTable(changed, counts, device) if changed else None
        self._told = [row for row, draw in enumerate(draws) if draw.logprobs is not None]
        self._named = [draw.logprob_token_ids for draw in draws if draw.logprobs is not None]
        self._wanted = [
            0 if draw.logprob_token_ids else draw.logprobs for draw in draws if draw.logprobs is not None
        ]
        width = max(map(len, self._named), default=0)
        padded = [[*ids, *[0] * (width - len(ids))] for ids in self._named]
        self._named_ids = to_device(torch.tensor(padded), torch.long, device) if width else None
        """`[rows that tell, the most ids]`, filled up with an id that is not read; None if there are none."""
        self._told_index: Tensor | None = None
        """None if it is all rows that tell, or none."""
        if 0 < len(self._told) < len(draws):
            self._told_index = to_device(self._told, torch.long, device)

    def sample(self, logits: Tensor, mask: Mask | None = None) -> list[SampledToken | RowFailure]:
        """As `begin`, read at once."""
        return self.begin(logits, mask).read()

    def begin(self, logits: Tensor, mask: Mask | None = None) -> "PendingSample":
        """`logits` `[rows, vocabulary]` -> a token for each row. They may be changed."""
        logits = logits.float().contiguous()
        reading = None
        if self._told:
            reading = PendingLogprobs(self._of_told(logits), max(self._wanted), self._named_ids)
        change = self._changes.apply(logits) if self._changes is not None else None
        bound = [row for row, draw in enumerate(self.draws) if draw.forbidden]
        if bound:
            mask_tokens(logits, bound, [self.draws[row].forbidden for row in bound])
        if mask is not None:
            mask(logits)
        highest, token_ids = self._chooser.choose(logits, [draw.position for draw in self.draws])
        numbers = torch.stack((token_ids.double(), highest.double()))
        if reading is not None:
            # Of a token that was drawn neither what forbids nor the mask has changed the logit.
            if change is not None:
                restore_logits(logits, change)
            chosen = self._of_told(logits).gather(1, self._of_told(token_ids)[:, None])[:, 0]
            numbers = torch.cat((numbers.flatten(), reading.numbers(chosen).flatten()))
        return PendingSample(token_ids, numbers.flatten(), self._told, self._wanted, self._named)

    def _of_told(self, tensor: Tensor) -> Tensor:
        return tensor if self._told_index is None else tensor[self._told_index]


class PendingSample:
    """The rows' tokens, which may still be on their way to the host."""

    def __init__(
        self,
        token_ids: Tensor,
        numbers: Tensor,
        told: Sequence[int],
        wanted: Sequence[int],
        named: Sequence[Sequence[int]],
    ) -> None:
        """`numbers` are the tokens, the highest logits, and for each row of `told` what is to be told of
        it: so many of the likeliest as `wanted` says, or the `named` ids.
        """
        self.token_ids = token_ids
        self._told = told
        self._wanted = wanted
        self._named = named
        self._fetch = AsyncToHost(numbers)

    def read(self) -> list[SampledToken | RowFailure]:
        """A failure for a row whose logits are not numbers or which may draw nothing."""
        numbers = self._fetch.read()[0].tolist()
        count = len(self.token_ids)
        told: list[TokenLogprobs | None] = [None] * count
        if self._told:
            size = (len(numbers) - 2 * count) // len(self._told)
            rows = [numbers[begin : begin + size] for begin in range(2 * count, len(numbers), size)]
            for row, logprobs in zip(self._told, measure(rows, self._wanted, self._named), strict=True):
                told[row] = logprobs
        return [
            SampledToken(int(token_id), logprobs) if isfinite(high) else _failure(high)
            for token_id, high, logprobs in zip(
                numbers[:count], numbers[count : 2 * count], told, strict=True
            )
        ]


def _failure(highest: float) -> RowFailure:
    if highest == NEVER:
        return RowFailure("engine_error", "No token may be drawn here: all are forbidden.")
    return RowFailure("engine_error", "The model gave no finite logits.")
