"""Changes of logits before sampling: bias, repetition, frequency and presence penalties, token masks.

Engine thread. Penalties are applied only at the tokens they concern; their state is updated with new tokens,
never over the whole vocabulary. It is a function of the request and its tokens, so it survives a preemption
and can be rebuilt from earlier output.
"""

from collections import ChainMap, Counter
from collections.abc import MutableMapping, Sequence
from copy import copy
from functools import cache
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device_copies import to_device
from engine.request import EngineRequest, SamplingParams
from engine.sampling.token_masks import Masks

CELL = np.dtype([("id", np.int64), ("count", np.float32), ("bias", np.float32)])

SPARE_CELLS = 64
"""Free cells of a request's first array, for tokens to come before it must grow."""

UNSEEN = -1.0
"""Count of a token that has a bias but occurs neither in prompt nor output."""


def changes_logits(sampling: SamplingParams) -> bool:
    counts_tokens = sampling.presence_penalty or sampling.frequency_penalty
    return bool(counts_tokens or sampling.repetition_penalty != 1 or sampling.logit_bias)


class TokenCounts:
    """The ids whose logits a request changes, with their count in the output and their bias.

    A count of 0 is a token of the prompt only, which the repetition penalty concerns.
    """

    def __init__(self, request: EngineRequest) -> None:
        sampling = request.sampling
        prompt = len(request.prompt) - request.output_offset
        counts = {token_id: UNSEEN for token_id, _ in sampling.logit_bias}
        if sampling.repetition_penalty != 1:
            counts.update(dict.fromkeys(request.prompt[:prompt], 0.0))
        for token_id, count in Counter(request.prompt[prompt:]).items():
            counts[token_id] = float(count)
        self.sampling = sampling
        self._size = len(counts)
        self._cells = np.zeros(self._size + SPARE_CELLS, CELL)
        self._cells["id"][: self._size] = list(counts)
        self._cells["count"][: self._size] = list(counts.values())
        # Biases come first among the ids, too.
        self._cells["bias"][: len(sampling.logit_bias)] = [bias for _, bias in sampling.logit_bias]
        self._num_counted = len(request.prompt)
        self._index_of: MutableMapping[int, int] = {token_id: index for index, token_id in enumerate(counts)}

    @property
    def cells(self) -> NDArray[np.void]:
        """One `CELL` for each id."""
        return self._cells[: self._size]

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Counts new tokens; `tokens` is prompt and output so far."""
        for token_id in tokens[self._num_counted :]:
            self._count(token_id)
        self._num_counted = len(tokens)

    def followed_by(self, token_id: int) -> "TokenCounts":
        """A copy that has counted a further token; to be used until this one counts again."""
        other = copy(self)
        other._cells = self._cells.copy()
        other._index_of = ChainMap({}, self._index_of)
        other._count(token_id)
        return other

    def _count(self, token_id: int) -> None:
        index = self._index_of.setdefault(token_id, self._size)
        if index == self._size:
            if index == len(self._cells):
                self._cells = np.concatenate((self._cells, np.zeros_like(self._cells)))
            self._cells[index] = (token_id, 0.0, 0.0)
            self._size += 1
        counts = self._cells["count"]
        counts[index] = max(counts[index], 0.0) + 1


class Penalties:
    """Biases and penalties of a batch. A row costs as much as it has ids, whatever the others have."""

    def __init__(self, rows: Sequence[int], counts: Sequence[TokenCounts], device: torch.device) -> None:
        """`rows` are the batch rows of `counts`, which count on from step to step."""
        self._rows = np.array(rows, np.int64)
        self._counts = counts
        self._device = device
        params = [own.sampling for own in counts]
        coefficients = [(s.repetition_penalty, s.frequency_penalty, s.presence_penalty) for s in params]
        self._repeats = any(repetition != 1 for repetition, _, _ in coefficients)
        self._coefficients = np.array(coefficients, np.float32).T

    def apply(self, logits: Tensor) -> tuple[Tensor, Tensor] | None:
        """Applies each row's bias, then its penalties, in place; `logits` must be contiguous.

        Returns the argument for `restore_logits`, or None if nothing was changed.
        """
        of_rows = [own.cells for own in self._counts]
        lengths = [len(cells) for cells in of_rows]
        if not any(lengths):
            return None
        cells = np.concatenate(of_rows)
        places = cells["id"] + np.repeat(self._rows * logits.shape[1], lengths)
        numbers = np.stack((cells["count"], cells["bias"], *np.repeat(self._coefficients, lengths, axis=1)))
        index = to_device(torch.from_numpy(places), torch.long, self._device)
        count, bias, repetition, frequency, presence = to_device(
            torch.from_numpy(numbers), torch.float32, self._device
        )
        flat = logits.view(-1)
        before = flat[index]
        value = before + bias
        if self._repeats:
            repetition = repetition.masked_fill(count < 0, 1.0)
            value = (value / repetition).where(value > 0, value * repetition)
        count = count.clamp(min=0)
        value -= frequency * count + presence * count.clamp(max=1)
        flat[index] = value
        return index, before


def restore_logits(logits: Tensor, change: tuple[Tensor, Tensor]) -> None:
    index, before = change
    logits.view(-1)[index] = before


def mask_tokens(logits: Tensor, rows: Sequence[int], token_ids: Sequence[frozenset[int]]) -> None:
    """Sets logits to -inf, in place, in contiguous `logits`; `token_ids` has a set for each of `rows`."""
    size = logits.shape[1]
    cells = [row * size + token_id for row, ids in zip(rows, token_ids, strict=True) for token_id in ids]
    logits.view(-1).index_fill_(0, to_device(cells, torch.long, logits.device), -inf)


def apply_masks(logits: Tensor, masks: Masks) -> None:
    """Sets the logits of disallowed tokens to -inf, in place. `logits` has all rows of the step."""
    rows = sorted(masks.of)
    if not rows:
        return
    bits = torch.frombuffer(bytearray().join(masks.of[row] for row in rows), dtype=torch.uint8)
    packed = to_device(bits, torch.uint8, logits.device)
    # Adding -inf takes a tenth of the time of `masked_fill_` on a CPU.
    barred = _bars(logits.device).index_select(0, packed.int()).view(len(rows), -1)[:, : logits.shape[-1]]
    if len(rows) == len(logits):
        logits.add_(barred)
    else:
        logits.index_add_(0, to_device(rows, torch.long, logits.device), barred)


@cache
def _bars(device: torch.device) -> Tensor:
    """`[256, 8]`: for each byte of a bitmask, the values to add to the logits of its eight tokens."""
    bars = [[0.0 if byte >> bit & 1 else -inf for bit in range(8)] for byte in range(256)]
    return to_device(torch.tensor(bars), torch.float32, device)
