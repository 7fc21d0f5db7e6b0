"""Biases and penalties: the few logits that a job's own tokens and wishes change.

Engine thread. Kept from step to step and touched only at the tokens that a job has, never over the
vocabulary. Ignorant of how tokens are drawn, and of the model.

What is kept is a function of the job and of its tokens, so it survives a preemption, and can be made
anew from a prompt that ends in earlier output.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.messages import Job, Sampling

UNSEEN = -1.0
"""The count of a token that is only biased: neither prompt nor output has it."""


def changes_logits(sampling: Sampling) -> bool:
    return (
        sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or sampling.repetition_penalty != 1
        or bool(sampling.logit_bias)
    )


class TokenCounts:
    """The ids whose logits one job changes: how often the output has each, and its bias.

    A count of 0 is a token of the prompt alone, which matters to the repetition penalty.
    """

    def __init__(self, job: Job) -> None:
        sampling = job.sampling
        prompt = len(job.prompt) - job.output_offset
        counts = {token_id: UNSEEN for token_id, _ in sampling.logit_bias}
        if sampling.repetition_penalty != 1:
            counts.update(dict.fromkeys(job.prompt[:prompt], 0.0))
        for token_id, count in Counter(job.prompt[prompt:]).items():
            counts[token_id] = float(count)
        biases = dict(sampling.logit_bias)
        self.sampling = sampling
        self._read = len(job.prompt)
        self._columns = {token_id: column for column, token_id in enumerate(counts)}
        room = len(counts) + 64
        self._ids: NDArray[np.int64] = np.zeros(room, np.int64)
        self._counts: NDArray[np.float32] = np.zeros(room, np.float32)
        self._biases: NDArray[np.float32] = np.zeros(room, np.float32)
        self._ids[: len(counts)] = list(counts)
        self._counts[: len(counts)] = list(counts.values())
        self._biases[: len(biases)] = list(biases.values())  # they come first in `counts`, too

    def __len__(self) -> int:
        return len(self._columns)

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Counts what was drawn since; `tokens` is the whole of prompt and output."""
        for token_id in tokens[self._read :]:
            column = self._columns.setdefault(token_id, len(self._columns))
            if column == len(self._ids):
                self._grow()
            self._ids[column] = token_id
            self._counts[column] = max(self._counts[column], 0) + 1
        self._read = len(tokens)

    def write(self, ids: NDArray[np.int64], counts: NDArray[np.float32], biases: NDArray[np.float32]) -> None:
        """Fills a row each; what is left of it repeats the last token, which changes nothing."""
        size = len(self._columns)
        for row, own in ((ids, self._ids), (counts, self._counts), (biases, self._biases)):
            row[:size] = own[:size]
            row[size:] = own[size - 1]

    def _grow(self) -> None:
        more = len(self._ids)
        self._ids, self._counts, self._biases = (
            np.concatenate([array, np.zeros(more, array.dtype)])
            for array in (self._ids, self._counts, self._biases)
        )


def change_logits(logits: Tensor, rows: Sequence[int], changes: Sequence[TokenCounts]) -> None:
    """Applies each row's bias, then its penalties, in place; `logits` must be contiguous."""
    known = [(row, counts) for row, counts in zip(rows, changes, strict=True) if len(counts)]
    if not known:
        return
    shape = len(known), max(len(counts) for _, counts in known)
    cells = np.empty(shape, np.int64)
    counts, biases = np.empty(shape, np.float32), np.empty(shape, np.float32)
    for place, (row, own) in enumerate(known):
        own.write(cells[place], counts[place], biases[place])
        cells[place] += row * logits.shape[-1]
    where, count, bias = (torch.from_numpy(a).to(logits.device) for a in (cells, counts, biases))
    knobs = [
        (s.repetition_penalty, s.frequency_penalty, s.presence_penalty)
        for s in (own.sampling for _, own in known)
    ]
    repetition, frequency, presence = torch.tensor(knobs, device=logits.device).T[:, :, None]
    flat = logits.view(-1)
    value = flat[where] + bias
    repetition = repetition.where(count >= 0, 1.0)
    value = (value / repetition).where(value > 0, value * repetition)
    value -= frequency * count.clamp(min=0) + presence * (count > 0)
    flat[where] = value


def forbid(logits: Tensor, rows: Sequence[int], token_ids: Sequence[frozenset[int]]) -> None:
    """These tokens will not be drawn, in place."""
    cells = [(row, token_id) for row, ids in zip(rows, token_ids, strict=True) for token_id in ids]
    where = torch.tensor(cells, dtype=torch.long, device=logits.device).reshape(-1, 2)
    logits[where[:, 0], where[:, 1]] = float("-inf")
