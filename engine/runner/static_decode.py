"""Steps in which every request computes one token, as passes over tensors that never move.

Made while loading, used by the engine thread. Rows are padded up to one of a few counts, tables to one of a
few widths: so a step is one of a few shapes, reads all that it needs from the same memory each time, and
can be recorded once and replayed (`graphs`). Nothing in a pass depends on the host or is told to it.
Ignorant of what is drawn from the logits.
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
    """So many rows, and so many blocks in the table of each."""

    rows: int
    width: int


Compute = Callable[[GraphBucket], Tensor]
"""One pass; gives the logits `[rows, vocabulary]`, which the next pass may overwrite."""


@dataclass(frozen=True, slots=True)
class DeviceTokens:
    """Input tokens that are on the device only."""

    token_ids: Tensor
    place_of: Mapping[TokenSequence, int]
    """Where among them each request's is."""


@dataclass(frozen=True, slots=True)
class StaticLogits:
    """The logits of a pass."""

    logits: Tensor
    requests: list[TokenSequence]
    """Of each row; rows beyond them only fill the step up."""


class StaticInputs:
    """The memory that passes read, and the pass itself."""

    def __init__(
        self, network: PreTrainedModel, store: KVCache, attention: PagedAttentionBackend, most: GraphBucket
    ) -> None:
        device = store.device
        self.most = most
        self.block_size = store.block_size
        self.spare_block = store.spare_block
        self.vocab_size: int = network.config.get_text_config().vocab_size
        self._network = network
        self._store = store
        self._attention = attention
        self.inputs = torch.zeros(2, most.rows, dtype=torch.long, device=device)
        """Token ids and positions."""
        self.tables = torch.zeros(most.rows, most.width, dtype=torch.int32, device=device)
        self.tables[:, 0] = store.spare_block
        self._starts = torch.arange(most.rows + 1, dtype=torch.int32, device=device)
        self._rows = torch.arange(most.rows, device=device)

    def compute(self, shape: GraphBucket) -> Tensor:
        """Implements `Compute`."""
        size = self.block_size
        token_ids, positions = self.inputs[:, : shape.rows]
        tables = self.tables[: shape.rows, : shape.width]
        block = tables.gather(1, (positions // size)[:, None])[:, 0]
        rows = AttentionMetadata(
            tables,
            (positions + 1).int(),
            self._starts[: shape.rows + 1],
            most=1,
            longest=shape.width * size,
        )
        step = PagedForward(self._store, block * size + positions % size, rows, self._attention)
        logits: Tensor = self._network(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=self._rows[: shape.rows],
            step=step,
        ).logits
        return logits[0]


class StaticDecoder:
    """Runs the steps that fit; all others are for somebody else."""

    def __init__(self, buffers: StaticInputs, shapes: Sequence[GraphBucket], compute: Compute) -> None:
        """`compute` is that of the buffers, or a recording of it."""
        self._buffers = buffers
        self._shapes = sorted(shapes)
        self._compute = compute
        self._seats = DecodeSlots(buffers.most.width, buffers.spare_block)

    def shape_for(self, plan: SchedulerOutput) -> GraphBucket | None:
        """The smallest shape that the plan fits into; None unless all chunks are one token to draw from."""
        if plan[-1].count != 1 or not all(chunk.draws for chunk in plan):
            return None  # the longest chunks are the last
        width = max(len(chunk.sequence.blocks) for chunk in plan)
        fitting = (s for s in self._shapes if s.rows >= len(plan) and s.width >= width)
        return next(fitting, None)

    def run(
        self, plan: SchedulerOutput, shape: GraphBucket, unread: DeviceTokens | None = None
    ) -> StaticLogits:
        """`unread` has the last token of every request whose `in_flight` is set."""
        changes = self._seats.arrange([chunk.sequence for chunk in plan])
        requests = self._seats.requests
        try:
            self._fill(requests, shape, changes, unread)
            return StaticLogits(self._compute(shape), requests)
        except BaseException:
            self._seats.doubt()
            raise

    def _fill(
        self,
        requests: list[TokenSequence],
        shape: GraphBucket,
        changes: dict[int, int],
        unread: DeviceTokens | None,
    ) -> None:
        padding = [0] * (shape.rows - len(requests))
        unknown = [row for row, request in enumerate(requests) if request.in_flight]
        numbers = array("q", [0 if request.in_flight else request.tokens[-1] for request in requests])
        numbers.extend(padding)
        numbers.extend(request.length - 1 for request in requests)
        numbers.extend(padding)
        numbers.extend(changes)
        numbers.extend(changes.values())
        numbers.extend(unknown)
        if unknown:
            assert unread is not None, "a token was neither read nor kept on the device"
            numbers.extend(unread.place_of[requests[row]] for row in unknown)
        to = self._buffers
        sent = to_device(torch.frombuffer(numbers, dtype=torch.long), torch.long, to.inputs.device)
        counts = [2 * shape.rows, len(changes), len(changes), len(unknown), len(unknown)]
        inputs, cells, blocks, rows, places = torch.split(sent, counts)
        to.inputs[:, : shape.rows] = inputs.view(2, -1)
        if changes:
            to.tables.view(-1).index_copy_(0, cells, blocks.int())
        if unread is not None and unknown:
            to.inputs[0].index_copy_(0, rows, unread.token_ids.index_select(0, places))
