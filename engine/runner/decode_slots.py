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
    told: int = 0
    """The first so many are in the table."""


class DecodeSlots:
    """The first rows are taken, without gaps."""

    def __init__(self, width: int, spare_block: int) -> None:
        """A table has `width` blocks."""
        self._width = width
        self._spare = spare_block
        self._seats: list[_Slot] = []
        self._row_of: dict[TokenSequence, int] = {}
        self._told: list[int] = []
        """How many blocks each row's table has, also of rows that are free again."""
        self._changes: dict[int, int] = {}
        self._doubtful = False
        """What the tables have is not known."""

    @property
    def requests(self) -> list[TokenSequence]:
        """In the order of their rows."""
        return [seat.request for seat in self._seats]

    def arrange(self, requests: Sequence[TokenSequence]) -> dict[int, int]:
        """Seats exactly these requests. Gives, by cell, counted through all rows, the blocks that change."""
        self._changes = {}
        if len(requests) != len(self._seats) or any(request not in self._row_of for request in requests):
            self._remove_all_but(set(requests))
            for request in requests:
                if request not in self._row_of:
                    self._row_of[request] = len(self._seats)
                    self._seats.append(_Slot(request, request.blocks))
        for row, seat in enumerate(self._seats):
            if seat.blocks is not seat.request.blocks:
                seat.blocks, seat.told = seat.request.blocks, 0
            if seat.told != len(seat.blocks):
                self._tell(row, seat)
        if self._doubtful:
            self._free_rows_from(len(self._seats))
        return self._changes

    def doubt(self) -> None:
        """Changes may not have been made: all rows are free, and the next changes say everything."""
        self._seats.clear()
        self._row_of.clear()
        self._told = [self._width] * len(self._told)
        self._doubtful = True

    def _remove_all_but(self, requests: set[TokenSequence]) -> None:
        """The last row takes the place of one that becomes free."""
        for row in reversed(range(len(self._seats))):
            if self._seats[row].request in requests:
                continue
            del self._row_of[self._seats[row].request]
            last = self._seats.pop()
            if row < len(self._seats):
                self._seats[row] = _Slot(last.request, last.blocks)
                self._row_of[last.request] = row
            self._write(len(self._seats), 0, [self._spare])

    def _free_rows_from(self, first: int) -> None:
        for row in range(first, len(self._told)):
            self._write(row, 0, [self._spare])
        self._doubtful = False

    def _tell(self, row: int, seat: _Slot) -> None:
        self._write(row, seat.told, seat.blocks[seat.told :])
        seat.told = len(seat.blocks)

    def _write(self, row: int, begin: int, blocks: Sequence[int]) -> None:
        """Whatever the table had behind these is made blank: a block of another request may not be finite."""
        while row >= len(self._told):
            self._told.append(1)
        end = begin + len(blocks)
        cell = row * self._width
        for place, block in enumerate(blocks, start=begin):
            self._changes[cell + place] = block
        for place in range(end, self._told[row]):
            self._changes[cell + place] = BLANK_BLOCK
        self._told[row] = end
