"""Which requests' time is over.

Engine thread. Pure: it is told what time it is.
"""

import heapq

from engine.scheduling.sequence import TokenSequence

MAX_STALE_ENTRIES = 64
"""So many entries of ended requests do no harm."""


class Deadlines:
    """The requests that have one and have not ended."""

    def __init__(self) -> None:
        self._sequences: dict[int, TokenSequence] = {}  # by arrival, which no two requests share
        self._heap: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def add(self, sequence: TokenSequence, due: float) -> None:
        self._sequences[sequence.arrival_order] = sequence
        heapq.heappush(self._heap, (due, sequence.arrival_order))

    def discard(self, sequence: TokenSequence) -> None:
        """The request has ended. One without a deadline is ignored."""
        self._sequences.pop(sequence.arrival_order, None)
        if len(self._heap) > 2 * len(self._sequences) + MAX_STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[1] in self._sequences]
            heapq.heapify(self._heap)

    def pop_overdue(self, now: float) -> list[TokenSequence]:
        """The requests whose time was over by now, which are forgotten."""
        overdue: list[TokenSequence] = []
        while self._heap and self._heap[0][0] <= now:
            _, arrival = heapq.heappop(self._heap)
            sequence = self._sequences.pop(arrival, None)
            if sequence is not None:
                overdue.append(sequence)
        return overdue
