"""`SamplingBatches`: keeps the sampling state of requests, and the batch of the previous step, between steps.

Engine thread. A request's state lives as long as its sequence; a batch is reused while its requests are the
same.
"""

from weakref import WeakKeyDictionary

import torch

from engine.sampling.penalties import TokenCounts, changes_logits
from engine.sampling.sampler import RowSampling, SamplingBatch
from engine.scheduling.sequence import TokenSequence

NO_IDS: frozenset[int] = frozenset()


class SamplingBatches:
    """The batches of successive steps; usually the batch of the previous step."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._row_samplings: WeakKeyDictionary[TokenSequence, RowSampling] = WeakKeyDictionary()
        self._sequences: list[TokenSequence] = []
        self._batch = SamplingBatch((), vocab_size, device)

    def of(self, sequences: list[TokenSequence]) -> SamplingBatch:
        """The batch of these sequences, updated to their current tokens."""
        if sequences != self._sequences:
            self._batch = SamplingBatch(
                [self._row_sampling(s) for s in sequences], self._vocab_size, self._device
            )
            self._sequences = sequences
        for sequence, row_sampling in zip(sequences, self._batch.samples_token, strict=True):
            row_sampling.position = len(sequence.tokens)
            if row_sampling.counts is not None:
                row_sampling.counts.catch_up(sequence.tokens)
            if sequence.request.min_tokens and sequence.request.grammar is None:
                row_sampling.masked_ids = sequence.ends if sequence.must_not_stop else NO_IDS
        return self._batch

    def _row_sampling(self, sequence: TokenSequence) -> RowSampling:
        row_sampling = self._row_samplings.get(sequence)
        if row_sampling is None:
            request = sequence.request
            counts = TokenCounts(request) if changes_logits(request.sampling) else None
            row_sampling = RowSampling(
                request.sampling,
                len(sequence.tokens),
                counts,
                logprobs=request.logprobs,
                logprob_token_ids=request.logprob_token_ids,
            )
            self._row_samplings[sequence] = row_sampling
        return row_sampling
