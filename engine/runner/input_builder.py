"""A step's input tensors: `InputBuilder` for torch's own attention, `PagedInputBuilder` for a paged kernel.

Engine thread. All integers of a step go to the device as one tensor in one asynchronous transfer.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile

import torch
from torch import Tensor

from engine.attention.paged_attention import (
    AttentionMetadata,
    AttentionStep,
    PagedAttentionBackend,
    PagedForward,
)
from engine.attention.sdpa import ContiguousRows, DecodeRows, GatheredRows, PromptChunk, SdpaForward
from engine.device_copies import to_device
from engine.kv_cache import ContiguousBuffer, ContiguousKVCache, KVCache
from engine.model.lora_layers import NO_ADAPTER, AdapterStep, adapter_step
from engine.scheduling.block_pool import BLANK_BLOCK
from engine.scheduling.scheduler import ScheduledChunk, SchedulerOutput
from engine.scheduling.sequence import TokenSequence

PLACEHOLDER_TOKEN = (0,)
"""Stands for a token in flight, which is filled in on the device."""


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """The model inputs of one step; all tokens of the step form one packed row of length T."""

    token_ids: Tensor
    """`[1, T]`, as is `positions`."""
    positions: Tensor
    ends: Tensor
    """Indexes into the packed row of the tokens whose logits are computed: the last token of each chunk (in
    the order of `sampling_first`) and its draft, then the rows for prompt logprobs."""
    attention: AttentionStep | None
    """None if no layer attends through the KV cache."""
    adapters: AdapterStep | None
    """None if no request of the step has an adapter."""
    begin_of: Mapping[TokenSequence, int]
    """Index in the packed row of the first token of each sequence."""


@dataclass(frozen=True, slots=True)
class PromptLogitRows:
    """Further logits of a step, for logprobs of consecutive prompt tokens, at the positions before them."""

    sequence: TokenSequence
    begin: int
    chunk: int
    """Index of the sequence's chunk in the plan."""
    places: range
    """Token indexes within the chunk."""


@dataclass(frozen=True, slots=True)
class TwoWayImages:
    """Models whose pictures attend to themselves in both directions (Gemma 3 and 4)."""

    image_token_id: int
    windowed_layers_only: bool

    def spans(self, sequence: TokenSequence, start: int, end: int) -> list[range]:
        """The runs of `image_token_id` among the tokens `start` .. `end` of pictures."""
        spans: list[range] = []
        for image in sequence.request.images:
            begin: int | None = None
            for place in range(max(image.start, start), min(image.end, end)):
                if sequence.tokens[place] != self.image_token_id:
                    begin = None
                elif begin is None:
                    begin = place
                    spans.append(range(begin, place + 1))
                else:
                    spans[-1] = range(begin, place + 1)
        return spans


def sampling_first(plan: SchedulerOutput) -> list[ScheduledChunk]:
    """The chunks that sample, then the others, each in plan order."""
    return sorted(plan, key=lambda chunk: not chunk.samples_token)


class PackedRow:
    """The row of a step's tokens, and all its integers: staged as lists, and sent in one transfer."""

    def __init__(
        self,
        plan: SchedulerOutput,
        chunks: Sequence[ScheduledChunk],
        logit_rows: Sequence[PromptLogitRows],
        adapters: Mapping[str, int],
    ) -> None:
        """`chunks` are those of the plan in the order of the row, or parts of them: a token and its draft.

        `adapters` maps names to indexes.
        """
        self._all = array("q")
        self._tensor: Tensor | None = None
        self._chunks = chunks
        token_ids: list[int] = []
        positions: list[int] = []
        begin_of = self.begin_of = dict[TokenSequence, int]()
        last_of: dict[TokenSequence, list[int]] = {}
        for chunk in chunks:
            sequence, start, count, begin = chunk.sequence, chunk.start, chunk.count, len(positions)
            begin_of.setdefault(sequence, begin)
            last = begin + max(count - 1 - len(chunk.draft), 0)
            last_of.setdefault(sequence, []).extend(range(last, begin + count))
            token_ids += chunk.token_ids or PLACEHOLDER_TOKEN
            positions += (start,) if count == 1 else range(start, start + count)
        ends = [index for chunk in sampling_first(plan) for index in last_of[chunk.sequence]]
        for rows in logit_rows:
            ends += [begin_of[plan[rows.chunk].sequence] + place for place in rows.places]
        names = (chunk.sequence.request.adapter for chunk in chunks)
        self._adapter_indexes = [adapters.get(name, NO_ADAPTER) for name in names] if adapters else []
        lists = (token_ids, positions, ends, self._adapter_indexes)
        self._token_ids, self.positions, self._ends, self._adapters = map(self.stage, lists)

    def stage(self, numbers: Iterable[int]) -> slice:
        """Adds numbers, which are this part of the tensor once that is sent."""
        begin = len(self._all)
        self._all.fromlist(list(numbers))  # four times as fast as `extend`
        return slice(begin, len(self._all))

    def stage_tables(self, tables: Sequence[list[int]], width: int) -> slice:
        """Adds block tables, each filled up with blank blocks to `width`."""
        begin, blank = len(self._all), array("q", [BLANK_BLOCK])
        for table in tables:
            self._all.fromlist(table)
            self._all.extend(blank * (width - len(table)))
        return slice(begin, len(self._all))

    def send(self, device: torch.device) -> None:
        self._tensor = to_device(torch.frombuffer(self._all, dtype=torch.long), torch.long, device)

    def __getitem__(self, part: slice) -> Tensor:
        assert self._tensor is not None, "the numbers were not sent"
        return self._tensor[part]

    def inputs(self, attention: AttentionStep | None) -> ForwardInputs:
        return ForwardInputs(
            self[self._token_ids][None],
            self[self.positions][None],
            self[self._ends],
            attention,
            adapter_step(self._chunks, self._adapter_indexes, self[self._adapters]),
            self.begin_of,
        )


def _without_draft(chunk: ScheduledChunk) -> ScheduledChunk:
    return ScheduledChunk(chunk.sequence, chunk.start, 1)


def _draft_of(chunk: ScheduledChunk) -> ScheduledChunk:
    return ScheduledChunk(chunk.sequence, chunk.start + 1, len(chunk.draft), chunk.draft)


class InputBuilder:
    """Builds step inputs. On the CPU, decoding requests use the contiguous cache."""

    def __init__(
        self,
        kv_cache: KVCache,
        adapters: Mapping[str, int] | None = None,
        two_way: TwoWayImages | None = None,
    ) -> None:
        """`adapters` maps names to indexes. `two_way` is None if pictures are attended to like text."""
        self._two_way = two_way
        self._kv_cache = kv_cache
        self._adapters = adapters or {}
        self._contiguous_cache = ContiguousKVCache(kv_cache) if kv_cache.device.type == "cpu" else None
        self._block_offsets = torch.arange(kv_cache.block_size, device=kv_cache.device)

    def build(self, plan: SchedulerOutput, logit_rows: Sequence[PromptLogitRows] = ()) -> ForwardInputs:
        """The row: one-token chunks by contiguous buffer, then gathered ones, then prefill chunks and drafts.

        A draft is a chunk with its request's last token; or alone, where that token has a row between others.
        """
        groups: list[tuple[ContiguousBuffer | None, list[ScheduledChunk]]] = []
        drafts: list[tuple[ScheduledChunk, tuple[ContiguousBuffer, int] | None]] = []
        rest = [chunk for chunk in plan if chunk.count == 1 or chunk.draft]
        if self._contiguous_cache is not None and rest:
            contiguous, rest = self._contiguous_cache.arrange(rest)
            for buffer, chunks in contiguous:
                cuts = not all(chunk.draft for chunk in chunks)
                if cuts:
                    groups.append((buffer, [_without_draft(chunk) for chunk in chunks]))
                drafts += [
                    (_draft_of(chunk) if cuts else chunk, (buffer, row))
                    for row, chunk in enumerate(chunks)
                    if chunk.draft
                ]
        drafts += [(chunk, None) for chunk in rest if chunk.draft]
        if rest := [chunk for chunk in rest if not chunk.draft]:
            groups.append((None, rest))
        single = [chunk for _, group in groups for chunk in group]
        prefills = drafts + [(chunk, None) for chunk in plan if chunk.count > 1 and not chunk.draft]
        several = [chunk for chunk, _ in prefills]
        row, size = (
            PackedRow(plan, [*single, *several], logit_rows, self._adapters),
            self._kv_cache.block_size,
        )
        slots = row.stage([c.sequence.blocks[c.start // size] * size + c.start % size for c in single])
        staged = [self._stage(row, buffer, chunks) for buffer, chunks in groups]
        blocks = [row.stage(chunk.sequence.blocks[: self._num_blocks(chunk)]) for chunk in several]
        row.send(self._kv_cache.device)
        decodes = [
            self._decode_rows(row, buffer, chunks, *parts)
            for (buffer, chunks), parts in zip(groups, staged, strict=True)
        ]
        begins = accumulate((chunk.count for chunk in several), initial=len(single))
        prompts = [
            self._prompt_chunk(row, begin, chunk, own, buffer_row)
            for begin, (chunk, buffer_row), own in zip(begins, prefills, blocks, strict=False)
        ]
        slot_parts = [row[slots]] if single else []
        slot_parts += [prompt.slots[prompt.past : -1] for prompt in prompts]
        all_slots = slot_parts[0] if len(slot_parts) == 1 else torch.cat(slot_parts)
        return row.inputs(SdpaForward(self._kv_cache, all_slots, decodes, prompts))

    def _stage(
        self, row: PackedRow, buffer: ContiguousBuffer | None, chunks: Sequence[ScheduledChunk]
    ) -> tuple[slice, slice]:
        """The lengths of requests with one token each, and its slots in the buffer, or else block tables."""
        lengths = row.stage([chunk.start + 1 for chunk in chunks])
        if buffer is not None:
            capacity = buffer.capacity
            return lengths, row.stage([n * capacity + chunk.start for n, chunk in enumerate(chunks)])
        used = [chunk.sequence.blocks[: self._num_blocks(chunk)] for chunk in chunks]
        width = max(map(len, used)) + 1  # each table ends with a blank block, for sinks
        return lengths, row.stage_tables(used, width)

    def _decode_rows(
        self,
        row: PackedRow,
        buffer: ContiguousBuffer | None,
        chunks: Sequence[ScheduledChunk],
        lengths: slice,
        slots_or_tables: slice,
    ) -> DecodeRows:
        begin, starts = row.begin_of[chunks[0].sequence], [chunk.start for chunk in chunks]
        ends = (begin, begin + len(chunks), row[lengths], min(starts) + 1, max(starts) + 1)
        if buffer is not None:
            return ContiguousRows(*ends, buffer, row[slots_or_tables])
        return GatheredRows(*ends, self._kv_cache, row[slots_or_tables].view(len(chunks), -1))

    def _prompt_chunk(
        self,
        row: PackedRow,
        begin: int,
        chunk: ScheduledChunk,
        blocks: slice,
        buffer_row: tuple[ContiguousBuffer, int] | None,
    ) -> PromptChunk:
        """Expands blocks to slots on the device, because slots are `block_size` times as many."""
        past, size = chunk.start, self._kv_cache.block_size
        slots = (row[blocks][:, None] * size + self._block_offsets).view(-1)
        # Ends with the first slot of the blank block, for attention sinks.
        slots = torch.cat((slots[: past + chunk.count], self._block_offsets[:1] + BLANK_BLOCK * size))
        prompt = PromptChunk(begin, begin + chunk.count, past, slots, row=buffer_row)
        if self._two_way is None or not chunk.sequence.request.images:
            return prompt
        spans = self._two_way.spans(chunk.sequence, past, past + chunk.count)
        return replace(prompt, two_way=spans, two_way_windowed_only=self._two_way.windowed_layers_only)

    def _num_blocks(self, chunk: ScheduledChunk) -> int:
        return -(-(chunk.start + chunk.count) // self._kv_cache.block_size)


@dataclass(frozen=True, slots=True)
class PagedInputBuilder:
    """Builds step inputs for a kernel that reads keys and values in their blocks."""

    kv_cache: KVCache
    backend: PagedAttentionBackend
    adapters: Mapping[str, int]
    """Indexes by name."""
    max_seq_len: int
    """The longest sequence that any step can have."""

    def build(self, plan: SchedulerOutput, logit_rows: Sequence[PromptLogitRows] = ()) -> ForwardInputs:
        size = self.kv_cache.block_size
        totals = [chunk.start + chunk.count for chunk in plan]
        block_tables = [c.sequence.blocks[: -(-total // size)] for c, total in zip(plan, totals, strict=True)]
        width = max(map(len, block_tables))
        row = PackedRow(plan, plan, logit_rows, self.adapters)
        counts = [chunk.count for chunk in plan]
        padded, staged_counts = row.stage_tables(block_tables, width), row.stage(counts)
        seq_lens, kv_starts = row.stage(totals), row.stage(accumulate(totals, initial=0))
        query_starts = row.stage(accumulate(counts, initial=0))
        row.send(self.kv_cache.device)
        table, position = row[padded].view(len(plan), width), row[row.positions]
        metadata = AttentionMetadata(
            table.int(),
            row[seq_lens].int(),
            row[query_starts].int(),
            row[kv_starts].int(),
            max_query_len=max(counts),
            max_seq_len=max(-(-self.max_seq_len // size), width) * size,
            num_single=len(list(takewhile(lambda count: count == 1, counts))),
        )
        chunk_of = torch.repeat_interleave(row[staged_counts], output_size=len(position))
        slots = table[chunk_of, position // size] * size + position % size
        return row.inputs(PagedForward(self.kv_cache, slots, metadata, self.backend))
