"""`DecodeSlots`: the persistent batch of static decode steps, and the changes of its block tables.

Engine thread; no tensors. A request keeps its row while it decodes, so that from step to step only new blocks
are sent to the device. A row without a request points to the spare block, where padding may write.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.scheduling.block_pool import BLANK_BLOCK
from engine.scheduling.sequence import TokenSequence


@dataclass(slots=True)
class _Slot:
    """The state of one row's block table on the device."""

    request: TokenSequence
    blocks: list[int]
    """The list object of the request; after a preemption it has another one."""
    num_synced_blocks: int = 0
    """Number of leading blocks that the device's table has."""


class DecodeSlots:
    """Requests take the first rows, without gaps."""

    def __init__(self, width: int, spare_block: int) -> None:
        """`width` is the number of blocks of a row's table."""
        self._width = width
        self._spare = spare_block
        self._slots: list[_Slot] = []
        self._row_of: dict[TokenSequence, int] = {}
        self._table_lengths: list[int] = []
        """Number of blocks in each row's table, free rows included."""
        self._changes: dict[int, int] = {}
        self._invalid = False
        """The content of the device's tables is unknown."""

    @property
    def requests(self) -> list[TokenSequence]:
        """In the order of their rows."""
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
                self._sync(row, slot)
        if self._invalid:
            self._free_rows_from(len(self._slots))
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

    def _free_rows_from(self, first: int) -> None:
        for row in range(first, len(self._table_lengths)):
            self._write(row, 0, [self._spare])
        self._invalid = False

    def _sync(self, row: int, slot: _Slot) -> None:
        self._write(row, slot.num_synced_blocks, slot.blocks[slot.num_synced_blocks :])
        slot.num_synced_blocks = len(slot.blocks)

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
