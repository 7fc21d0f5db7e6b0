"""In-memory copy of an ended response's compacted stream, decoded a segment of rows at a time."""

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from server.protocol.decode import decode_as
from server.protocol.responses.events import Event
from server.store.log.events import LogRow, decode_rows, parse_compacted

SEGMENT_ROWS = 256
"""Rows per segment. Decoded rows take several times the memory of their JSON."""


class CachedStream:
    """The events of a compacted stream."""

    def __init__(self, folded: str) -> None:
        """Takes a stream as it is stored. Raises msgspec.DecodeError."""
        rows = decode_as(folded, list[msgspec.Raw])
        pieces = [rows[start : start + SEGMENT_ROWS] for start in range(0, len(rows), SEGMENT_ROWS)]
        self._starts = [_row(piece[0]).first_seq for piece in pieces]
        self._pieces = [msgspec.json.encode(piece) for piece in pieces]
        last = _row(rows[-1]) if rows else None
        self.end = last.first_seq + last.n if last else 0
        """The sequence number after the last event."""

    def read(self, first: int) -> Iterator[Event]:
        """The events from sequence number `first` on, decoded lazily."""
        for piece in self._pieces[max(0, bisect_right(self._starts, first) - 1) :]:
            yield from decode_rows(parse_compacted(piece), first)


def _row(folded: msgspec.Raw) -> LogRow:
    return decode_as(folded, LogRow)
