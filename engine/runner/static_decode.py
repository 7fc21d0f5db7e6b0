"""`StaticDecoder`: decode steps over preallocated tensors, as CUDA graphs need; `DecodeSlots`: its rows.

The batch is padded to one of a few sizes and the block table to one of a few widths, all inputs are at fixed
addresses, and a pass reads nothing from the host, so that it can be captured and replayed (`cuda_graphs`).
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention.paged_attention import AttentionMetadata, PagedAttentionBackend, PagedForward, attending
from engine.device_copies import to_device
from engine.kv_cache import KVCache
from engine.scheduling.block_pool import BLANK_BLOCK
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


class StaticInputs:
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
        self.inputs = torch.zeros(3, max_bucket.rows, dtype=torch.long, device=device)
        """Token ids, positions in the sequence, and rotary positions: after pictures, others than those."""
        self.block_tables = torch.zeros(max_bucket.rows, max_bucket.width, dtype=torch.int32, device=device)
        self.block_tables[:, 0] = kv_cache.spare_block
        self._starts = torch.arange(max_bucket.rows + 1, dtype=torch.int32, device=device)
        self._rows = torch.arange(max_bucket.rows, device=device)

    def compute(self, bucket: GraphBucket) -> Tensor:
        """Implements `Compute`."""
        size = self.block_size
        token_ids, positions, rope_positions = self.inputs[:, : bucket.rows]
        block_tables = self.block_tables[: bucket.rows, : bucket.width]
        block = block_tables.gather(1, (positions // size)[:, None])[:, 0]
        seq_lens = (positions + 1).int()
        rows = AttentionMetadata(
            block_tables,
            seq_lens,
            self._starts[: bucket.rows + 1],
            torch.nn.functional.pad(seq_lens.cumsum(0), (1, 0)).int(),
            max_query_len=1,
            max_seq_len=self.max_bucket.width * size,
            num_single=bucket.rows,
        )
        step = PagedForward(self._kv_cache, block * size + positions % size, rows, self._backend)
        with attending(step):
            logits: Tensor = self._network(
                input_ids=token_ids[None],
                position_ids=rope_positions[None],
                use_cache=False,
                logits_to_keep=self._rows[: bucket.rows],
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
        self,
        plan: SchedulerOutput,
        bucket: GraphBucket,
        device_tokens: DeviceTokens | None = None,
        rope_deltas: Mapping[TokenSequence, int] = MappingProxyType({}),
    ) -> tuple[Tensor, list[TokenSequence]]:
        """The logits, and the sequences of the first rows; further rows are padding.

        `device_tokens` has the last token of every request whose `in_flight` is set, `rope_deltas` what is
        added to a position to make it a rotary one, where that is not 0.
        """
        changes = self._slots.assign([chunk.sequence for chunk in plan])
        requests = self._slots.requests
        try:
            self._fill(requests, bucket, changes, device_tokens, rope_deltas)
            return self._compute(bucket), requests
        except BaseException:
            self._slots.invalidate()
            raise

    def _fill(
        self,
        requests: list[TokenSequence],
        bucket: GraphBucket,
        changes: dict[int, int],
        device_tokens: DeviceTokens | None,
        rope_deltas: Mapping[TokenSequence, int],
    ) -> None:
        padding = [0] * (bucket.rows - len(requests))
        unknown = [row for row, request in enumerate(requests) if request.in_flight]
        numbers = array("q", [0 if request.in_flight else request.tokens[-1] for request in requests])
        numbers.extend(padding)
        numbers.extend(request.length - 1 for request in requests)
        numbers.extend(padding)
        numbers.extend(request.length - 1 + rope_deltas.get(request, 0) for request in requests)
        numbers.extend(padding)
        numbers.extend(changes)
        numbers.extend(changes.values())
        numbers.extend(unknown)
        if unknown:
            assert device_tokens is not None, "a token was neither read nor kept on the device"
            numbers.extend(device_tokens.index_of[requests[row]] for row in unknown)
        static_inputs = self._buffers
        sent = to_device(torch.frombuffer(numbers, dtype=torch.long), torch.long, static_inputs.inputs.device)
        counts = [3 * bucket.rows, len(changes), len(changes), len(unknown), len(unknown)]
        inputs, cells, blocks, rows, places = torch.split(sent, counts)
        static_inputs.inputs[:, : bucket.rows] = inputs.view(3, -1)
        if changes:
            static_inputs.block_tables.view(-1).index_copy_(0, cells, blocks.int())
        if device_tokens is not None and unknown:
            static_inputs.inputs[0].index_copy_(0, rows, device_tokens.token_ids.index_select(0, places))


@dataclass(slots=True)
class _Slot:
    request: TokenSequence
    blocks: list[int]
    """The list object of the request; after a preemption it has another one."""
    num_synced_blocks: int = 0
    """Leading blocks that the device's table has."""


class DecodeSlots:
    """The rows of the persistent batch by request, and the changes of its block tables; no tensors.

    A request keeps its row while it decodes, so that each step only sends new blocks to the device.
    Requests take the first rows, without gaps. A free row points to the spare block, where padding may write.
    """

    def __init__(self, width: int, spare_block: int) -> None:
        """`width` is the number of blocks of a row's table."""
        self._width = width
        self._spare = spare_block
        self._slots: list[_Slot] = []
        self._row_of: dict[TokenSequence, int] = {}
        self._table_lengths: list[int] = []
        """Blocks in each row's table, free rows included."""
        self._changes: dict[int, int] = {}
        self._invalid = False
        """The content of the device's tables is unknown."""

    @property
    def requests(self) -> list[TokenSequence]:
        return [slot.request for slot in self._slots]

    def assign(self, requests: Sequence[TokenSequence]) -> dict[int, int]:
        """Gives rows to exactly these requests. Returns changes as flat table index -> block."""
        self._changes = {}
        if len(requests) != len(self._slots) or any(request not in self._row_of for request in requests):
            self._remove_all_but(set(requests))
            for request in requests:
                if request not in self._row_of:
                    self._row_of[request] = len(self._slots)
                    self._slots.append(_Slot(request, request.blocks))
        for row, slot in enumerate(self._slots):
            if slot.blocks is not slot.request.blocks:
                slot.blocks, slot.num_synced_blocks = slot.request.blocks, 0
            if slot.num_synced_blocks != len(slot.blocks):
                self._write(row, slot.num_synced_blocks, slot.blocks[slot.num_synced_blocks :])
                slot.num_synced_blocks = len(slot.blocks)
        if self._invalid:
            for row in range(len(self._slots), len(self._table_lengths)):
                self._write(row, 0, [self._spare])
            self._invalid = False
        return self._changes

    def invalidate(self) -> None:
        """Frees all rows, because changes may not have been applied; `assign` then rewrites all tables."""
        self._slots.clear()
        self._row_of.clear()
        self._table_lengths = [self._width] * len(self._table_lengths)
        self._invalid = True

    def _remove_all_but(self, requests: set[TokenSequence]) -> None:
        """Frees rows; the last request moves into each gap."""
        for row in reversed(range(len(self._slots))):
            if self._slots[row].request in requests:
                continue
            del self._row_of[self._slots[row].request]
            last = self._slots.pop()
            if row < len(self._slots):
                self._slots[row] = _Slot(last.request, last.blocks)
                self._row_of[last.request] = row
            self._write(len(self._slots), 0, [self._spare])

    def _write(self, row: int, begin: int, blocks: Sequence[int]) -> None:
        """Writes blocks and blanks the rest of the row, because another request's block may not be finite."""
        while row >= len(self._table_lengths):
            self._table_lengths.append(1)
        end = begin + len(blocks)
        cell = row * self._width
        for index, block in enumerate(blocks, start=begin):
            self._changes[cell + index] = block
        for index in range(end, self._table_lengths[row]):
            self._changes[cell + index] = BLANK_BLOCK
        self._table_lengths[row] = end
