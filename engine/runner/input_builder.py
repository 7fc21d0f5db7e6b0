"""From a plan to the packed row that the model computes, and where its keys go.

Engine thread. All that a step needs to know goes to the device as one tensor in one transfer, which
nothing waits for. Ignorant of what is drawn from the logits.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.sdpa import DecodeRows, GatheredRows, PagedStep, PromptChunk, ShelfRows, Step
from engine.kv.contiguous_cache import Shelf, Shelves
from engine.kv.kv_cache import KvStore
from engine.lora.adapter_layers import AdapterStep, find_owners, lay_out
from engine.scheduling.block_pool import BLANK_BLOCK
from engine.scheduling.scheduler import Chunk, Plan
from engine.scheduling.sequence import TokenSequence

IN_FLIGHT = (0,)
"""In the place of a token that the device has and the host has not read."""


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A plan as tensors."""

    token_ids: Tensor
    """`[1, T]`, as are the positions."""
    positions: Tensor
    ends: Tensor
    """The places in the packed row whose logits are wanted: where each chunk ends, first those that draw, in
    the order of the plan, then the others; and what is wished."""
    attention: Step
    adapters: AdapterStep | None
    """None if no job of the plan has an adapter."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Logits that are wanted beside those that are drawn from: of these places of a chunk of the plan."""

    chunk: int
    places: range


def by_drawing(plan: Plan) -> list[Chunk]:
    """First the chunks that draw, each in the order of the plan."""
    return sorted(plan, key=lambda chunk: not chunk.draws)


class Numbers:
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
class _Stretch:
    """Some jobs with one token each, or one job with more, on their way into the packed row."""

    chunks: Sequence[Chunk]
    shelf: Shelf | None
    begin: int
    end: int
    numbers: tuple[slice, ...]


class Packer:
    """Lays plans out. On the CPU the jobs that generate are kept on shelves."""

    def __init__(self, store: KvStore, adapters: Mapping[str, int] | None = None) -> None:
        """`adapters` has a place for each name."""
        self._store = store
        self._adapters = adapters or {}
        self._shelves = Shelves(store) if store.device.type == "cpu" else None
        self._places = torch.arange(store.block_size, device=store.device)

    def pack(self, plan: Plan, wishes: Sequence[Wish] = ()) -> PackedRow:
        numbers = Numbers()
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
            token_list += sequence.tokens[start : start + count] or IN_FLIGHT
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
        return PackedRow(
            numbers[token_ids][None],
            numbers[positions][None],
            numbers[wanted],
            self._attention(numbers, stretches, slots),
            self._adapt(ordered, owners, numbers[owner_rows]),
        )

    def _adapt(self, ordered: list[Chunk], owners: list[int], sent: Tensor) -> AdapterStep | None:
        counts = [chunk.count for chunk in ordered]
        stretches = lay_out(counts, owners) if owners else []
        return AdapterStep(sum(counts), stretches, sent) if stretches else None

    def _order(self, plan: Plan, single: list[Chunk], numbers: Numbers) -> list[_Stretch]:
        """First the jobs with one token, shelf by shelf, then those that have to be gathered."""
        shelved: list[tuple[Shelf, list[Chunk]]] = []
        rest = single
        if self._shelves is not None:
            shelved, rest = self._shelves.arrange(single)
        stretches: list[_Stretch] = []
        begin = 0
        for shelf, chunks in shelved:
            capacity = shelf.capacity
            lengths = numbers.add([chunk.start + 1 for chunk in chunks])
            slots = numbers.add([row * capacity + chunk.start for row, chunk in enumerate(chunks)])
            stretches.append(_Stretch(chunks, shelf, begin, begin + len(chunks), (lengths, slots)))
            begin += len(chunks)
        if rest:
            lengths = numbers.add([chunk.start + 1 for chunk in rest])
            tables = numbers.add([block for table in self._tables(rest) for block in table])
            stretches.append(_Stretch(rest, None, begin, begin + len(rest), (lengths, tables)))
            begin += len(rest)
        for chunk in plan:
            if chunk.count > 1:
                blocks = numbers.add(chunk.sequence.blocks[: self._blocks(chunk)])
                stretches.append(_Stretch((chunk,), None, begin, begin + chunk.count, (blocks,)))
                begin += chunk.count
        return stretches

    def _attention(self, numbers: Numbers, stretches: list[_Stretch], slots: slice) -> PagedStep:
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
                decodes.append(ShelfRows(*ends, stretch.shelf, others))
            else:
                decodes.append(GatheredRows(*ends, self._store, others.view(len(stretch.chunks), -1)))
        return PagedStep(self._store, where[0] if len(where) == 1 else torch.cat(where), decodes, prompts)

    def _prompt_chunk(self, stretch: _Stretch, chunk: Chunk, blocks: Tensor) -> PromptChunk:
        """The slots are worked out on the device: they are many, the blocks are few."""
        size = self._store.block_size
        slots = (blocks[:, None] * size + self._places).view(-1)
        # Of the blank block, which follows, the first slot is taken.
        slots = torch.cat((slots[: chunk.start + chunk.count], self._places[:1] + BLANK_BLOCK * size))
        return PromptChunk(stretch.begin, stretch.end, chunk.start, slots)

    def _blocks(self, chunk: Chunk) -> int:
        return -(-(chunk.start + chunk.count) // self._store.block_size)

    def _tables(self, chunks: list[Chunk]) -> list[list[int]]:
        """The blocks of each sequence, padded with blanks to one length, which leaves at least one."""
        used = [chunk.sequence.blocks[: self._blocks(chunk)] for chunk in chunks]
        width = max(map(len, used)) + 1
        return [[*blocks, *[BLANK_BLOCK] * (width - len(blocks))] for blocks in used]
