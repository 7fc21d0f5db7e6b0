"""From a plan to a packed row for a kernel that reads block tables, prompts and single tokens alike.

Engine thread; what `packing` is where attention is computed by torch's own operations. One transfer, which
nothing waits for. Ignorant of what is drawn from the logits.
"""

from collections.abc import Mapping, Sequence

from engine.attention.paged import AttentionMetadata, PagedAttentionBackend, PagedForward
from engine.kv.kv_cache import KVCache
from engine.lora.adapter_layers import AdapterStep, find_owners, lay_out
from engine.runner.input_builder import PLACEHOLDER_TOKEN, ForwardInputs, HostStaging, LogitRows, by_drawing
from engine.scheduling.block_pool import BLANK_BLOCK
from engine.scheduling.scheduler import SchedulerOutput


class PagedInputBuilder:
    """Has the shape of `packing.Packer`."""

    def __init__(self, store: KVCache, attention: PagedAttentionBackend, adapters: Mapping[str, int]) -> None:
        """`adapters` has a place for each name."""
        self._store = store
        self._attention = attention
        self._adapters = adapters

    def pack(self, plan: SchedulerOutput, wishes: Sequence[LogitRows] = ()) -> ForwardInputs:
        size = self._store.block_size
        starts = [0]
        for chunk in plan:
            starts.append(starts[-1] + chunk.count)
        end_of = {chunk.sequence: end - 1 for chunk, end in zip(plan, starts[1:], strict=True)}
        ends = [end_of[chunk.sequence] for chunk in by_drawing(plan)]
        for wish in wishes:
            ends += range(starts[wish.chunk] + wish.places.start, starts[wish.chunk] + wish.places.stop)
        tables = [chunk.sequence.blocks[: -(-(chunk.start + chunk.count) // size)] for chunk in plan]
        width = max(map(len, tables))
        owners = find_owners(plan, self._adapters) if self._adapters else []
        numbers = HostStaging()
        token_ids = numbers.add(
            token_id
            for chunk in plan
            for token_id in chunk.sequence.tokens[chunk.start : chunk.start + chunk.count]
            or PLACEHOLDER_TOKEN
        )
        positions = numbers.add(
            place for chunk in plan for place in range(chunk.start, chunk.start + chunk.count)
        )
        rows = numbers.add(row for row, chunk in enumerate(plan) for _ in range(chunk.count))
        padded = numbers.add(
            block for table in tables for block in (*table, *[BLANK_BLOCK] * (width - len(table)))
        )
        lengths = numbers.add(chunk.start + chunk.count for chunk in plan)
        begins = numbers.add(starts)
        wanted, owner_rows = numbers.add(ends), numbers.add(owners)
        numbers.send(self._store.device)
        table = numbers[padded].view(len(plan), width)
        position = numbers[positions]
        described = AttentionMetadata(
            table.int(),
            numbers[lengths].int(),
            numbers[begins].int(),
            most=max(chunk.count for chunk in plan),
            longest=width * size,
        )
        slots = table[numbers[rows], position // size] * size + position % size
        counts = [chunk.count for chunk in plan]
        stretches = lay_out(counts, owners) if owners else []
        return ForwardInputs(
            numbers[token_ids][None],
            position[None],
            numbers[wanted],
            PagedForward(self._store, slots, described, self._attention),
            AdapterStep(starts[-1], stretches, numbers[owner_rows]) if stretches else None,
        )
