"""Which row of a static step each request has, and what has to change in its block table.

Engine thread. Requests keep their rows as long as they generate, so that from step to step only new blocks
have to be told. A row is a table of blocks; a row without a request has the spare block, where it may write.
Ignorant of tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.scheduling.block_pool import BLANK_BLOCK
from engine.scheduling.sequence import TokenSequence


@dataclass(slots=True)
class _Slot:
    """What a row's table says."""

    request: TokenSequence
    blocks: list[int]
    """The very list that the request had: another one is another table."""
    num_synced_blocks: int = 0
    """The first so many are in the table."""


class DecodeSlots:
    """The first rows are taken, without gaps."""

    def __init__(self, width: int, spare_block: int) -> None:
        """A table has `width` blocks."""
        self._width = width
        self._spare = spare_block
        self._slots: list[_Slot] = []
        self._row_of: dict[TokenSequence, int] = {}
        self._table_lengths: list[int] = []
        """How many blocks each row's table has, also of rows that are free again."""
        self._changes: dict[int, int] = {}
        self._invalid = False
        """What the tables have is not known."""

    @property
    def requests(self) -> list[TokenSequence]:
        """In the order of their rows."""
        return [slot.request for slot in self._slots]

    def assign(self, requests: Sequence[TokenSequence]) -> dict[int, int]:
        """Seats exactly these requests. Gives, by cell, counted through all rows, the blocks that change."""
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
        """Changes may not have been made: all rows are free, and the next changes say everything."""
        self._slots.clear()
        self._row_of.clear()
        self._table_lengths = [self._width] * len(self._table_lengths)
        self._invalid = True

    def _remove_all_but(self, requests: set[TokenSequence]) -> None:
        """The last row takes the place of one that becomes free."""
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
        """Whatever the table had behind these is made blank: a block of another request may not be finite."""
        while row >= len(self._table_lengths):
            self._table_lengths.append(1)
        end = begin + len(blocks)
        cell = row * self._width
        for index, block in enumerate(blocks, start=begin):
            self._changes[cell + index] = block
        for index in range(end, self._table_lengths[row]):
            self._changes[cell + index] = BLANK_BLOCK
        self._table_lengths[row] = end
