"""`StaticDecoder`: decode-only steps over preallocated tensors of a few shapes, as CUDA graphs need them.

Created while loading, used by the engine thread. The batch is padded to one of a few sizes and the block
table to one of a few widths, and all inputs are at fixed addresses, so that a pass can be captured once and
replayed (`cuda_graphs`). A pass reads nothing from the host and returns nothing to it.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention.paged import AttentionMetadata, PagedAttentionBackend, PagedForward
from engine.device_copies import to_device
from engine.kv.kv_cache import KVCache
from engine.runner.decode_slots import DecodeSlots
from engine.scheduling.scheduler import SchedulerOutput
from engine.scheduling.sequence import TokenSequence


@dataclass(frozen=True, order=True, slots=True)
class GraphBucket:
    """A shape: `rows` of the batch and `width`, blocks in the block table of each."""

    rows: int
    width: int


Compute = Callable[[GraphBucket], Tensor]
"""Runs one pass; returns logits `[rows, vocabulary]`, which the next pass may overwrite."""


@dataclass(frozen=True, slots=True)
class DeviceTokens:
    """Sampled tokens on the device that the host has not read."""

    token_ids: Tensor
    index_of: Mapping[TokenSequence, int]
    """By sequence: the index in `token_ids`."""


@dataclass(frozen=True, slots=True)
class StaticLogits:
    """The logits of a pass."""

    logits: Tensor
    requests: list[TokenSequence]
    """The sequence of each row; further rows are padding."""


class StaticInputs:
    """The preallocated inputs, and the forward pass over them."""

    def __init__(
        self,
        network: PreTrainedModel,
        kv_cache: KVCache,
        backend: PagedAttentionBackend,
        max_bucket: GraphBucket,
    ) -> None:
        device = kv_cache.device
        self.max_bucket = max_bucket
        self.block_size = kv_cache.block_size
        self.spare_block = kv_cache.spare_block
        self.vocab_size: int = network.config.get_text_config().vocab_size
        self._network = network
        self._kv_cache = kv_cache
        self._backend = backend
        self.inputs = torch.zeros(2, max_bucket.rows, dtype=torch.long, device=device)
        """Token ids and positions."""
        self.block_tables = torch.zeros(max_bucket.rows, max_bucket.width, dtype=torch.int32, device=device)
        self.block_tables[:, 0] = kv_cache.spare_block
        self._starts = torch.arange(max_bucket.rows + 1, dtype=torch.int32, device=device)
        self._rows = torch.arange(max_bucket.rows, device=device)

    def compute(self, bucket: GraphBucket) -> Tensor:
        """Implements `Compute`."""
        size = self.block_size
        token_ids, positions = self.inputs[:, : bucket.rows]
        block_tables = self.block_tables[: bucket.rows, : bucket.width]
        block = block_tables.gather(1, (positions // size)[:, None])[:, 0]
        rows = AttentionMetadata(
            block_tables,
            (positions + 1).int(),
            self._starts[: bucket.rows + 1],
            max_query_len=1,
            max_seq_len=bucket.width * size,
        )
        step = PagedForward(self._kv_cache, block * size + positions % size, rows, self._backend)
        logits: Tensor = self._network(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=self._rows[: bucket.rows],
            step=step,
        ).logits
        return logits[0]


class StaticDecoder:
    """Runs steps that fit into a bucket; `bucket_for` returns None for all others."""

    def __init__(self, buffers: StaticInputs, buckets: Sequence[GraphBucket], compute: Compute) -> None:
        """`compute` is that of `buffers`, or replays its CUDA graphs."""
        self._buffers = buffers
        self._buckets = sorted(buckets)
        self._compute = compute
        self._slots = DecodeSlots(buffers.max_bucket.width, buffers.spare_block)

    def bucket_for(self, plan: SchedulerOutput) -> GraphBucket | None:
        """The smallest bucket for the plan; None unless every chunk is one token that samples the next."""
        if plan[-1].count != 1 or not all(chunk.samples_token for chunk in plan):
            return None  # the longest chunks are the last
        width = max(len(chunk.sequence.blocks) for chunk in plan)
        fitting = (s for s in self._buckets if s.rows >= len(plan) and s.width >= width)
        return next(fitting, None)

    def run(
        self, plan: SchedulerOutput, bucket: GraphBucket, device_tokens: DeviceTokens | None = None
    ) -> StaticLogits:
        """`device_tokens` has the last token of every request whose `in_flight` is set."""
        changes = self._slots.assign([chunk.sequence for chunk in plan])
        requests = self._slots.requests
        try:
            self._fill(requests, bucket, changes, device_tokens)
            return StaticLogits(self._compute(bucket), requests)
        except BaseException:
            self._slots.invalidate()
            raise

    def _fill(
        self,
        requests: list[TokenSequence],
        bucket: GraphBucket,
        changes: dict[int, int],
        device_tokens: DeviceTokens | None,
    ) -> None:
        padding = [0] * (bucket.rows - len(requests))
        unknown = [row for row, request in enumerate(requests) if request.in_flight]
        numbers = array("q", [0 if request.in_flight else request.tokens[-1] for request in requests])
        numbers.extend(padding)
        numbers.extend(request.length - 1 for request in requests)
        numbers.extend(padding)
        numbers.extend(changes)
        numbers.extend(changes.values())
        numbers.extend(unknown)
        if unknown:
            assert device_tokens is not None, "a token was neither read nor kept on the device"
            numbers.extend(device_tokens.index_of[requests[row]] for row in unknown)
        static_inputs = self._buffers
        sent = to_device(torch.frombuffer(numbers, dtype=torch.long), torch.long, static_inputs.inputs.device)
        counts = [2 * bucket.rows, len(changes), len(changes), len(unknown), len(unknown)]
        inputs, cells, blocks, rows, places = torch.split(sent, counts)
        static_inputs.inputs[:, : bucket.rows] = inputs.view(2, -1)
        if changes:
            static_inputs.block_tables.view(-1).index_copy_(0, cells, blocks.int())
        if device_tokens is not None and unknown:
            static_inputs.inputs[0].index_copy_(0, rows, device_tokens.token_ids.index_select(0, places))
