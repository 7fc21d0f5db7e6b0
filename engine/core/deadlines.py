"""A heap of request deadlines. Engine thread; the caller passes the current monotonic time."""

import heapq

from engine.scheduling.sequence import TokenSequence

MAX_STALE_ENTRIES = 64
"""The heap is rebuilt when it has more entries of ended requests than this, beyond one per live request."""


class Deadlines:
    """The unfinished requests that have a deadline."""

    def __init__(self) -> None:
        self._sequences: dict[int, TokenSequence] = {}  # by arrival order, which is unique
        self._heap: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def add(self, sequence: TokenSequence, due: float) -> None:
        self._sequences[sequence.arrival_order] = sequence
        heapq.heappush(self._heap, (due, sequence.arrival_order))

    def discard(self, sequence: TokenSequence) -> None:
        """Removes an ended request, if it has a deadline."""
        self._sequences.pop(sequence.arrival_order, None)
        if len(self._heap) > 2 * len(self._sequences) + MAX_STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[1] in self._sequences]
            heapq.heapify(self._heap)

    def pop_overdue(self, now: float) -> list[TokenSequence]:
        """Removes and returns the requests whose deadline is at or before `now`."""
        overdue: list[TokenSequence] = []
        while self._heap and self._heap[0][0] <= now:
            _, arrival = heapq.heappop(self._heap)
            sequence = self._sequences.pop(arrival, None)
            if sequence is not None:
                overdue.append(sequence)
        return overdue
