"""`SamplingBatch`: logits `[rows, vocabulary]` to one token id a row with logprobs; state between steps.

A row's token depends only on the row's logits and its `RowSampling`, not on other rows or a generator's
state. Order: raw logprobs; logit bias and penalties, then masks; temperature; top_k, top_p and min_p restrict
the candidates; one token is sampled. The host gets the results in one transfer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from engine.device_copies import AsyncToHost, to_device
from engine.executor import RowFailure, SampledToken
from engine.request import SamplingParams, TokenLogprobs
from engine.sampling.logits_processors import (
    Penalties,
    TokenCounts,
    changes_logits,
    mask_tokens,
    restore_logits,
)
from engine.sampling.logprobs import RowLogprobs, read_logprobs
from engine.sampling.token_sampler import TokenSampler
from engine.scheduling.sequence import TokenSequence

Mask = Callable[[Tensor], None]
"""Sets the logits of disallowed tokens of the step to -inf, in place, after biases and penalties."""


@dataclass(slots=True)
class RowSampling:
    """From step to step only `position`, `masked_ids` and `counts` change."""

    sampling: SamplingParams
    position: int
    """Number of tokens before the one to sample, prompt and output together."""
    counts: TokenCounts | None = None
    """Token counts for biases and penalties; None if the request has none."""
    masked_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    """As `EngineRequest.logprobs`, and the next."""
    logprob_token_ids: tuple[int, ...] = ()


class SamplingBatch:
    """Rows that are sampled together in successive steps, with their tensors that do not change."""

    def __init__(self, rows: Sequence[RowSampling], vocab_size: int, device: torch.device) -> None:
        self.rows = rows
        self._token_sampler = TokenSampler([row.sampling for row in rows], vocab_size, device)
        penalized = [(index, row.counts) for index, row in enumerate(rows) if row.counts is not None]
        self._penalties = (
            Penalties([index for index, _ in penalized], [counts for _, counts in penalized], device)
            if penalized
            else None
        )
        self._logprob_rows = [index for index, row in enumerate(rows) if row.logprobs is not None]
        self._logprob_ids = [rows[index].logprob_token_ids for index in self._logprob_rows]
        self._logprob_counts = [
            0 if rows[index].logprob_token_ids else rows[index].logprobs or 0 for index in self._logprob_rows
        ]
        width = max(map(len, self._logprob_ids), default=0)
        padded = [[*ids, *[0] * (width - len(ids))] for ids in self._logprob_ids]
        self._padded_logprob_ids = to_device(torch.tensor(padded), torch.long, device) if width else None
        """`[len(_logprob_rows), most ids]`, padded with id 0, which is not read; None if no row names ids."""
        self._logprob_row_index: Tensor | None = None
        """`_logprob_rows` as a tensor; None if these are all rows, or none."""
        if 0 < len(self._logprob_rows) < len(rows):
            self._logprob_row_index = to_device(self._logprob_rows, torch.long, device)

    def begin(self, logits: Tensor, mask: Mask | None = None) -> "PendingSample":
        """Samples a token for each row of `logits` `[rows, vocabulary]`, which may be changed in place."""
        logits = logits.float().contiguous()
        pending_logprobs = None
        if self._logprob_rows:
            pending_logprobs = RowLogprobs(
                self._select_logprob_rows(logits), max(self._logprob_counts), self._padded_logprob_ids
            )
        changed_logits = self._penalties.apply(logits) if self._penalties is not None else None
        masked_rows = [index for index, row in enumerate(self.rows) if row.masked_ids]
        if masked_rows:
            mask_tokens(logits, masked_rows, [self.rows[index].masked_ids for index in masked_rows])
        if mask is not None:
            mask(logits)
        highest, token_ids = self._token_sampler.sample(logits, [row.position for row in self.rows])
        numbers = torch.stack((token_ids.double(), highest.double()))
        if pending_logprobs is not None:
            # Masks never change the logit of a token that is then sampled, so only penalties are undone.
            if changed_logits is not None:
                restore_logits(logits, changed_logits)
            selected = self._select_logprob_rows(token_ids)[:, None]
            chosen = self._select_logprob_rows(logits).gather(1, selected)[:, 0]
            numbers = torch.cat((numbers.flatten(), pending_logprobs.numbers(chosen).flatten()))
        return PendingSample(token_ids, AsyncToHost(numbers.flatten()), self)

    def read(self, numbers: Sequence[float], count: int) -> list[SampledToken | RowFailure]:
        """One entry for each of `count` rows; `RowFailure` where logits are NaN or all masked.

        `numbers`: tokens, highest logits, and of rows with logprobs `RowLogprobs.numbers`.
        """
        logprobs_of: list[TokenLogprobs | None] = [None] * count
        if self._logprob_rows:
            size = (len(numbers) - 2 * count) // len(self._logprob_rows)
            rows = [numbers[begin : begin + size] for begin in range(2 * count, len(numbers), size)]
            logprobs = read_logprobs(rows, self._logprob_counts, self._logprob_ids)
            for row, of_row in zip(self._logprob_rows, logprobs, strict=True):
                logprobs_of[row] = of_row
        sampled = zip(numbers[:count], numbers[count : 2 * count], logprobs_of, strict=True)
        return [
            SampledToken(int(token_id), of_row) if isfinite(high) else _row_failure(high)
            for token_id, high, of_row in sampled
        ]

    def _select_logprob_rows(self, tensor: Tensor) -> Tensor:
        return tensor if self._logprob_row_index is None else tensor[self._logprob_row_index]


@dataclass(frozen=True, slots=True)
class PendingSample:
    """Sampled tokens on the device, with the transfer of what `batch` reads of them under way."""

    token_ids: Tensor
    transfer: AsyncToHost
    batch: SamplingBatch

    def read(self) -> list[SampledToken | RowFailure]:
        return self.batch.read(self.transfer.read()[0].tolist(), len(self.token_ids))


def _row_failure(highest: float) -> RowFailure:
    if highest == -inf:
        return RowFailure("engine_error", "No token may be drawn here: all are forbidden.")
    return RowFailure("engine_error", "The model gave no finite logits.")


class SamplingBatches:
    """The batches of successive steps; usually the batch of the previous step.

    A request's state lives as long as its sequence; a batch is reused while its requests are the same.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._row_samplings: WeakKeyDictionary[TokenSequence, RowSampling] = WeakKeyDictionary()
        self._sequences: list[TokenSequence] = []
        self._lengths: list[int] = []
        self._batch = SamplingBatch((), vocab_size, device)

    def of(self, sequences: list[TokenSequence], drafts: Sequence[Sequence[int]] = ()) -> SamplingBatch:
        """A row for each sequence, and for each token of its draft: what follows it, if it is accepted."""
        drafts = drafts or [()] * len(sequences)
        lengths = [len(draft) for draft in drafts]
        if sequences != self._sequences or lengths != self._lengths or (self._has_counts and any(lengths)):
            rows = [
                row
                for sequence, draft in zip(sequences, drafts, strict=True)
                for row in self._rows_of(sequence, draft)
            ]
            self._batch = SamplingBatch(rows, self._vocab_size, self._device)
            self._sequences, self._lengths = sequences, lengths
        places = [
            (s, place) for s, length in zip(sequences, lengths, strict=True) for place in range(length + 1)
        ]
        for (sequence, place), row_sampling in zip(places, self._batch.rows, strict=True):
            row_sampling.position = len(sequence.tokens) + place
            if row_sampling.counts is not None and not place:
                row_sampling.counts.catch_up(sequence.tokens)
            if sequence.request.min_tokens and sequence.request.grammar is None:
                must_not_stop = sequence.must_not_stop_after(place)
                row_sampling.masked_ids = sequence.ends if must_not_stop else frozenset()
        return self._batch

    @property
    def _has_counts(self) -> bool:
        return any(row.counts is not None for row in self._batch.rows)

    def _rows_of(self, sequence: TokenSequence, draft: Sequence[int]) -> list[RowSampling]:
        rows = [self._row_sampling(sequence)]
        counts = rows[0].counts
        if counts is not None:
            counts.catch_up(sequence.tokens)
        for token_id in draft:
            counts = None if counts is None else counts.followed_by(token_id)
            rows.append(replace(rows[0], counts=counts))
        return rows

    def _row_sampling(self, sequence: TokenSequence) -> RowSampling:
        row_sampling = self._row_samplings.get(sequence)
        if row_sampling is None:
            request = sequence.request
            row_sampling = self._row_samplings[sequence] = RowSampling(
                request.sampling,
                len(sequence.tokens),
                TokenCounts(request) if changes_logits(request.sampling) else None,
                logprobs=request.logprobs,
                logprob_token_ids=request.logprob_token_ids,
            )
        return row_sampling
