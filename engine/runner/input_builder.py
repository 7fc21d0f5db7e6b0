"""From a plan to the packed row that the model computes, and where its keys go.

Engine thread. All that a step needs to know goes to the device as one tensor in one transfer, which
nothing waits for. Ignorant of what is drawn from the logits.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.sdpa import (
    AttentionStep,
    ContiguousRows,
    DecodeRows,
    GatheredRows,
    PromptChunk,
    SdpaForward,
)
from engine.kv.contiguous_cache import ContiguousBuffer, ContiguousKVCache
from engine.kv.kv_cache import KVCache
from engine.lora.adapter_layers import AdapterStep, find_owners, lay_out
from engine.scheduling.block_pool import BLANK_BLOCK
from engine.scheduling.scheduler import ScheduledChunk, SchedulerOutput
from engine.scheduling.sequence import TokenSequence

PLACEHOLDER_TOKEN = (0,)
"""In the place of a token that the device has and the host has not read."""


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """A plan as tensors."""

    token_ids: Tensor
    """`[1, T]`, as are the positions."""
    positions: Tensor
    ends: Tensor
    """The places in the packed row whose logits are wanted: where each chunk ends, first those that draw, in
    the order of the plan, then the others; and what is wished."""
    attention: AttentionStep
    adapters: AdapterStep | None
    """None if no request of the plan has an adapter."""


@dataclass(frozen=True, slots=True)
class LogitRows:
    """Logits that are wanted beside those that are drawn from: of these places of a chunk of the plan."""

    chunk: int
    places: range


def by_drawing(plan: SchedulerOutput) -> list[ScheduledChunk]:
    """First the chunks that draw, each in the order of the plan."""
    return sorted(plan, key=lambda chunk: not chunk.draws)


class HostStaging:
    """Gathers whole numbers, and gives each lot of them as a part of one tensor on the device."""

    def __init__(self) -> None:
        self._all = array("q")
        self._tensor: Tensor | None = None

    def add(self, numbers: Iterable[int]) -> slice:
        begin = len(self._all)
        self._all.extend(numbers)
        return slice(begin, len(self._all))

    def send(self, device: torch.device) -> None:
        """One transfer, from memory that the device reads by itself."""
        here = torch.frombuffer(self._all, dtype=torch.long)
        self._tensor = here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here

    def __getitem__(self, part: slice) -> Tensor:
        assert self._tensor is not None, "the numbers were not sent"
        return self._tensor[part]


@dataclass(frozen=True, slots=True)
class _Segment:
    """Some requests with one token each, or one request with more, on their way into the packed row."""

    chunks: Sequence[ScheduledChunk]
    shelf: ContiguousBuffer | None
    begin: int
    end: int
    numbers: tuple[slice, ...]


class InputBuilder:
    """Lays plans out. On the CPU the requests that generate are kept on shelves."""

    def __init__(self, store: KVCache, adapters: Mapping[str, int] | None = None) -> None:
        """`adapters` has a place for each name."""
        self._store = store
        self._adapters = adapters or {}
        self._shelves = ContiguousKVCache(store) if store.device.type == "cpu" else None
        self._places = torch.arange(store.block_size, device=store.device)

    def pack(self, plan: SchedulerOutput, wishes: Sequence[LogitRows] = ()) -> ForwardInputs:
        numbers = HostStaging()
        single = [chunk for chunk in plan if chunk.count == 1]
        stretches = self._order(plan, single, numbers)
        ordered = [chunk for stretch in stretches for chunk in stretch.chunks]
        begin_of: dict[TokenSequence, int] = {}
        token_list: list[int] = []
        position_list: list[int] = []
        slot_list: list[int] = []
        size = self._store.block_size
        for chunk in ordered:
            sequence, start, count = chunk.sequence, chunk.start, chunk.count
            begin_of[sequence] = len(position_list)
            token_list += sequence.tokens[start : start + count] or PLACEHOLDER_TOKEN
            if count == 1:
                position_list.append(start)
                slot_list.append(sequence.blocks[start // size] * size + start % size)
            else:
                position_list += range(start, start + count)
        ends = [begin_of[chunk.sequence] + chunk.count - 1 for chunk in by_drawing(plan)]
        for wish in wishes:
            first = begin_of[plan[wish.chunk].sequence]
            ends += range(first + wish.places.start, first + wish.places.stop)
        token_ids, positions, slots = map(numbers.add, (token_list, position_list, slot_list))
        wanted = numbers.add(ends)
        owners = find_owners(ordered, self._adapters) if self._adapters else []
        owner_rows = numbers.add(owners)
        numbers.send(self._store.device)
        return ForwardInputs(
            numbers[token_ids][None],
            numbers[positions][None],
            numbers[wanted],
            self._attention(numbers, stretches, slots),
            self._adapt(ordered, owners, numbers[owner_rows]),
        )

    def _adapt(self, ordered: list[ScheduledChunk], owners: list[int], sent: Tensor) -> AdapterStep | None:
        counts = [chunk.count for chunk in ordered]
        stretches = lay_out(counts, owners) if owners else []
        return AdapterStep(sum(counts), stretches, sent) if stretches else None

    def _order(
        self, plan: SchedulerOutput, single: list[ScheduledChunk], numbers: HostStaging
    ) -> list[_Segment]:
        """First the requests with one token, shelf by shelf, then those that have to be gathered."""
        shelved: list[tuple[ContiguousBuffer, list[ScheduledChunk]]] = []
        rest = single
        if self._shelves is not None:
            shelved, rest = self._shelves.arrange(single)
        stretches: list[_Segment] = []
        begin = 0
        for shelf, chunks in shelved:
            capacity = shelf.capacity
            lengths = numbers.add([chunk.start + 1 for chunk in chunks])
            slots = numbers.add([row * capacity + chunk.start for row, chunk in enumerate(chunks)])
            stretches.append(_Segment(chunks, shelf, begin, begin + len(chunks), (lengths, slots)))
            begin += len(chunks)
        if rest:
            lengths = numbers.add([chunk.start + 1 for chunk in rest])
            tables = numbers.add([block for table in self._tables(rest) for block in table])
            stretches.append(_Segment(rest, None, begin, begin + len(rest), (lengths, tables)))
            begin += len(rest)
        for chunk in plan:
            if chunk.count > 1:
                blocks = numbers.add(chunk.sequence.blocks[: self._blocks(chunk)])
                stretches.append(_Segment((chunk,), None, begin, begin + chunk.count, (blocks,)))
                begin += chunk.count
        return stretches

    def _attention(self, numbers: HostStaging, stretches: list[_Segment], slots: slice) -> SdpaForward:
        decodes: list[DecodeRows] = []
        prompts: list[PromptChunk] = []
        where = [numbers[slots]] if slots.start < slots.stop else []
        for stretch in stretches:
            chunk = stretch.chunks[0]
            if chunk.count > 1:
                prompt = self._prompt_chunk(stretch, chunk, numbers[stretch.numbers[0]])
                prompts.append(prompt)
                where.append(prompt.slots[chunk.start : -1])
                continue
            lengths, others = (numbers[part] for part in stretch.numbers)
            held = [c.start + 1 for c in stretch.chunks]
            ends = (stretch.begin, stretch.end, lengths, min(held), max(held))
            if stretch.shelf is not None:
                decodes.append(ContiguousRows(*ends, stretch.shelf, others))
            else:
                decodes.append(GatheredRows(*ends, self._store, others.view(len(stretch.chunks), -1)))
        return SdpaForward(self._store, where[0] if len(where) == 1 else torch.cat(where), decodes, prompts)

    def _prompt_chunk(self, stretch: _Segment, chunk: ScheduledChunk, blocks: Tensor) -> PromptChunk:
        """The slots are worked out on the device: they are many, the blocks are few."""
        size = self._store.block_size
        slots = (blocks[:, None] * size + self._places).view(-1)
        # Of the blank block, which follows, the first slot is taken.
        slots = torch.cat((slots[: chunk.start + chunk.count], self._places[:1] + BLANK_BLOCK * size))
        return PromptChunk(stretch.begin, stretch.end, chunk.start, slots)

    def _blocks(self, chunk: ScheduledChunk) -> int:
        return -(-(chunk.start + chunk.count) // self._store.block_size)

    def _tables(self, chunks: list[ScheduledChunk]) -> list[list[int]]:
        """The blocks of each sequence, padded with blanks to one length, which leaves at least one."""
        used = [chunk.sequence.blocks[: self._blocks(chunk)] for chunk in chunks]
        width = max(map(len, used)) + 1
        return [[*blocks, *[BLANK_BLOCK] * (width - len(blocks))] for blocks in used]
