"""Changes of logits before sampling: bias, repetition, frequency and presence penalties, token masks.

Engine thread. Penalties are applied only at the tokens they concern; their state is updated with new tokens,
never over the whole vocabulary. It is a function of the request and its tokens, so it survives a preemption
and can be rebuilt from earlier output.
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from functools import cache
from math import inf

import numpy as np
import torch
from torch import Tensor

from engine.device_copies import to_device
from engine.request import EngineRequest, SamplingParams
from engine.sampling.token_masks import Masks

SPARE_COLUMNS = 64
"""Free columns of a new table, for tokens to come before it must be rebuilt."""

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
        self.ids = list(counts)
        self.counts = list(counts.values())
        self.biases = [bias for _, bias in sampling.logit_bias]  # they come first in `ids`, too
        self.biases += [0.0] * (len(counts) - len(self.biases))
        self.changed: list[int] = []
        """Indexes into the lists above, in the order of counting: one for each token counted since."""
        self._num_counted = len(request.prompt)
        self._index_of = {token_id: index for index, token_id in enumerate(self.ids)}

    def __len__(self) -> int:
        return len(self.ids)

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Counts new tokens; `tokens` is prompt and output so far."""
        for token_id in tokens[self._num_counted :]:
            self._count(token_id)
        self._num_counted = len(tokens)

    def _count(self, token_id: int) -> None:
        index = self._index_of.setdefault(token_id, len(self.ids))
        if index == len(self.ids):
            self.ids.append(token_id)
            self.counts.append(0.0)
            self.biases.append(0.0)
        self.counts[index] = max(self.counts[index], 0.0) + 1
        self.changed.append(index)

    def followed_by(self, token_id: int) -> "TokenCounts":
        """A copy that has counted a further token."""
        other = copy(self)
        other.ids, other.counts, other.biases = self.ids.copy(), self.counts.copy(), self.biases.copy()
        other.changed, other._index_of = [], self._index_of.copy()
        other._count(token_id)
        return other


class PenaltyTable:
    """Biases and penalties of a batch as arrays `[rows, columns]`, one column per concerned token.

    Unused columns repeat the row's first token, so that writing them changes nothing.
    """

    def __init__(self, rows: Sequence[int], counts: Sequence[TokenCounts], device: torch.device) -> None:
        """`rows` are the batch rows of `counts`, whose changes are picked up in each step."""
        self._rows = rows
        self._counts = counts
        self._device = device
        params = [own.sampling for own in counts]
        coefficients = [(s.repetition_penalty, s.frequency_penalty, s.presence_penalty) for s in params]
        self._repeats = any(repetition != 1 for repetition, _, _ in coefficients)
        self._coefficients = to_device(torch.tensor(coefficients), torch.float32, device).T[:, :, None]
        self._num_synced = [0] * len(counts)
        """Number of entries of each row's `changed` that are in the table."""
        self._cells = np.empty((0, 0), np.int64)
        self._numbers = np.empty((2, 0, 0), np.float32)

    def apply(self, logits: Tensor) -> tuple[Tensor, Tensor] | None:
        """Applies each row's bias, then its penalties, in place; `logits` must be contiguous.

        Returns the argument for `restore_logits`, or None if nothing was changed.
        """
        width = max(map(len, self._counts))
        if width == 0:
            return None
        if width > self._cells.shape[1]:
            self._rebuild(width + SPARE_COLUMNS, logits.shape[1])
        else:
            self._update(logits.shape[1])
        cells = to_device(torch.from_numpy(self._cells), torch.long, self._device)
        count, bias = to_device(torch.from_numpy(self._numbers), torch.float32, self._device)
        repetition, frequency, presence = self._coefficients
        flat = logits.view(-1)
        before = flat[cells]
        value = before + bias
        if self._repeats:
            repetition = repetition.masked_fill(count < 0, 1.0)
            value = (value / repetition).where(value > 0, value * repetition)
        count = count.clamp(min=0)
        value -= frequency * count + presence * count.clamp(max=1)
        flat[cells] = value
        return cells, before

    def _rebuild(self, width: int, vocab_size: int) -> None:
        self._cells = np.empty((len(self._counts), width), np.int64)
        self._numbers = np.zeros((2, len(self._counts), width), np.float32)
        self._numbers[0] = UNSEEN
        for line, (row, own) in enumerate(zip(self._rows, self._counts, strict=True)):
            size = len(own)
            self._num_synced[line] = len(own.changed)
            self._cells[line] = row * vocab_size  # a row that has no token yet leaves this one as it is
            if size:
                self._cells[line] += own.ids[0]
                self._cells[line, :size] = np.array(own.ids) + row * vocab_size
                self._numbers[:, line] = np.array([[own.counts[0]], [own.biases[0]]])
                self._numbers[:, line, :size] = own.counts, own.biases

    def _update(self, vocab_size: int) -> None:
        for line, own in enumerate(self._counts):
            num_synced, self._num_synced[line] = self._num_synced[line], len(own.changed)
            for index in own.changed[num_synced:]:
                self._cells[line, index] = self._rows[line] * vocab_size + own.ids[index]
                self._numbers[0, line, index] = own.counts[index]
                self._numbers[1, line, index] = own.biases[index]
                if index == 0:  # unused columns repeat it
                    self._cells[line, len(own) :] = self._cells[line, 0]
                    self._numbers[:, line, len(own) :] = self._numbers[:, line, :1]


def restore_logits(logits: Tensor, change: tuple[Tensor, Tensor]) -> None:
    cells, before = change
    logits.view(-1)[cells] = before


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
