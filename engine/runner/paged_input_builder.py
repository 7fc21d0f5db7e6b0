"""`PagedInputBuilder`: the input tensors of a step for a paged-attention kernel, which reads block tables.

Engine thread. The counterpart of `InputBuilder`; one asynchronous transfer.
"""

from collections.abc import Mapping, Sequence

from engine.attention.paged import AttentionMetadata, PagedAttentionBackend, PagedForward
from engine.kv.kv_cache import KVCache
from engine.lora.adapter_layers import AdapterStep, adapter_indexes_of, adapter_segments
from engine.runner.input_builder import (
    PLACEHOLDER_TOKEN,
    ForwardInputs,
    HostStaging,
    LogitRows,
    sampling_first,
)
from engine.scheduling.block_pool import BLANK_BLOCK
from engine.scheduling.scheduler import SchedulerOutput


class PagedInputBuilder:
    """Builds step inputs; the same interface as `InputBuilder`."""

    def __init__(
        self, kv_cache: KVCache, backend: PagedAttentionBackend, adapters: Mapping[str, int]
    ) -> None:
        """`adapters` maps names to indexes."""
        self._kv_cache = kv_cache
        self._backend = backend
        self._adapters = adapters

    def build(self, plan: SchedulerOutput, logit_rows: Sequence[LogitRows] = ()) -> ForwardInputs:
        size = self._kv_cache.block_size
        starts = [0]
        for chunk in plan:
            starts.append(starts[-1] + chunk.count)
        end_of = {chunk.sequence: end - 1 for chunk, end in zip(plan, starts[1:], strict=True)}
        ends = [end_of[chunk.sequence] for chunk in sampling_first(plan)]
        for wanted_rows in logit_rows:
            ends += range(
                starts[wanted_rows.chunk] + wanted_rows.places.start,
                starts[wanted_rows.chunk] + wanted_rows.places.stop,
            )
        block_tables = [chunk.sequence.blocks[: -(-(chunk.start + chunk.count) // size)] for chunk in plan]
        width = max(map(len, block_tables))
        adapter_indexes = adapter_indexes_of(plan, self._adapters) if self._adapters else []
        staging = HostStaging()
        token_ids = staging.add(
            token_id
            for chunk in plan
            for token_id in chunk.sequence.tokens[chunk.start : chunk.start + chunk.count]
            or PLACEHOLDER_TOKEN
        )
        positions = staging.add(
            place for chunk in plan for place in range(chunk.start, chunk.start + chunk.count)
        )
        rows = staging.add(row for row, chunk in enumerate(plan) for _ in range(chunk.count))
        padded = staging.add(
            block for table in block_tables for block in (*table, *[BLANK_BLOCK] * (width - len(table)))
        )
        seq_lens = staging.add(chunk.start + chunk.count for chunk in plan)
        query_starts = staging.add(starts)
        logit_positions, staged_indexes = staging.add(ends), staging.add(adapter_indexes)
        staging.upload(self._kv_cache.device)
        table = staging[padded].view(len(plan), width)
        position = staging[positions]
        metadata = AttentionMetadata(
            table.int(),
            staging[seq_lens].int(),
            staging[query_starts].int(),
            max_query_len=max(chunk.count for chunk in plan),
            max_seq_len=width * size,
        )
        slots = table[staging[rows], position // size] * size + position % size
        counts = [chunk.count for chunk in plan]
        segments = adapter_segments(counts, adapter_indexes) if adapter_indexes else []
        return ForwardInputs(
            staging[token_ids][None],
            position[None],
            staging[logit_positions],
            PagedForward(self._kv_cache, slots, metadata, self._backend),
            AdapterStep(starts[-1], segments, staging[staged_indexes]) if segments else None,
        )
